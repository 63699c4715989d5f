"""Values and names that come from strangers' graphs, in a form that may be written down."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from typing import Any

_CUT = "…"
#: Control characters, and those that only change how their neighbours are shown (a right-to-left override, for one).
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def plain(value: Any) -> Any:
    """`value` as JSON holds it: mappings, lists, text, numbers, booleans and null.

    A number that JSON does not have is its name ("nan", "inf", "-inf"); bytes are text; what else there is, its repr.
    """
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(entry) for entry in value), key=repr)
    if hasattr(value, "tolist"):  # numpy's scalars and arrays; numpy itself is too slow to import for a table
        return plain(value.tolist())
    return repr(value)


def visible(text: str, limit: int = 400) -> str:
    """`text` for a screen: at most `limit` characters (the middle is left out), unseen ones as escapes.

    A tensor may be called anything; its name must not move a terminal's cursor or turn the line around.
    """
    if len(text) > limit:
        tail = (limit - 1) // 2
        text = text[: limit - 1 - tail] + _CUT + (text[-tail:] if tail else "")
    return "".join(_escaped(character) for character in text)


def tail(name: str, limit: int) -> str:
    """The end of a long name, which tells it from its neighbours: `…self_attn/MatMul_1`."""
    return visible(name if len(name) <= limit else _CUT + name[len(name) - limit + 1 :], limit)


def _escaped(character: str) -> str:
    if unicodedata.category(character) not in _UNSEEN:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
