"""A witness replays from its folder alone, and a folder from a stranger can do no harm."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from probe_cases import Q, bench, case_of, counting_cache, coupled, operand, result

from qbpass.admission.probes.case import Weight
from qbpass.admission.probes.chain import CHAIN
from qbpass.admission.probes.coupling import COUPLING
from qbpass.admission.probes.falsify import ask
from qbpass.admission.probes.fills import Fill
from qbpass.admission.probes.replay import WitnessError, replay
from qbpass.admission.probes.rows import ROWS
from qbpass.admission.probes.trial import Runner
from qbpass.admission.probes.witness import WITNESS_FILE
from qbpass.models.errors import ProviderError, QbpassError


@pytest.fixture
def witness(tmp_path: Path) -> Path:
    """A case whose rows share one scale: false on every machine."""
    place = bench(tmp_path / "cache")
    folder = ask(coupled(), COUPLING, place, Runner(coupled(), place.spec)).witness
    assert folder is not None
    return Path(shutil.copytree(folder, tmp_path / "moved"))


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / WITNESS_FILE
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def test_a_moved_witness_is_reproduced_with_its_recorded_bytes(witness: Path) -> None:
    found = replay(witness)
    assert found.reproduced
    assert found.bytes_as_recorded
    assert found.unlike == ()


def test_a_witness_says_where_the_sides_differ_in_values_and_bytes(witness: Path) -> None:
    found = replay(witness).witness
    one, other = found.difference.alone, found.difference.together
    assert one.bytes != other.bytes
    for side in (one, other):
        assert np.float32(side.value) == np.frombuffer(bytes.fromhex(side.bytes), np.float32)[0]
    assert 0 < found.difference.differing <= found.difference.elements == 6
    assert found.machine["ort_version"]
    assert found.machine["threads"] == 1
    assert found.facts["rows"] == 2


def test_a_chain_of_calls_replays(tmp_path: Path) -> None:
    place = bench(tmp_path)
    folder = ask(counting_cache(), CHAIN, place, Runner(counting_cache(), place.spec)).witness
    assert folder is not None
    found = replay(folder)
    assert found.reproduced
    assert found.bytes_as_recorded


def test_a_weight_too_large_for_the_folder_is_drawn_again(tmp_path: Path) -> None:
    nodes = [
        *coupled().nodes[:1],
        helper.make_node("Div", ["x", "top"], ["z"]),
        helper.make_node("MatMul", ["z", "w"], ["y"]),
    ]
    drawn = Weight("w", TensorProto.FLOAT, (6, 5), fill=Fill(kind="normal"), seed=3)
    case = case_of(nodes, [operand("x", 1, Q, 6)], [result("y", 1, Q, 5)], (drawn,))
    place = bench(tmp_path)
    folder = ask(case, ROWS, place, Runner(case, place.spec)).witness
    assert folder is not None
    model = onnx.load(folder / "model.onnx")
    assert not model.graph.initializer
    assert replay(folder).bytes_as_recorded
    edit(folder, lambda value: value["drawn"][0].update(seed=4))
    with pytest.raises(WitnessError, match="draws other values"):
        replay(folder)


def test_sides_that_are_equal_here_are_not_reproduced(witness: Path) -> None:
    def one_side(value: dict[str, Any]) -> None:
        value["together"] = value["alone"]

    edit(witness, one_side)
    found = replay(witness)
    assert not found.reproduced
    assert not replay(witness).reproduced


def test_another_machine_is_named(witness: Path) -> None:
    edit(witness, lambda value: value["machine"].update(processor="abacus"))
    assert replay(witness).unlike[0].startswith("processor: abacus there, ")


def test_a_witness_sends_no_escapes_to_a_terminal(witness: Path) -> None:
    edit(witness, lambda value: value["machine"].update({"processor": "\x1b[2Jabacus", "\x1b]0;x": 1}))
    assert all(line.isprintable() for line in replay(witness).unlike)
    edit(witness, lambda value: value.update(operator="\x1b[2J"))
    with pytest.raises(WitnessError) as refusal:
        replay(witness)
    assert str(refusal.value).isprintable()


def _pickled(folder: Path) -> None:
    np.save(folder / "alone.0.x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)


def _promises_more_than_it_holds(folder: Path) -> None:
    with (folder / "alone.0.x.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (2**40,)})


def _link_out_of_the_folder(folder: Path) -> None:
    outside = folder.parent / "outside.npy"
    np.save(outside, np.zeros((1, 2, 6), np.float32))
    (folder / "alone.0.x.npy").unlink()
    (folder / "alone.0.x.npy").symlink_to(outside)


def _names_a_file_elsewhere(folder: Path) -> None:
    edit(folder, lambda value: value["alone"]["calls"][0]["x"].update(file="../outside.npy"))


def _huge_constant(folder: Path) -> None:
    entry = {"name": "x", "elem_type": 1, "dims": [2**31, 2**31], "fill": {"kind": "normal"}, "seed": 0, "sha256": ""}
    edit(folder, lambda value: value.update(drawn=[entry]))


def _branching_model(folder: Path) -> None:
    """Runs, if it is let: its branches only pass x on."""
    inner = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
    branch = helper.make_graph([helper.make_node("Identity", ["x"], ["inner"])], "b", [], [inner])
    yes = numpy_helper.from_array(np.array(True), "yes")
    _model(folder, [helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch)], [yes])


def _growing_model(folder: Path) -> None:
    """Runs, if it is let: it repeats x once."""
    once = numpy_helper.from_array(np.array([1, 1, 1]), "once")
    _model(folder, [helper.make_node("Tile", ["x", "once"], ["y"])], [once])


def _external_weights(folder: Path) -> None:
    (folder / "weights").write_bytes(b"\0" * 4)
    tensor = TensorProto(name="w", dims=[1], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="weights")
    _model(folder, [helper.make_node("Add", ["x", "w"], ["y"])], [tensor])


def _model(folder: Path, nodes: list[onnx.NodeProto], constants: list[TensorProto] | None = None) -> None:
    names = {"x", *(name for node in nodes for name in node.input)}
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, None)
        for n in sorted(names - {t.name for t in constants or []})
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", inputs, [output], constants or [])
    (folder / "model.onnx").write_bytes(helper.make_model(graph).SerializeToString())


def _truncated(folder: Path) -> None:
    (folder / WITNESS_FILE).write_text((folder / WITNESS_FILE).read_text()[:200])


def _not_a_model(folder: Path) -> None:
    (folder / "model.onnx").write_bytes(b"no model")


def _lacks_a_file(folder: Path) -> None:
    (folder / "alone.0.x.npy").unlink()


def _compares_what_is_not_there(folder: Path) -> None:
    edit(folder, lambda value: value["alone"].update(cuts={"nothing": []}))


def _carries_from_nowhere(folder: Path) -> None:
    edit(folder, lambda value: value["alone"]["calls"][0].update(x={"carried": "y"}))


def _cuts_too_much(folder: Path) -> None:
    edit(folder, lambda value: value["alone"]["cuts"].update(y=[{"axis": 7, "start": 0, "stop": 1}]))


def _vast(folder: Path) -> None:
    with (folder / WITNESS_FILE).open("ab") as file:
        file.write(b" " * 2**21)


def _no_threads(folder: Path) -> None:
    edit(folder, lambda value: value["machine"].update(threads=10**9))


def _unknown_provider(folder: Path) -> None:
    edit(folder, lambda value: value["machine"].update(provider="AbacusExecutionProvider"))


@pytest.mark.parametrize(
    "damage",
    [
        _pickled, _promises_more_than_it_holds, _link_out_of_the_folder, _names_a_file_elsewhere,
        _truncated, _not_a_model, _lacks_a_file, _vast, _no_threads,
        _compares_what_is_not_there, _carries_from_nowhere, _cuts_too_much, _unknown_provider,
    ],
)  # fmt: skip
def test_a_hostile_or_damaged_witness_is_refused_in_one_line_at_once(
    damage: Callable[[Path], None], witness: Path
) -> None:
    damage(witness)
    started = time.monotonic()
    with pytest.raises(QbpassError) as refusal:
        replay(witness)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 700
    assert time.monotonic() - started < 10


def test_a_constant_of_any_size_is_refused_before_it_is_drawn(witness: Path) -> None:
    _huge_constant(witness)
    with pytest.raises(WitnessError, match=r"can't be drawn \(too large\)"):
        replay(witness)


@pytest.mark.parametrize("damage", [_branching_model, _growing_model, _external_weights])
def test_a_model_that_no_probe_writes_is_refused_before_it_is_run(
    damage: Callable[[Path], None], witness: Path
) -> None:
    damage(witness)
    with pytest.raises(WitnessError, match="is not a model that probes write"):
        replay(witness)


def test_a_witness_of_a_provider_that_is_not_here_is_an_error_and_runs_on_no_other(witness: Path) -> None:
    import onnxruntime

    absent = [
        name for name in ("CUDA", "OpenVINO") if f"{name}ExecutionProvider" not in onnxruntime.get_available_providers()
    ]
    assert absent
    edit(witness, lambda value: value["machine"].update(provider=f"{absent[0]}ExecutionProvider"))
    with pytest.raises(ProviderError, match=absent[0]):
        replay(witness)
