"""Every rule: it refutes what it says it refutes, it never says more, and it speaks for the versions it was read in."""

from __future__ import annotations

import ast
import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from support_models import FLOAT, group_query

from qbpass.admission import backends
from qbpass.admission.backends.answers import Answer, FalseAnswer, SupportReport, Verdict
from qbpass.admission.backends.ask import ask, speaks_for
from qbpass.admission.backends.describe import describe
from qbpass.admission.backends.descriptor import Descriptor, Operand
from qbpass.admission.backends.document import support_document
from qbpass.admission.backends.errors import SupportError
from qbpass.admission.backends.kernel_table import KernelRow, KernelTable, Section
from qbpass.admission.backends.registry import BUILTIN, Known, known_backends
from qbpass.admission.backends.rule import Backend, Source, SupportRule, Target
from qbpass.admission.backends.versions import VersionRange

RULES = {rule.name: rule for backend in BUILTIN for rule in backend.rules}
TYPES = ("tensor(float)", "tensor(float16)", "tensor(int64)", "tensor(bool)", None)


def tensor(*shape: int | str, kind: str = "tensor(float)") -> Operand:
    return Operand(kind, shape, parameter="T")


def microsoft(operator: str, *inputs: Operand | None, **attributes: Any) -> Descriptor:
    return Descriptor(operator, "com.microsoft", 1, 1, inputs, attributes=tuple(sorted(attributes.items())))


def gqa(*extra: int, batch: int = 1, queries: int | None = 4, **attributes: Any) -> Descriptor:
    """Operands 0 to 6 and those of `extra`."""
    cache = tensor(batch, 2, "past", attributes.pop("width", 8))
    first = [tensor(batch, "q", 32), tensor(batch, "q", 16), tensor(batch, "q", 16), cache, cache]
    operands: list[Operand | None] = [*first, tensor(1, kind="tensor(int32)"), tensor(1, kind="tensor(int32)")]
    operands += [tensor(8) if index in extra else None for index in range(7, 16)]
    numbers = {"num_heads": 4, "kv_num_heads": 2, **attributes}
    return replace(microsoft("GroupQueryAttention", *operands, **numbers), site="attention.0", queries=queries)


def onnx_attention(*, inputs: int = 3, outputs: int = 1, rank: int = 4, **attributes: Any) -> Descriptor:
    shape = (1, 2, 3, 8)[4 - rank :]
    operands = (tensor(*shape),) * inputs
    return Descriptor("Attention", "", 23, 23, operands, (tensor(*shape),) * outputs, tuple(attributes.items()))


def mul_mat(first: int, second: int) -> Descriptor:
    sources = (Operand("tensor(float)", (64, "n", 3, first)), Operand("tensor(float)", (64, 1, 9, second)))
    return Descriptor("mul_mat", "ggml", inputs=sources, queries=second)


MATMUL = Descriptor("MatMul", "", 18, 13, (tensor(1, 2, 3, 8), tensor(1, 2, 8, 3)), (tensor(1, 2, 3, 3),))
DYNAMIC = replace(MATMUL, inputs=(tensor(1, 2, "q", 8), tensor(1, 2, 8, 3)))
FUSED = microsoft("FusedMatMul", tensor(2, 3, 8), tensor(5, 2, 8), transB=1, transBatchB=1)
SCATTER = Descriptor("ScatterND", "", 18, 18, (tensor(8, 4), tensor(1, 1, kind="tensor(int64)"), tensor(1, 4)))
IF = Descriptor("If", "", 18, 16, (tensor(kind="tensor(bool)"),), bodies=("else_branch", "then_branch"))
STATIC_CACHE = Descriptor("TensorScatter", "", 24, 24, (tensor(1, 2, 8, 4), tensor(1, 2, 1, 4)))

#: rule -> (what it refutes, the nearest thing that it says nothing about)
EXAMPLES: dict[str, tuple[list[Descriptor], list[Descriptor]]] = {
    "ort-cpu-gqa-batch": ([gqa(batch=2)], [gqa(batch=2, queries=1), gqa(batch=1), gqa(batch=2, queries=None)]),
    "ort-cuda-gqa-batch": ([gqa(batch=3, queries=2)], [gqa(batch=2, queries=1), MATMUL]),
    "ort-cpu-gqa-geometry": ([gqa(num_heads=5), gqa(width=12)], [gqa(), gqa(num_heads=2), gqa(width=16)]),
    "ort-cuda-gqa-geometry": ([gqa(num_heads=5), gqa(width=4)], [gqa(), gqa(kv_num_heads=0)]),
    "ort-cpu-gqa-qk-norm": ([gqa(14), gqa(15), gqa(14, 15)], [gqa(), gqa(10, 11)]),
    "ort-cuda-gqa-bias": ([gqa(10), gqa(10, 11)], [gqa(), gqa(11)]),
    "ort-cuda-gqa-bias-with-sink": ([gqa(10, 11), gqa(10, smooth_softmax=1)], [gqa(10), gqa(11), gqa()]),
    "ort-cuda-graphs-control-flow": ([IF, replace(IF, operator="Loop"), replace(IF, operator="Scan")], [MATMUL]),
    "ort-tensorrt-operator": ([FUSED, Descriptor("MatMulInteger", "", 18, 10), gqa()], [MATMUL, SCATTER, IF]),
    "ort-tensorrt-attention": (
        [onnx_attention(inputs=5), onnx_attention(outputs=2), onnx_attention(rank=3), onnx_attention(softcap=30.0)],
        [onnx_attention(), onnx_attention(inputs=4), onnx_attention(softcap=0.0), MATMUL],
    ),
    "ort-tensorrt-scatter": (
        [
            replace(SCATTER, attributes=(("reduction", "add"),)),
            replace(STATIC_CACHE, attributes=(("axis", 1),)),
            replace(STATIC_CACHE, inputs=(tensor(8, 2, 4),)),
        ],
        [SCATTER, STATIC_CACHE, replace(STATIC_CACHE, attributes=(("axis", 2),)), MATMUL],
    ),
    "ort-openvino-unlisted-operator": (
        [STATIC_CACHE, Descriptor("RMSNormalization", "", 23, 23), microsoft("MultiHeadAttention")],
        [MATMUL, FUSED, gqa(), Descriptor("Anything", "com.acme")],
    ),
    "ort-openvino-attention": ([onnx_attention()], [microsoft("Attention"), MATMUL]),
    "ort-openvino-transposed-batch": (
        [FUSED, microsoft("FusedMatMul", transBatchA=1)],
        [microsoft("FusedMatMul", transB=1, alpha=0.5), microsoft("FusedMatMul", transBatchB=0), MATMUL],
    ),
    "ort-webgpu-operator": (
        [FUSED, STATIC_CACHE, onnx_attention(), Descriptor("Trilu", "", 18, 14)],
        [MATMUL, SCATTER, gqa(), microsoft("Attention"), Descriptor("Anything", "com.acme")],
    ),
    "ort-web-jsep-operator": ([FUSED, STATIC_CACHE, onnx_attention()], [MATMUL, SCATTER, gqa()]),
    "ort-coreml-operator": ([SCATTER, FUSED, IF, STATIC_CACHE, gqa()], [MATMUL, microsoft("QuickGelu")]),
    "ort-coreml-rank": (
        [replace(MATMUL, inputs=(tensor(1, 1, 1, 1, 2, 3),))],
        [MATMUL, replace(MATMUL, inputs=(tensor(1, 1, 1, 2, 3), None))],
    ),
    "ort-coreml-empty-input": (
        [replace(MATMUL, inputs=(tensor(1, 0, 8),))],
        [MATMUL, DYNAMIC, Descriptor("Resize", "", 18, 18, (tensor(1, 2), tensor(0)))],
    ),
    "ort-qnn-dynamic-shape": (
        [DYNAMIC, replace(MATMUL, outputs=(tensor("n", 3),))],
        [MATMUL, replace(MATMUL, inputs=(Operand("tensor(float)", (1, None)), Operand("tensor(float)")))],
    ),
    "ggml-vulkan-fourth-extents": ([mul_mat(1, 2), mul_mat(1, 4), mul_mat(2, 1)], [mul_mat(1, 1), mul_mat(4, 4)]),
}

TABLE_RULE = "ort-kernel-registration"


def test_every_rule_is_shown_refuting_something_and_sparing_its_neighbour() -> None:
    assert set(EXAMPLES) == set(RULES) - {TABLE_RULE}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_rule_refutes_what_it_says_and_spares_what_is_near(name: str) -> None:
    refuted, spared = EXAMPLES[name]
    target = Target("any", None, "1")
    for descriptor in refuted:
        answer = RULES[name].check(descriptor, target)
        assert isinstance(answer, FalseAnswer), descriptor
        assert answer.reason
        assert answer.evidence
    for descriptor in spared:
        assert RULES[name].check(descriptor, target) is None, descriptor


# What a hostile or a strange graph can make of a descriptor.
NAMES = sorted(
    {d.operator for pair in EXAMPLES.values() for side in pair for d in side} | {"", "Add", "\x00", "Attention"}
)
SHAPES = (None, (), (0,), (1, 2, "q", 8), (2, 3), (1, None), (64, "n", 3, 1), (64, 1, 9, 4), (-1,), (1, 1, 1, 1, 2, 3))
OPERANDS = st.sampled_from(
    [
        None,
        *(
            Operand(kind, shape, parameter=p)
            for kind in TYPES
            for shape in SHAPES
            for p in ("T", "tensor(int64)", None)
        ),
    ]
)
VALUES = st.sampled_from([-2, 0, 1, 2, 8, 12, 0.0, 30.0, float("nan"), "", "add", (), (0, 1)])
ATTRIBUTES = st.dictionaries(
    st.sampled_from(
        [
            "num_heads",
            "kv_num_heads",
            "transBatchA",
            "transBatchB",
            "softcap",
            "axis",
            "reduction",
            "smooth_softmax",
            "role",
        ]
    ),
    VALUES,
    max_size=5,
)
DESCRIPTORS = st.builds(
    Descriptor,
    operator=st.sampled_from(NAMES),
    domain=st.sampled_from(["", "com.microsoft", "ggml", "com.acme"]),
    opset=st.one_of(st.none(), st.integers(0, 30)),
    since=st.one_of(st.none(), st.integers(0, 30)),
    inputs=st.lists(OPERANDS, max_size=17).map(tuple),
    outputs=st.lists(OPERANDS, max_size=3).map(tuple),
    attributes=ATTRIBUTES.map(lambda found: tuple(sorted(found.items()))),
    bodies=st.sampled_from([(), ("body",)]),
    function_body=st.booleans(),
    queries=st.one_of(st.none(), st.integers(1, 8)),
)


def some_table() -> KernelTable:
    rows = tuple(
        KernelRow(name, start, end, {"T": frozenset({"tensor(float)"})}, f"|{name}|", 7)
        for name, start, end in [("MatMul", 13, 2**31 - 1), ("MatMul", 9, 12), ("If", 16, 18), ("Attention", 23, 23)]
    )
    sections = {
        ("CUDAExecutionProvider", ""): Section("CUDAExecutionProvider", "", rows, (7, 7)),
        ("CUDAExecutionProvider", "com.microsoft"): Section("CUDAExecutionProvider", "com.microsoft", (), None),
    }
    return KernelTable("some.md", "1.30.0", sections)


@settings(deadline=None)
@given(descriptor=DESCRIPTORS, version=st.sampled_from([None, "1.30.0", "1.24.1", "2.7.0", "10.15", "0.25.3"]))
def test_no_rule_ever_answers_anything_but_false_or_unknown(descriptor: Descriptor, version: str | None) -> None:
    for backend in BUILTIN:
        target = Target(backend.name, "CUDAExecutionProvider", version, some_table())
        report = ask(backend, [descriptor], target)
        document = support_document(report)
        verdicts = {report.verdict, document["verdict"], *(answer["verdict"] for answer in document["answers"])}
        assert verdicts <= {"false", "unknown"}
        for answer in document["answers"]:
            assert (answer["verdict"] == "false") == (answer["rule"] is not None) == bool(answer["evidence"])
        for rule in backend.rules:
            found = rule.check(descriptor, target)
            assert found is None or type(found) is FalseAnswer


def test_the_types_have_no_place_for_another_answer() -> None:
    assert set(get_args(Verdict)) == {"false", "unknown"}
    for rule in RULES.values():
        returned = inspect.signature(rule.check).return_annotation
        assert returned == "FalseAnswer | None", rule.name
    assert Answer(MATMUL).verdict == "unknown"
    assert SupportReport("b", "p", None, ()).verdict == "unknown"


def test_no_line_of_the_checker_spells_a_positive_answer() -> None:
    folder = Path(backends.__file__).parent
    words = {"true", "supported", "yes"}
    found = [
        f"{path.name}:{node.lineno}"
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.strip().lower() in words
    ]
    assert found == []


def backend_of(*rules: Any) -> Backend:
    return Backend("acme", "Acme", "acme", rules)


class Says:
    """A rule that answers everything with one value."""

    name = "acme-says"
    versions = VersionRange("1.2", "1.4")
    sources = (Source("acme", "1.2", "file.c"),)

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def check(self, descriptor: Descriptor, target: Target) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("answer", [True, "true", "supported", 1, {"verdict": "true"}, Answer(MATMUL)])
def test_a_rule_that_answers_something_else_is_an_error_that_names_it(answer: object) -> None:
    with pytest.raises(SupportError, match="acme-says") as refused:
        ask(backend_of(Says(answer)), [MATMUL], Target("acme", None, "1.3"))
    assert "\n" not in str(refused.value)


def test_a_rule_that_raises_is_one_line_that_names_it() -> None:
    with pytest.raises(SupportError, match="acme-says failed on MatMul") as refused:
        ask(backend_of(Says(KeyError("a\nb"))), [MATMUL], Target("acme", None, "1.3"))
    assert "\n" not in str(refused.value)


FALSE = FalseAnswer("no", {"row": "| MatMul | no |"})


@pytest.mark.parametrize(
    ("version", "spoken_for"),
    [
        *[(version, True) for version in ("1.2", "1.2.0", "1.3.9", "1.4", "1.4.0+cu12", "v1.3")],
        *[(version, False) for version in ("1.1.9", "1.4.1", "2.0", "1.3.0rc1", "1.3.dev0", "main", None)],
    ],
)
def test_a_rule_is_asked_only_about_the_versions_it_was_read_in(version: str | None, spoken_for: bool) -> None:
    report = ask(backend_of(Says(FALSE)), [MATMUL], Target("acme", None, version))
    assert report.verdict == ("false" if spoken_for else "unknown")
    assert report.asked == ((("acme-says", "1.2 to 1.4"),) if spoken_for else ())
    assert report.not_asked == (() if spoken_for else (("acme-says", "1.2 to 1.4"),))


def test_a_range_of_versions_that_are_none_is_a_mistake_of_its_author() -> None:
    with pytest.raises(ValueError, match="two releases"):
        VersionRange("1.2", "latest")


def test_every_rule_speaks_for_its_backends_default_version_or_a_backend_has_others_that_do() -> None:
    for backend in BUILTIN:
        target = Target(backend.name, backend.provider, backend.default_version)
        assert any(speaks_for(rule, target) for rule in backend.rules), backend.name


def test_every_rule_names_where_it_was_read() -> None:
    for rule in RULES.values():
        assert isinstance(rule, SupportRule)
        assert rule.sources
        for source in rule.sources:
            assert source.project
            assert source.version
            assert source.file


def test_names_and_aliases_find_one_backend_each() -> None:
    known = Known(BUILTIN)
    spelled = [spelling for backend in BUILTIN for spelling in (backend.name, *backend.aliases)]
    assert len({spelling.lower() for spelling in spelled}) == len(spelled)
    for backend in BUILTIN:
        for spelling in (backend.name, *backend.aliases):
            assert known.find(spelling.upper().replace("-", "_")).name == backend.name
    with pytest.raises(SupportError, match="choose one of ort-cpu, ort-cuda"):
        known.find("abacus")
    assert {backend.name for backend in BUILTIN} <= {backend.name for backend in known_backends().backends}


def run_group_query(model: onnx.ModelProto) -> None:
    """One call behind a past of four rows, on the CPU provider of the running ONNX Runtime."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    shapes = {value.name: [d.dim_value for d in value.type.tensor_type.shape.dim] for value in model.graph.input}
    batch, rows = shapes["query"][:2]
    feeds = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    feeds["seqlens_k"] = np.full(batch, 4 + rows - 1, np.int32)
    feeds["total_sequence_length"] = np.array([4 + rows], np.int32)
    session.run(None, feeds)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("ort-cpu-gqa-batch", {"batch": 2, "rows": 3}),
        ("ort-cpu-gqa-geometry", {"width": 12}),
        ("ort-cpu-gqa-geometry", {"heads": 5}),
        ("ort-cpu-gqa-qk-norm", {"extra": [("q_norm_weight", (8,)), ("k_norm_weight", (8,))]}),
    ],
    ids=["batch", "head dimension", "heads", "norms"],
)
def test_the_running_cpu_kernel_refuses_what_its_rules_refute(name: str, changed: dict[str, Any]) -> None:
    rule = RULES[name]
    if rule.versions is None or ort.__version__ not in rule.versions:
        pytest.skip(f"{name} speaks for onnxruntime {rule.versions}")
    plain: dict[str, Any] = {"past": 4, "rows": 3}
    for sizes, refused in ((plain, False), (plain | changed, True)):
        model = group_query(FLOAT, **sizes)
        (descriptor,) = describe(model, lambda node: ("attention.0", "graph"), queries=sizes["rows"])
        answer = rule.check(descriptor, Target("ort-cpu", None, ort.__version__))
        assert (answer is not None) == refused
        if answer is None:
            run_group_query(model)
        else:
            with pytest.raises(Exception, match="INVALID_ARGUMENT") as raised:
                run_group_query(model)
            assert answer.evidence["message"].rstrip(".") in str(raised.value)


def test_float16_is_asked_about_as_float16() -> None:
    (descriptor,) = describe(group_query(TensorProto.FLOAT16), lambda node: (None, "graph"))
    assert {operand.elem_type for operand in descriptor.operands} == {"tensor(float16)", "tensor(int32)"}
