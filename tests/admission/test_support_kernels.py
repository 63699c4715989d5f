"""The rule that reads kernel registrations: published tables, and the running wheel."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from support_models import FLOAT, attention, group_query, kernel_table, one_node, tensor_scatter

from qbpass.admission.backends.answers import FalseAnswer
from qbpass.admission.backends.describe import by_output, describe
from qbpass.admission.backends.descriptor import Descriptor, Operand
from qbpass.admission.backends.errors import SupportError
from qbpass.admission.backends.kernel_document import MAX_TABLE_BYTES, read_kernel_table
from qbpass.admission.backends.kernel_rule import KERNEL_REGISTRATION
from qbpass.admission.backends.kernel_table import KernelTable
from qbpass.admission.backends.live_kernels import live_kernels
from qbpass.admission.backends.rule import Target

CUDA = "CUDAExecutionProvider"

# Rows of docs/OperatorKernels.md of four releases, the long ones cut to the operands that matter.
ABS = "|Abs|*in* X:**T**<br> *out* Y:**T**|13+|**T** = tensor(double), tensor(float)|"
ASINH = "|Asinh|*in* input:**T**<br> *out* output:**T**|9+|**T** = tensor(double), tensor(float), tensor(float16)|"
POOL = "|AveragePool|*in* X:**T**<br> *out* Y:**T**|[7, 9]|**T** = tensor(double), tensor(float), tensor(float16)|"
TANH = "|Tanh|*in* input:**T**<br> *out* output:**T**|13+|**T** = tensor(double), tensor(float), tensor(float16)|"
RELU = "|ThresholdedRelu|*in* X:**T**<br> *out* Y:**T**|10+|**T** = tensor(double), tensor(float), tensor(float16)|"
SCATTER = (
    "|TensorScatter|*in* past_cache:**T**<br> *in* update:**T**<br> *in* write_indices:**tensor(int64)**<br> *out* "
    "present_cache:**T**|24+|**T** = tensor(bfloat16), tensor(float), tensor(float16)|"
)
_ATTENTION = (
    "*in* Q:**T1**<br> *in* K:**T1**<br> *in* V:**T2**<br> *in* attn_mask:**U**<br> *out* Y:**T1**|{}|**T1** = "
    "tensor(bfloat16), tensor(float), tensor(float16)<br/> **T2** = tensor(bfloat16), tensor(float), tensor(float16)"
    "<br/> **U** = tensor(bfloat16), tensor(bool), tensor(float), tensor(float16)|"
)
GQA_OPERANDS = (
    "*in* query:**T**<br> *in* key:**T**<br> *in* value:**T**<br> *in* past_key:**{0}**<br> *in* past_value:**{0}**"
    "<br> *in* seqlens_k:**M**<br> *in* total_sequence_length:**M**<br> *out* output:**T**"
)
GQA_123 = (
    f"|GroupQueryAttention|{GQA_OPERANDS.format('T')}|1+|**M** = tensor(int32)<br/> **T** = tensor(bfloat16), "
    "tensor(float16)|"
)
GQA_125 = (
    f"|GroupQueryAttention|{GQA_OPERANDS.format('T_CACHE')}|1+|**M** = tensor(int32)<br/> **T** = tensor(bfloat16), "
    "tensor(float16)<br/> **T_CACHE** = tensor(bfloat16), tensor(float16), tensor(int8)|"
)
RELEASES = {
    "1.23.0": ([ABS, ASINH, POOL, TANH, RELU], GQA_123),
    "1.24.1": ([ABS, ASINH, POOL, TANH, RELU], GQA_123),
    "1.25.0": ([ABS, ASINH, f"|Attention|{_ATTENTION.format('23+')}", POOL, TANH, RELU], GQA_125),
    "1.30.0": (
        [
            *(ABS, ASINH, f"|Attention|{_ATTENTION.format('24+')}"),
            *("|||23|" + _ATTENTION.format("").split("||")[1], POOL, TANH, SCATTER, RELU),
        ],
        GQA_125,
    ),
}


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, KernelTable]:
    """Four releases' tables, each read from a file named as the release's."""
    found = {}
    for release, (rows, gqa) in RELEASES.items():
        text = kernel_table(
            CPU={"ai.onnx": "\n".join(RELEASES["1.30.0"][0])},
            CUDA={"ai.onnx": "\n".join(rows), "com.microsoft": gqa},
        )
        (tmp_path / f"OperatorKernels-{release}.md").write_text(text, encoding="utf-8")
        found[release] = read_kernel_table(tmp_path / f"OperatorKernels-{release}.md")
    return found


def asked(model: onnx.ModelProto, table: KernelTable, provider: str = CUDA) -> FalseAnswer | None:
    (descriptor,) = describe(model, by_output({}))
    return KERNEL_REGISTRATION.check(descriptor, Target("b", provider, table.version, table))


@pytest.mark.parametrize(("release", "false"), [("1.24.1", True), ("1.25.0", False), ("1.30.0", False)])
def test_onnx_attention_on_cuda_came_with_1_25(tables: dict[str, KernelTable], release: str, false: bool) -> None:
    answer = asked(attention(), tables[release])
    assert (answer is not None) == false
    if answer is not None:
        assert [row["operator"] for row in answer.evidence["rows"]] == ["Asinh", "AveragePool"]
        assert [row["text"] for row in answer.evidence["rows"]] == [ASINH, POOL]
        first, second = (row["line"] for row in answer.evidence["rows"])
        assert second == first + 1, "Attention would stand between two lines that follow each other"
        assert answer.evidence["elsewhere"][0]["provider"] == "CPUExecutionProvider"
        assert "function body" in answer.reason


@pytest.mark.parametrize(("release", "false"), [("1.24.1", True), ("1.25.0", True), ("1.30.0", False)])
def test_tensor_scatter_on_cuda_is_not_in_1_24(tables: dict[str, KernelTable], release: str, false: bool) -> None:
    assert (asked(tensor_scatter(), tables[release]) is not None) == false


@pytest.mark.parametrize("release", RELEASES)
def test_group_query_attention_in_float32_is_in_no_table_for_cuda(tables: dict[str, KernelTable], release: str) -> None:
    answer = asked(group_query(), tables[release])
    assert answer is not None
    (row,) = answer.evidence["rows"]
    assert row["text"] == RELEASES[release][1]
    assert answer.evidence["constraint"] == "T"
    assert answer.evidence["type"] == "tensor(float)"
    assert asked(group_query(TensorProto.FLOAT16), tables[release]) is None


def test_evidence_is_the_tables_own_line(tables: dict[str, KernelTable], tmp_path: Path) -> None:
    answer = asked(group_query(), tables["1.30.0"])
    assert answer is not None
    lines = (tmp_path / answer.evidence["table"]).read_text(encoding="utf-8").splitlines()
    for row in answer.evidence["rows"]:
        assert lines[row["line"] - 1] == row["text"]
    first, last = answer.evidence["section_lines"]
    assert first <= answer.evidence["rows"][0]["line"] <= last


def test_the_quantized_cache_has_a_type_parameter_of_its_own(tables: dict[str, KernelTable]) -> None:
    """past_key stands for T_CACHE from 1.25 on: int8 there is allowed, and in 1.24 it was T."""
    model = group_query(TensorProto.FLOAT16)
    for value in model.graph.input:
        if value.name.startswith("past_"):
            value.type.tensor_type.elem_type = TensorProto.INT8
    assert asked(model, tables["1.25.0"]) is None
    (descriptor,) = describe(model, by_output({}))
    assert descriptor.inputs[3] is not None
    assert descriptor.inputs[3].elem_type == "tensor(int8)"


def test_a_registration_without_an_end_is_for_its_first_version_alone(tables: dict[str, KernelTable]) -> None:
    answer = asked(attention(opset=24), tables["1.25.0"])
    assert answer is not None
    assert "for 23+, and opset 24 has its version 24" in answer.reason
    assert asked(attention(opset=24), tables["1.30.0"]) is None
    assert asked(attention(opset=23), tables["1.30.0"]) is None


@pytest.mark.parametrize(
    ("versions", "served"),
    [("13+", {13}), ("[6, 12]", {6, 9, 12}), ("13", {13}), ("[1, 25]", {1, 5, 6, 9, 12, 13, 14})],
)
def test_versions_are_matched_as_onnx_runtime_matches_them(tmp_path: Path, versions: str, served: set[int]) -> None:
    row = f"|Tanh|*in* input:**T**<br> *out* output:**T**|{versions}|**T** = tensor(float)|"
    path = tmp_path / "kernels.md"
    path.write_text(kernel_table(CUDA={"ai.onnx": row}), encoding="utf-8")
    (found,) = read_kernel_table(path).section(CUDA, "").of("Tanh")
    assert {version for version in (1, 5, 6, 9, 12, 13, 14) if found.serves(version)} == served
    assert found.versions == versions


def test_a_row_without_a_name_has_the_operands_of_the_one_above(tmp_path: Path) -> None:
    rows = (
        "|Skip|*in* input:**T**<br> *in* mask:**M**<br> *out* output:**T**|2+|**M** = tensor(int32)<br/> **T** = "
        "tensor(float)|\n|||1|**M** = tensor(int64)<br/> **T** = tensor(float)|"
    )
    path = tmp_path / "kernels.md"
    path.write_text(kernel_table(CUDA={"com.microsoft": rows}), encoding="utf-8")
    operands = (Operand("tensor(float)"), Operand("tensor(int32)"))
    target = Target("b", CUDA, None, read_kernel_table(path))
    for version, refuted in ((2, False), (1, True)):
        skip = Descriptor("Skip", "com.microsoft", version, version, operands, (Operand("tensor(float)"),))
        assert (KERNEL_REGISTRATION.check(skip, target) is not None) == refuted


def test_of_several_forms_of_the_operands_the_newest_counts(tmp_path: Path) -> None:
    row = (
        "|Skip|*in* input:**T**<br> *out* output:**T**<br><br>or<br><br>*in* mask:**M**<br> *out* output:**T**|1+|"
        "**M** = tensor(int64)<br/> **T** = tensor(float)|"
    )
    path = tmp_path / "kernels.md"
    path.write_text(kernel_table(CUDA={"com.microsoft": row}), encoding="utf-8")
    two = Descriptor("Skip", "com.microsoft", 1, 1, (Operand("tensor(float)"), Operand("tensor(int32)")))
    assert KERNEL_REGISTRATION.check(two, Target("b", CUDA, None, read_kernel_table(path))) is None


def test_a_provider_or_a_domain_that_no_table_lists_is_not_refuted(tables: dict[str, KernelTable]) -> None:
    table = tables["1.30.0"]
    assert asked(attention(), table, provider="DmlExecutionProvider") is None
    custom = Descriptor("Attention", domain="com.acme", since=1)
    assert KERNEL_REGISTRATION.check(custom, Target("b", CUDA, table.version, table)) is None


def test_a_domain_that_another_provider_has_is_refuted(tables: dict[str, KernelTable]) -> None:
    table = tables["1.30.0"]
    fused = Descriptor("GroupQueryAttention", domain="com.microsoft", since=1)
    assert KERNEL_REGISTRATION.check(fused, Target("b", "CPUExecutionProvider", table.version, table)) is not None


def test_an_unknown_type_or_version_refutes_nothing(tables: dict[str, KernelTable]) -> None:
    target = Target("b", CUDA, "1.30.0", tables["1.30.0"])
    untyped = Descriptor("Tanh", since=13, inputs=(Operand(parameter="T"),), outputs=(Operand(parameter="T"),))
    assert KERNEL_REGISTRATION.check(untyped, target) is None
    assert KERNEL_REGISTRATION.check(Descriptor("Tanh"), target) is None
    whole = Descriptor("Tanh", since=13, inputs=(Operand("tensor(int64)", parameter="T"),))
    assert KERNEL_REGISTRATION.check(whole, target) is not None


REFUSED = {
    "empty": (b"", "no table of registered kernels"),
    "prose": (b"# Hello\n\nThis is a text.\n", "no table of registered kernels"),
    "heading alone": (b"## Operators implemented by CUDAExecutionProvider\n", "no table of registered kernels"),
    "binary": (bytes(range(128, 256)), "is not text"),
    "no version": (kernel_table(CUDA={"ai.onnx": "|Tanh|x|soon|**T** = tensor(float)|"}).encode(), "line 9 of"),
    "too few cells": (kernel_table(CUDA={"ai.onnx": "|Tanh|13+|"}).encode(), "line 9 of"),
    "no operator": (kernel_table(CUDA={"ai.onnx": "|||13+|**T** = tensor(float)|"}).encode(), "line 9 of"),
    "too large": (b"x" * (MAX_TABLE_BYTES + 1), "bytes: this is no table"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_is_no_kernel_table_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    data, why = REFUSED[case]
    (tmp_path / "table.md").write_bytes(data)
    with pytest.raises(SupportError) as refused:
        read_kernel_table(tmp_path / "table.md")
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_table_of_another_version_than_is_said_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "OperatorKernels-1.24.1.md"
    path.write_text(kernel_table(CUDA={"ai.onnx": TANH}), encoding="utf-8")
    assert read_kernel_table(path).version == "1.24.1"
    assert read_kernel_table(path, "1.24.1").version == "1.24.1"
    with pytest.raises(SupportError, match=r"named for version 1\.24\.1"):
        read_kernel_table(path, "1.25.0")
    with pytest.raises(SupportError, match="is not a file"):
        read_kernel_table(tmp_path)


@pytest.fixture(scope="module")
def running() -> KernelTable:
    table, told = live_kernels()
    assert table is not None, told
    return table


def test_the_running_wheel_says_what_it_registers(running: KernelTable) -> None:
    assert running.version == ort.__version__
    assert running.has_provider("CPUExecutionProvider")
    assert asked(group_query(), running, "CPUExecutionProvider") is None
    assert asked(attention(), running, "CPUExecutionProvider") is None
    assert asked(group_query(TensorProto.DOUBLE), running, "CPUExecutionProvider") is not None


def runs(model: onnx.ModelProto) -> bool:
    """Whether ONNX Runtime makes a session of it on the CPU provider alone."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        if "NOT_IMPLEMENTED" in str(error):
            return False
        raise
    return True


IMAGE = (1, 2, 3, 3)
CASES = {
    "GlobalLpPool 21": one_node("GlobalLpPool", [("x", FLOAT, IMAGE)], [("y", FLOAT, None)], opset=21),
    "GlobalLpPool 22": one_node("GlobalLpPool", [("x", FLOAT, IMAGE)], [("y", FLOAT, None)], opset=22),
    "Cos 21": one_node("Cos", [("x", FLOAT, IMAGE)], [("y", FLOAT, None)], opset=21),
    "Cos 22": one_node("Cos", [("x", FLOAT, IMAGE)], [("y", FLOAT, None)], opset=22),
    **{
        f"{operator} {kind}": one_node(operator, [("x", kind, IMAGE)], [("y", kind, None)], opset=14)
        for operator in ("Relu", "Abs", "Neg")
        for kind in (
            FLOAT,
            TensorProto.DOUBLE,
            TensorProto.INT8,
            TensorProto.INT16,
            TensorProto.INT32,
            TensorProto.INT64,
        )
    },
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_refuted_of_the_running_wheel_does_not_run_and_what_runs_is_not_refuted(
    running: KernelTable, case: str
) -> None:
    """For operators without a function body, and types that ONNX Runtime puts no Cast around."""
    refuted = asked(CASES[case], running, "CPUExecutionProvider") is not None
    assert refuted == (not runs(CASES[case]))


def test_both_outcomes_are_among_those_cases(running: KernelTable) -> None:
    outcomes = {asked(model, running, "CPUExecutionProvider") is None for model in CASES.values()}
    assert outcomes == {True, False}


def test_a_wheel_that_crashes_says_nothing(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nkill -SEGV $$\n")
    python.chmod(0o755)
    table, told = live_kernels(python=str(python))
    assert table is None
    assert "signal 11" in told


@pytest.mark.parametrize(
    "script",
    ["echo not json", "exit 3", 'echo \'{"version": "1", "kernels": [[1]], "schemas": []}\'', "exec sleep 30"],
)
def test_an_answer_that_can_not_be_read_says_nothing(tmp_path: Path, script: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    table, told = live_kernels(timeout=2, python=str(python))
    assert table is None
    assert "kernels" in told
    assert "\n" not in told


def test_a_folder_named_onnxruntime_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    table, told = live_kernels(python=sys.executable)
    assert table is not None, told


def test_what_the_functions_of_a_model_hold_is_asked_about() -> None:
    """A call of a model's own function is inlined by every runtime: its nodes count, the call does not."""
    body = helper.make_function(
        "acme", "Twice", ["x"], ["y"], [helper.make_node("Tanh", ["x"], ["y"])], [helper.make_opsetid("", 14)]
    )
    model = one_node("Twice", [("x", FLOAT, (2,))], [("y", FLOAT, (2,))], opset=14, domain="acme")
    model.functions.append(body)
    model.opset_import.append(helper.make_opsetid("acme", 1))
    assert [descriptor.operator for descriptor in describe(model, by_output({}))] == ["Tanh"]
