"""`make demo`: the commands on SmolLM2-135M-Instruct, printed as a user would type them."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

SOURCE = "builtin:smollm2-135m"
QUESTION = "Write a haiku about bits, then write the same haiku again."


def demo(out: Path, source: str = SOURCE, max_new_tokens: int = 64) -> int:
    """Everything lands in `out`; an earlier demo's is replaced. Exit code: 0 where the bits were the same."""
    model, bundle, report = out / "model", out / "bundle", out / "qualification.json"
    results = ["--json", str(report), "--plot", str(out / "qualification.svg")]
    for old in (model, bundle):
        shutil.rmtree(old, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    tokens = ["--max-new-tokens", str(max_new_tokens)]
    with as_file(files("qbpass") / "data" / "demo_prompts.jsonl") as shipped:
        prompts = out / "prompts.jsonl"
        shutil.copyfile(shipped, prompts)
    commands = [
        ["export", source, str(model)],
        ["admit", str(model)],
        ["rewrite", str(model), str(bundle), "--layout", "qb", "--max-queries", "8"],
        ["generate", str(bundle), "-p", QUESTION, *tokens],
        ["generate", str(bundle), "-p", QUESTION, "--draft", "self", *tokens],
        ["qualify", str(bundle), "--prompts", str(prompts), *tokens, "--replay-rows", "8", *results],
    ]
    for command in commands:
        print(f"\n$ qbpass {shlex.join(command)}", flush=True)
        code = subprocess.run([sys.executable, "-m", "qbpass", *command], check=False).returncode
        if code and command[0] != "qualify":
            return code
    if not report.is_file():
        return code
    print(f"\n{summary(json.loads(report.read_text(encoding='utf-8')))}")
    return code


def summary(report: dict[str, Any]) -> str:
    """One sentence on a qualification with the arms R, C_MQ, C_QB and C_PQ."""
    arms = report["arms"]
    plain = arms["C_MQ"]
    parts = [
        f"{name} returned serial decoding's own tokens on {arms[name]['equal']} of {arms[name]['endpoints']} prompts "
        f"and its logits, byte for byte, in {arms[name]['logit_rows_equal']} of {arms[name]['logit_rows']} rows"
        f"{_speed(arms[name])}"
        for name in ("C_QB", "C_PQ")
    ]
    return (
        f"What was shown: {'; '.join(parts)}; plain speculation on the native graph (C_MQ) did so on {plain['equal']} "
        f"of {plain['endpoints']} prompts and in {plain['logit_rows_equal']} of {plain['logit_rows']} rows."
    )


def _speed(arm: dict[str, Any]) -> str:
    return "" if arm["ratio_to_R"] is None else f", in {1 / arm['ratio_to_R']:.2f} times serial decoding's time"


if __name__ == "__main__":
    sys.exit(demo(Path(sys.argv[1] if len(sys.argv) > 1 else "demo-out")))
