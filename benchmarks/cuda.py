"""The whole check of qbpass on CUDA in one command, for a GPU machine that was never seen before.

Names the GPU and every version, then for each model (float32, float16, and onnxruntime-genai's fused form of a tiny
one): freezes it on the provider, says where each node was placed, asks the probes, admits, compares TF32 off and on,
rewrites it as QB and as PQ with the whole decoder tried against serial decoding, and runs each bundle: serial decoding
twice, the KV cache's device, calls repeated as the capture of a CUDA graph repeats them, injected faults, CUDA graphs
on and off, and the arms R, C_MQ and the layout's own with endpoints, the forced replay's rows and ratios.

Each step runs in a process of its own; the check goes on behind one that fails, crashes or hangs, and says so. With
--provider cpu every line but CUDA's own runs, on any machine.

Exit code: 0 every step answered and everything promised was equal, 1 something failed or was not equal, 2 nothing
could be checked.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu_check.outcome import Outcome, answered, answered_apart
from gpu_check.steps import STEPS
from gpu_check.table import line, report
from measuring.script import positive

from qbpass.json_file import write_json, write_text
from qbpass.models.cache import cache_folder
from qbpass.models.session import SessionSpec

LAYOUTS = ("qb", "pq")
TINY, SMOLLM2 = "builtin:tiny", "builtin:smollm2-135m"


class Check:
    """Asks steps, keeps their outcomes, and writes them down after each: a run that is killed leaves its results."""

    def __init__(self, options: argparse.Namespace, work: Path):
        self.options, self.work = options, work
        self.outcomes: list[Outcome] = []
        spec = SessionSpec(options.provider, options.threads)
        self._common = {
            "spec": asdict(spec),
            "tokens": options.tokens,
            "prompts": options.prompts,
            "replay_rows": options.replay_rows,
            "repeats": options.repeats,
        }

    def ask(self, step: str, **question: Any) -> dict[str, Any] | None:
        """What the step found; None where it did not come to an answer."""
        asked = {**self._common, **question}
        if self.options.in_process:
            outcome = answered(step, STEPS[step], asked)
        else:
            outcome = answered_apart(step, asked, self.options.limit)
        self.outcomes.append(outcome)
        print(line(outcome), flush=True)
        self.write()
        return dict(outcome.found) if outcome.status == "ok" else None

    def write(self) -> None:
        if self.options.json is not None:
            write_json(self.options.json, self.results())
        if self.options.text is not None:
            write_text(self.options.text, report(self.outcomes))

    def results(self) -> dict[str, Any]:
        return {
            "benchmark": "cuda",
            "provider": self.options.provider,
            "exit_code": self.exit_code,
            "verified_on_a_gpu": self.options.provider == "cuda" and self.exit_code == 0,
            "steps": [outcome.to_json() for outcome in self.outcomes],
        }

    @property
    def exit_code(self) -> int:
        if not any(outcome.step == "arms" for outcome in self.outcomes):
            return 2
        compared = any(outcome.step == "arms" and outcome.status == "ok" for outcome in self.outcomes)
        return 0 if compared and not any(outcome.bad for outcome in self.outcomes) else 1


def check_all(check: Check) -> None:
    check.ask("machine")
    if check.ask("session") is None:
        return
    for name, made in models(check):
        work = check.work / name.replace(" ", "-").replace("/", "-").replace(":", "-")
        if made is not None:
            check_model(check, name, made["path"], work)
            shutil.rmtree(work, ignore_errors=True)


def models(check: Check) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """(name, what made it): each model named, then in float16; then the tiny one of onnxruntime-genai."""
    for model in check.options.models or default_models():
        made = check.ask("export", name=model, model=model)
        yield model, made
        if made is not None and not check.options.no_half:
            name = f"{model} fp16"
            folder = check.work / f"half-{len(check.outcomes)}"
            yield name, check.ask("half", name=name, path=made["path"], work=str(folder))
            shutil.rmtree(folder, ignore_errors=True)
    if not check.options.no_genai:
        yield "genai tiny", check.ask("genai", name="genai tiny", work=str(check.work / "genai"))


def default_models() -> list[str]:
    """SmolLM2 only where its export is kept already: nothing large is made or fetched unasked."""
    kept = any((cache_folder() / "exports").glob("smollm2-135m-eager-*"))
    return [TINY, SMOLLM2] if kept else [TINY]


def check_model(check: Check, name: str, path: str, work: Path) -> None:
    ask: Callable[..., Any] = lambda step, **more: check.ask(step, name=name, path=path, work=str(work), **more)  # noqa: E731
    ask("placement")
    ask("admission")
    if not check.options.no_probes:
        ask("probes")
    ask("tf32")
    for layout in LAYOUTS:
        written = ask("rewrite", layout=layout)
        if written is None:
            continue
        bundle = {"bundle": written["bundle"], "layout": layout}
        for step in ("serial again", "device cache", "repeated calls", "faults", "graphs", "arms"):
            ask(step, **bundle)


def main() -> int:
    options = parser().parse_args()
    started = time.perf_counter()
    work = Path(tempfile.mkdtemp(prefix="qbpass."))
    check = Check(options, work)
    try:
        check_all(check)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        check.write()
    print(f"\n{report(check.outcomes)}\n{time.perf_counter() - started:,.0f} s; exit code {check.exit_code}")
    if check.exit_code == 2:
        failed = next((outcome for outcome in check.outcomes if outcome.bad), None)
        print(f"cuda.py: {failed.message if failed else 'no layout could be written'}", file=sys.stderr)
    return check.exit_code


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help=f"an .onnx file, an export's folder, or a builtin (default: {TINY}, and {SMOLLM2} where it is exported)",
    )
    made.add_argument(
        "--provider", choices=("cuda", "cpu"), default="cuda", help="cpu rehearses (default: %(default)s)"
    )
    for name, default, what in (
        ("threads", 2, "intra-op threads"),
        ("tokens", 64, "new tokens of a prompt"),
        ("prompts", 4, "prompts"),
        ("replay-rows", 16, "rows of a prompt whose logits are compared"),
        ("repeats", 3, "timed runs of each arm"),
        ("limit", 900, "seconds a step may take"),
    ):
        made.add_argument(
            f"--{name}", type=positive, default=default, metavar="N", help=f"{what} (default: %(default)s)"
        )
    made.add_argument("--no-probes", action="store_true", help="leave the probes out: the longest step")
    made.add_argument("--no-half", action="store_true", help="leave float16 out")
    made.add_argument("--no-genai", action="store_true", help="leave onnxruntime-genai's form out")
    made.add_argument("--in-process", action="store_true", help="all steps in one process: for a debugger")
    made.add_argument("--json", type=Path, metavar="F", help="also write the results to F")
    made.add_argument("--text", type=Path, metavar="F", help="also write the table to F")
    return made


if __name__ == "__main__":
    sys.exit(main())
