"""What tests add to attention scores: masks in the forms exporters write, and terms that are no mask."""

from __future__ import annotations

from graph_writer import GraphWriter
from onnx import TensorProto

KEYS = "past + queries"


def add_terms(kind: str, writer: GraphWriter, attention_mask: str, heads: int, dtype: str) -> list[str]:
    """The tensors to add to the scores, in order. Writes the nodes that make them."""
    return _FORMS[kind](writer, attention_mask, heads, dtype)


def _none(writer: GraphWriter, attention_mask: str, heads: int, dtype: str) -> list[str]:
    return []


def _positions(writer: GraphWriter, attention_mask: str) -> tuple[str, str]:
    """Key positions (n,) and query positions (q, 1)."""
    zero, one = writer.constant(0), writer.constant(1)
    keys = writer.node("Squeeze", [writer.node("Shape", [attention_mask], "n_keys", start=1, end=2)], "keys_count")
    queries = writer.node("Squeeze", [writer.node("Shape", ["input_ids"], "n_queries", start=1, end=2)], "rows_count")
    past = writer.node("Sub", [keys, queries], "past_count")
    key_positions = writer.node("Range", [zero, keys, one], "key_positions")
    rows = writer.node("Add", [writer.node("Range", [zero, queries, one], "rows"), past], "row_positions")
    return key_positions, writer.node("Unsqueeze", [rows, writer.constant([1])], "query_positions")


def _where(writer: GraphWriter, condition: str, dtype: str, name: str = "mask") -> str:
    return writer.node("Where", [condition, writer.constant(0, dtype), writer.constant(_lowest(dtype), dtype)], name)


def _lowest(dtype: str) -> float:
    return -65504.0 if dtype == "float16" else -3.4028234663852886e38


def _causal(writer: GraphWriter, attention_mask: str, heads: int, dtype: str) -> list[str]:
    keys, queries = _positions(writer, attention_mask)
    allowed = writer.node("LessOrEqual", [keys, queries], "allowed")
    writer.declare(allowed, TensorProto.BOOL, "queries", KEYS)
    padding = writer.node("Cast", [attention_mask], "padding", to=TensorProto.BOOL)
    both = writer.node("And", [allowed, padding], "allowed_and_there")
    writer.declare(
        both, TensorProto.BOOL, "queries", KEYS
    )  # exporters say so; inference can't equate "total" with KEYS
    return [_where(writer, both, dtype)]


def _window(writer: GraphWriter, attention_mask: str, heads: int, dtype: str) -> list[str]:
    keys, queries = _positions(writer, attention_mask)
    allowed = writer.node("LessOrEqual", [keys, queries], "allowed")
    start = writer.node("Sub", [queries, writer.constant(4)], "window_start")
    near = writer.node("Greater", [keys, start], "near")
    for name in (allowed, near):
        writer.declare(name, TensorProto.BOOL, "queries", KEYS)
    return [_where(writer, writer.node("And", [allowed, near], "allowed_and_near"), dtype)]


def _indicator(writer: GraphWriter, attention_mask: str, heads: int, dtype: str) -> list[str]:
    """(1 - attention_mask) * lowest, (1, 1, 1, n)."""
    there = writer.node("Cast", [attention_mask], "there", to=TensorProto.FLOAT)
    wide = writer.node("Unsqueeze", [there, writer.constant([1, 2])], "there_wide")
    gone = writer.node("Sub", [writer.constant(1, dtype), wide], "gone")
    return [writer.node("Mul", [gone, writer.constant(_lowest(dtype), dtype)], "mask")]


def _one_late(writer: GraphWriter, attention_mask: str, heads: int, dtype: str) -> list[str]:
    """Causal but for one key: each query also reads the key behind its own."""
    keys, queries = _positions(writer, attention_mask)
    late = writer.node("Add", [queries, writer.constant(1)], "one_late")
    return [_where(writer, writer.node("LessOrEqual", [keys, late], "allowed"), dtype)]


def _ready_made(writer: GraphWriter, attention_mask: str, heads: int, dtype: str) -> list[str]:
    return [_where(writer, writer.input("allowed", TensorProto.BOOL, 1, 1, "queries", KEYS), dtype)]


def _per_head(writer: GraphWriter, attention_mask: str, heads: int, dtype: str) -> list[str]:
    return [_where(writer, writer.input("allowed", TensorProto.BOOL, 1, heads, "queries", KEYS), dtype)]


def _one_column(writer: GraphWriter, attention_mask: str, heads: int, dtype: str) -> list[str]:
    return [_where(writer, writer.input("allowed", TensorProto.BOOL, 1, 1, "queries", 1), dtype)]


def _foreign_rows(writer: GraphWriter, attention_mask: str, heads: int, dtype: str) -> list[str]:
    return [_where(writer, writer.input("allowed", TensorProto.BOOL, 1, 1, "other", KEYS), dtype)]


def _capacity(writer: GraphWriter, attention_mask: str, heads: int, dtype: str) -> list[str]:
    return [_where(writer, writer.input("allowed", TensorProto.BOOL, 1, 1, "queries", "capacity"), dtype)]


def _two(writer: GraphWriter, attention_mask: str, heads: int, dtype: str) -> list[str]:
    return [
        *_causal(writer, attention_mask, heads, dtype),
        _where(writer, writer.input("also", TensorProto.BOOL, 1, 1, "queries", KEYS), dtype, "second_mask"),
    ]


def _alibi(writer: GraphWriter, attention_mask: str, heads: int, dtype: str) -> list[str]:
    mask = _causal(writer, attention_mask, heads, dtype)
    distance = writer.node("Sub", ["key_positions", "query_positions"], "distance")
    distance = writer.node("Cast", [distance], "distance_float", to=TensorProto.FLOAT)
    slopes = writer.constant([[[[2.0**-head]] for head in range(heads)]], dtype)
    return [writer.node("Mul", [distance, slopes], "alibi"), *mask]


def _float_input(writer: GraphWriter, attention_mask: str, heads: int, dtype: str) -> list[str]:
    return [writer.input("bias", TensorProto.FLOAT, 1, 1, "queries", KEYS)]


def _small_numbers(writer: GraphWriter, attention_mask: str, heads: int, dtype: str) -> list[str]:
    allowed = writer.input("allowed", TensorProto.BOOL, 1, 1, "queries", KEYS)
    return [writer.node("Where", [allowed, writer.constant(0, dtype), writer.constant(-1, dtype)], "bias")]


_FORMS = {
    "none": _none,
    "causal": _causal,
    "window": _window,
    "indicator": _indicator,
    "one_late": _one_late,
    "ready_made": _ready_made,
    "per_head": _per_head,
    "one_column": _one_column,
    "foreign_rows": _foreign_rows,
    "capacity": _capacity,
    "two": _two,
    "alibi": _alibi,
    "float_input": _float_input,
    "small_numbers": _small_numbers,
}
