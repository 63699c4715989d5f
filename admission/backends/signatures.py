"""An operator's formal operands as ONNX's own schemas name them: which type parameter stands at which place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from onnx import defs

_INT_MAX = 2**31 - 1  # onnx takes versions as C ints

# Operators of the default domain that ONNX Runtime adds to it; ONNX has no schema for them.
# Source: onnxruntime/core/graph/contrib_ops/contrib_defs.cc.
_RUNTIMES_OWN = frozenset({"SimplifiedLayerNormalization", "ConstantFill", "GroupNorm"})


@dataclass(frozen=True)
class Formal:
    """One formal operand. `parameter` is a type parameter ("T", "T1") or a type ("tensor(int64)")."""

    name: str
    parameter: str
    variadic: bool = False


@dataclass(frozen=True)
class Signature:
    """since: the version of the operator that holds at a model's opset. function_body: whether the schema has one."""

    since: int
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    function_body: bool = False


@cache
def signature(operator: str, domain: str, opset: int | None) -> Signature | None:
    """The operator's signature at that opset; None where no schema is known, or the opset is newer than this onnx."""
    if opset is None or not 0 < opset < _INT_MAX or (domain == "" and opset > defs.onnx_opset_version()):
        return None
    try:
        schema = defs.get_schema(operator, opset, domain)
    except defs.SchemaError:
        return None
    body = bool(getattr(schema, "has_function", False) or getattr(schema, "has_context_dependent_function", False))
    return Signature(schema.since_version, _formals(schema.inputs), _formals(schema.outputs), body)


def version_of(operator: str, domain: str, opset: int | None) -> int | None:
    """The operator's version at a model's opset; 1 for operators that ONNX Runtime adds and never changed."""
    found = signature(operator, domain, opset)
    if found is not None:
        return found.since
    return 1 if domain == "com.microsoft" or (domain == "" and operator in _RUNTIMES_OWN) else None


def formal_at(formals: tuple[Formal, ...], index: int) -> Formal | None:
    """The formal operand that stands for operand `index`: the last one for all behind it, where it is variadic."""
    if index < len(formals):
        return formals[index]
    return formals[-1] if formals and formals[-1].variadic else None


def _formals(parameters: object) -> tuple[Formal, ...]:
    variadic = defs.OpSchema.FormalParameterOption.Variadic
    return tuple(Formal(p.name, p.type_str, p.option == variadic) for p in parameters)  # type: ignore[attr-defined]
