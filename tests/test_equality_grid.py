"""The equality grid: no cell is blank, none hides a difference, and what is written down is a whole grid."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from grid.axes import EXPORTERS, LAYOUTS, PREFILLS, REAL, WIDTHS, Cell, Model, cells, models  # noqa: E402
from grid.builder import missing_builder  # noqa: E402
from grid.models import model_file  # noqa: E402
from grid.outcome import Outcome  # noqa: E402
from grid.replayed import Size, compared, measured  # noqa: E402
from grid.table import markdown  # noqa: E402

from qbpass.models.loading import load_decoder  # noqa: E402
from qbpass.models.session import SessionSpec  # noqa: E402
from qbpass.runtime.engine import Engine  # noqa: E402

NO_DECODER = """<ir_version: 10, opset_import: ["" : 18]>
g (float[2] x) => (float[2] y) { y = Neg (x) }"""


def run_grid(file: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
    command = [sys.executable, str(ROOT / "benchmarks" / "equality_grid.py"), *options, "--json", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert file.is_file(), ended.stderr[-2000:]
    return ended.returncode, json.loads(file.read_text())["cells"]


QUICK = [
    ("eager", "dynamic-int8", "qb", "whole"),
    ("sdpa", "fp16", "pq", "chunks:4"),
    ("onnx", "int4-128", "qb", "one"),
    ("genai", "builder-int4", "auto", "whole"),
]


@pytest.mark.parametrize(("exporter", "weights", "layout", "prefill"), QUICK)
def test_a_cell_of_each_exporter_is_equal_in_every_width(
    exporter: str, weights: str, layout: str, prefill: str
) -> None:
    if exporter == "genai" and (reason := missing_builder()):
        pytest.skip(reason)
    decoder = load_decoder(model_file(Model(exporter, weights)))
    outcome = measured(decoder, layout, prefill, SessionSpec(threads=2), Size())
    assert outcome.ending == "equal", outcome
    assert outcome.equal == outcome.rows
    assert set(outcome.rows) == set(WIDTHS)
    assert sum(outcome.native_equal.values()) < sum(outcome.rows.values())  # plain speculation's rows can differ


def test_the_script_runs_a_part_of_the_grid_and_keeps_what_it_ran_before(tmp_path: Path) -> None:
    part = ["--exporter", "eager", "--weights", "fp32", "--prefill", "whole"]
    _, (before,) = run_grid(tmp_path / "grid.json", *part, "--layout", "gs")
    code, found = run_grid(tmp_path / "grid.json", *part, "--layout", "gs", "--layout", "qb", "--missing")
    assert (code, found[0]) == (0, before)
    assert [(cell["layout_asked"], cell["ending"]) for cell in found] == [("gs", "equal"), ("qb", "equal")]


@pytest.mark.slow
def test_every_cell_of_the_grid_is_equal_refused_with_a_code_or_falsified_with_a_witness(tmp_path: Path) -> None:
    code, found = run_grid(tmp_path / "grid.json")
    assert [cell for cell in found if cell["failed"]] == []
    assert (code, len(found)) == (0, len(cells([], [], [], [])))


@pytest.mark.slow
@pytest.mark.real_model
def test_the_cells_of_a_real_model_are_equal_and_plain_speculation_is_not(tmp_path: Path) -> None:
    code, found = run_grid(tmp_path / "grid.json", "--smollm2")
    assert (code, [cell["ending"] for cell in found]) == (0, ["equal"] * len(REAL))
    assert all(cell["native_equal"]["4"] < cell["rows"]["4"] for cell in found)


class Counting:
    """A target whose row of logits is made of its token, and the last of `wrong` or more rows a little off."""

    vocab_size, context_length, max_queries = 50, None, 4

    def __init__(self, wrong: int | None = None):
        self.wrong = wrong

    def start(self, rows: int) -> None:
        self.length = 0

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        self.length = len(tokens)
        return self._rows(tokens[-1:])

    def verify(self, tokens: Sequence[int]) -> np.ndarray:
        rows = self._rows(tokens)
        self.length += len(tokens)
        if self.wrong is not None and len(tokens) >= self.wrong:
            rows[-1, 0] = np.nextafter(rows[-1, 0], np.float32(1))
        return rows

    def rollback(self, length: int) -> None:
        self.length = length

    def _rows(self, tokens: Sequence[int]) -> np.ndarray:
        rows = np.zeros((len(tokens), self.vocab_size), np.float32)
        rows[np.arange(len(tokens)), [(7 * token + 1) % self.vocab_size for token in tokens]] = 1
        return rows


def compared_with(repaired: Counting, reference: Counting | None = None) -> Outcome:
    targets = {"R": reference or Counting(), "C_MQ": Counting(wrong=2), "C_QB": repaired}
    arms = [SimpleNamespace(name=name, target=target, engine=Engine(target)) for name, target in targets.items()]
    bundle = SimpleNamespace(manifest=SimpleNamespace(interface=SimpleNamespace(vocab_size=50)))
    return compared(bundle, arms, Size())  # type: ignore[arg-type]


def test_an_equal_cell_counts_rows_of_every_width_and_drafts_that_were_accepted() -> None:
    outcome = compared_with(Counting())
    assert outcome.ending == "equal"
    assert outcome.equal == outcome.rows
    assert set(outcome.rows) == set(WIDTHS)
    assert outcome.endpoints_equal == outcome.endpoints == 2
    assert outcome.accepted > 0
    assert outcome.native_equal[4] < outcome.rows[4]


@pytest.mark.parametrize("wrong", [2, 3, 4])
def test_the_least_difference_of_one_row_is_a_failed_cell(wrong: int) -> None:
    outcome = compared_with(Counting(wrong))
    assert (outcome.ending, outcome.failed) == ("differs", True)
    assert [width for width in WIDTHS if outcome.equal[width] < outcome.rows[width]] == list(range(wrong, 5))
    assert f"of {wrong} " in outcome.detail


class Constant(Counting):
    """Every row is the same, whatever the token."""

    def _rows(self, tokens: Sequence[int]) -> np.ndarray:
        return np.ones((len(tokens), self.vocab_size), np.float32)


def test_a_reference_whose_rows_are_all_one_shows_nothing_and_is_a_failed_cell() -> None:
    outcome = compared_with(Constant(), Constant())
    assert (outcome.ending, outcome.failed) == ("error", True)


@pytest.mark.parametrize("outcome", [Outcome("refused", "why"), Outcome("falsified"), Outcome("error", "what")])
def test_a_refusal_without_a_code_a_verdict_without_a_witness_and_an_error_are_failures(outcome: Outcome) -> None:
    assert outcome.failed


def test_a_grid_with_a_blank_cell_is_not_written() -> None:
    whole = {cell: Outcome("refused", "why", ("CODE",)) for cell in (*cells([], [], [], []), *REAL)}
    assert markdown(whole, "here").count("CODE") > len(models())
    del whole[Cell(Model("sdpa", "fp16"), "gs", "one")]
    with pytest.raises(KeyError):
        markdown(whole, "here")


def test_every_decoder_under_a_folder_is_replayed_and_what_is_none_is_named_by_a_code(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    shutil.copytree(model_file(Model("sdpa", "fp32")).parent, folder / "deep" / "sdpa")
    shutil.copytree(model_file(Model("onnx", "fp32")).parent, folder / "onnx")
    (folder / "none").mkdir()
    onnx.save(parser.parse_model(NO_DECODER), folder / "none" / "model.onnx")
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "replay_folder.py"),
        str(folder),
        "--layout",
        "pq",
        "--rows",
        "5",
    ]
    ended = subprocess.run([*command, "--json", str(tmp_path / "f")], capture_output=True, text=True, check=False)
    found = {cell["model"]: cell for cell in json.loads((tmp_path / "f").read_text())["cells"]}
    assert ended.returncode == 0, ended.stderr
    assert found["deep/sdpa/model.onnx"]["equal"] == found["deep/sdpa/model.onnx"]["rows"] != {}
    assert "NO_KV_CACHE" in found["none/model.onnx"]["codes"]
    assert not found["onnx/model.onnx"]["failed"]


#: What a cell may say: rows that are equal, codes, or a verdict with its witness. DIFFERS and ERROR are neither.
ENDED = re.compile(r"((qb|pq|gs) )?=( [1-9]\d*){4}|(?!DIFFERS|ERROR)[A-Z_]+(, [A-Z_]+)*|false \[\d+\]")


def test_what_is_written_down_has_a_line_for_every_model_and_prefill_recipe_and_no_failure() -> None:
    text = (ROOT / "docs" / "grid.md").read_text(encoding="utf-8")
    for exporter in EXPORTERS:
        section = text.split(f"\n## {exporter}: ")[1].split("\n## ")[0]
        lines = [[part.strip() for part in line.split("|")[1:-1]] for line in section.splitlines() if "|" in line][2:]
        wanted = [model.weights for model in models() if model.exporter == exporter]
        assert list(dict.fromkeys(line[0] for line in lines)) == wanted
        for weights in wanted:
            assert {line[1] for line in lines if line[0] == weights} in ({"each"}, set(PREFILLS))
        for line in lines:
            assert len(line) == len(LAYOUTS) + 3
            assert [cell for cell in line[2:-1] if not ENDED.fullmatch(cell)] == []
    real = text.split("\n## SmolLM2")[1].split("\n## ")[0]
    said = [line.split("|")[5].strip() for line in real.splitlines() if line.startswith("|")][2:]
    assert len(said) == len(REAL)
    assert [cell for cell in said if not ENDED.fullmatch(cell)] == []
