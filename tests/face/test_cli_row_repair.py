"""What `qbpass rewrite` says of operators outside attention, and what it refuses to repair."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from quantized_exports import dynamic

from qbpass.repair_lines import repair_lines
from qbpass.rewrites.bundle import open_bundle
from qbpass.rewrites.row_repair.repair import RowRepair

Run = Callable[..., Any]

WITNESS = {
    "node": "up.3",
    "seed": 2,
    "sizes": "uneven",
    "queries": 3,
    "turn": 1,
    "row": 2,
    "max_abs_difference": 0.0009765625,
}


def kind(witness: dict[str, Any] | None = None, **facts: Any) -> dict[str, Any]:
    trial = {"rows_per_call": None, "rows": 48, "rows_differing": 12 if witness else 0, "witness": witness}
    return {"nodes": 7, "verdict": "false" if witness else "unknown", "trials": [trial]} | facts


def test_a_falsified_kind_is_a_line_with_its_witness_and_the_others_are_one_line() -> None:
    evidence = {"Wide": kind(WITNESS), "Add": kind(), "Mul": kind(nodes=1), "Odd": kind(reason="no rows", trials=[])}
    assert repair_lines([RowRepair("Wide", (), 2)], evidence) == [
        "  Wide (7 nodes): false, 12 of 48 rows differ from the row alone; first row 2 of 3 of up.3, by 0.000977 (seed "
        "2, uneven rows); repaired: 2 rows a call",
        "  rows of 2 other kind(s) of operators (8 nodes): unknown, 96 rows tried and none differs from the row alone",
        "  Odd (7 nodes): unknown, not tried: no rows",
    ]


def test_a_strangers_names_send_nothing_to_a_terminal() -> None:
    evidence = {"Wide": kind(WITNESS | {"node": "\x1b[31mred\n"}), "Odd": kind(reason="no \u202erows", trials=[])}
    for line in repair_lines([RowRepair("Wide", ())], evidence):
        assert line.isprintable()


def test_a_forced_repair_says_that_nothing_asked_for_it() -> None:
    assert repair_lines([RowRepair("Add", (), forced=True)], {"Add": kind()})[0] == (
        "  Add (7 nodes): unknown, none of 48 rows differs from the row alone; repaired as asked: one row a call"
    )


def test_rewrite_shows_every_repair_it_made(tiny_sdpa: Path, tmp_path: Path, qbpass_run: Run) -> None:
    model = dynamic(tiny_sdpa, tmp_path / "model")
    assert qbpass_run("admit", model).code == 0
    answer = qbpass_run("rewrite", model, tmp_path / "bundle", "--threads", 2)
    assert answer.code == 0
    manifest = open_bundle(tmp_path / "bundle").manifest
    shown = [line for line in answer.out.splitlines() if "repaired: one row a call" in line]
    assert [line.split(" (")[0].strip() for line in shown] == [repair.kind for repair in manifest.repairs]
    assert any(line.strip().startswith("DynamicQuantizeLinear with 3 MatMulIntegerToFloat, 64") for line in shown)
    assert "other kind(s) of operators" in answer.out


def test_rewrite_shows_no_repair_of_what_nothing_falsified(tiny_eager: Path, tmp_path: Path, qbpass_run: Run) -> None:
    answer = qbpass_run("rewrite", tiny_eager, tmp_path / "bundle", "--threads", 2)
    manifest = open_bundle(tmp_path / "bundle").manifest
    false = [kind for kind in manifest.repair_evidence.values() if kind["verdict"] == "false"]
    assert answer.out.count("repaired") == len(manifest.repairs) == len(false)
    assert "other kind(s) of operators" in answer.out


@pytest.mark.parametrize(
    ("layout", "problem"),
    [("qb", "no operator 'Conv' to force a repair of"), ("gs", "GS runs every operator one row at a time")],
)
def test_a_repair_that_can_not_be_forced_is_exit_code_1_and_writes_nothing(
    tiny_eager: Path, tmp_path: Path, qbpass_run: Run, layout: str, problem: str
) -> None:
    answer = qbpass_run(
        "rewrite", tiny_eager, tmp_path / "b", "--threads", 2, "--layout", layout, "--force-repair", "Conv"
    )
    assert answer.code == 1
    assert problem in answer.err
    assert not (tmp_path / "b").exists()
