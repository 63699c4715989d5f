"""How a cell of the grid ended. Equal, refused and falsified are endings; a difference or an error is a failure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Ending = Literal["equal", "refused", "falsified", "differs", "error"]


@dataclass(frozen=True)
class Outcome:
    """ending: equal: every row of every width and every endpoint is the reference's, as bytes and as tokens. refused:
    the model or the options are, with codes. falsified: a probe proved the layout's last form wrong, `detail` is its
    witness. differs: a bundle was written and does not reproduce the reference. error: anything else.

    equal, rows: by width of the block, rows replayed and those equal. native_equal: the same of plain speculation.
    """

    ending: Ending
    detail: str = ""
    codes: tuple[str, ...] = ()
    layout: str | None = None  # which one was written: auto chooses
    equal: dict[int, int] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)
    native_equal: dict[int, int] = field(default_factory=dict)
    endpoints_equal: int = 0
    endpoints: int = 0
    accepted: int = 0  # drafted tokens, of the speculative requests
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether the cell is not one that a grid may show: a refusal without a code is none, either."""
        if self.ending == "refused":
            return not self.codes
        if self.ending == "falsified":
            return not self.detail
        return self.ending in ("differs", "error")

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "failed": self.failed}

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> Outcome:
        values = {key: value for key, value in entry.items() if key in cls.__dataclass_fields__}
        for name in ("equal", "rows", "native_equal"):
            values[name] = {int(width): count for width, count in values.get(name, {}).items()}
        return cls(**{**values, "codes": tuple(values.get("codes", ()))})
