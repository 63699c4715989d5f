"""Which graph a report is about: the one ONNX Runtime's optimizer left, or the file's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from qbpass.reports.plain import visible

if TYPE_CHECKING:
    from qbpass.models.decoder import Decoder


@dataclass(frozen=True)
class LookedAt:
    """model: what the user named. onnxruntime, provider: whose optimizer left the graph, where it is frozen."""

    model: str
    state: Literal["frozen", "as_exported"]
    onnxruntime: str | None = None
    provider: str | None = None

    @classmethod
    def of(cls, decoder: Decoder, path: Path) -> LookedAt:
        """Read off the graph's own metadata, which `freeze` writes. path: the MODEL argument."""
        from qbpass.models.freeze import FROZEN_KEY, PROVIDER_KEY

        noted = {entry.key: entry.value for entry in decoder.model.metadata_props}
        version = noted.get(FROZEN_KEY)
        if version is None:
            return cls(model_name(path), "as_exported")
        return cls(model_name(path), "frozen", version, noted.get(PROVIDER_KEY))

    @property
    def words(self) -> str:
        """`frozen by onnxruntime 1.32.0 for cpu`, or `as exported`."""
        if self.state == "as_exported":
            return "as exported"
        provider = f" for {visible(self.provider, 40)}" if self.provider else ""
        return f"frozen by onnxruntime {visible(self.onnxruntime or '', 40)}{provider}"

    @property
    def sentence(self) -> str:
        """For people: which graph, and what that means."""
        if self.state == "as_exported":
            return (
                "The graph looked at is as exported. What counts is what ONNX Runtime's optimizer leaves of it: "
                "leave out --as-exported."
            )
        return f"The graph looked at is {self.words}: what its own optimizer leaves is what counts."


def model_name(path: Path) -> str:
    """A folder's name; a file's with its folder's: `model.onnx` alone names nothing."""
    whole = path.absolute()
    parts = (whole.parent.name, whole.name) if whole.suffix == ".onnx" else (whole.name,)
    return "/".join(part for part in parts if part)
