"""The child of outcome.py: the name of a step as its argument, the question on stdin, the outcome on stdout."""

from __future__ import annotations

import json
import sys

from gpu_check.outcome import answered
from gpu_check.steps import STEPS


def main() -> None:
    name = sys.argv[1]
    outcome = answered(name, STEPS[name], json.load(sys.stdin))
    print(json.dumps(outcome.to_json(), default=str), flush=True)


if __name__ == "__main__":
    main()
