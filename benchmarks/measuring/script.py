"""What every script has: options, the machine's name in its results, one line for an error."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measuring.claims import plain
from qbpass.json_file import write_json
from qbpass.models.errors import QbpassError
from qbpass.models.processor import processor_name
from qbpass.models.session import SessionSpec
from qbpass.screen import Steps


def parser(description: str | None, *, rounds: int, bundle: bool = True) -> argparse.ArgumentParser:
    """The options all scripts share: BUNDLE, --threads, --rounds, --json."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if bundle:
        made.add_argument("bundle", type=Path, metavar="BUNDLE", help="a folder that `qbpass rewrite` wrote")
    made.add_argument(
        "--threads", type=positive, default=2, metavar="N", help="intra-op threads (default: %(default)s)"
    )
    made.add_argument(
        "--rounds", type=positive, default=rounds, metavar="N", help="timed rounds (default: %(default)s)"
    )
    made.add_argument("--json", type=Path, metavar="F", help="also write the results to F")
    return made


def add_request(made: argparse.ArgumentParser, *, prompt: int, tokens: int) -> None:
    """--prompt and --tokens, the size of the request a script runs."""
    for name, default, what in (("--prompt", prompt, "prompt"), ("--tokens", tokens, "generated")):
        made.add_argument(
            name, type=positive, default=default, metavar="N", help=f"{what} tokens (default: %(default)s)"
        )


def positive(text: str) -> int:
    """An integer of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def spec_of(options: argparse.Namespace) -> SessionSpec:
    return SessionSpec("cpu", options.threads)


def run(
    measure: Callable[[argparse.Namespace, Steps], dict[str, Any]],
    show: Callable[[dict[str, Any]], None],
    options: argparse.Namespace,
) -> None:
    """Measure, print, write. Exits 2 with one line where qbpass refuses."""
    try:
        with Steps() as steps:
            results = measure(options, steps)
    except QbpassError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(2)
    show(results)
    if options.json is not None:
        write_json(options.json, {**_conditions(options), **plain(results)})


def _conditions(options: argparse.Namespace) -> dict[str, Any]:
    import onnxruntime as ort

    return {
        "benchmark": Path(sys.argv[0]).stem,
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "onnxruntime": ort.__version__,
        "threads": options.threads,
        "rounds": options.rounds,
    }
