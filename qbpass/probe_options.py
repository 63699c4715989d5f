"""What `qbpass probe` is asked, in a form that its worker process can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qbpass.models.cache import cache_folder
from qbpass.models.session import SessionSpec

if TYPE_CHECKING:
    from qbpass.admission.probes.falsify import Bench

BUILTIN = "builtin:operators"


@dataclass(frozen=True)
class ProbeOptions:
    """only: names of probes or operators; () means all. past: rows behind which calls are timed; None for no curve."""

    spec: SessionSpec
    only: tuple[str, ...] = ()
    past: int | None = 128
    queries: int = 4
    fresh: bool = False
    witnesses: Path | None = None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "witnesses": None if self.witnesses is None else str(self.witnesses.absolute())}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ProbeOptions:
        witnesses = value["witnesses"]
        return cls(
            SessionSpec(**value["spec"]),
            tuple(value["only"]),
            value["past"],
            value["queries"],
            value["fresh"],
            None if witnesses is None else Path(witnesses),
        )

    def bench(self, made: frozenset[str] = frozenset()) -> Bench:
        """Where answers are kept. made: keys that this run has measured already. Raises ProviderError."""
        from qbpass.admission.probes.falsify import Bench
        from qbpass.admission.probes.probe import Settings
        from qbpass.admission.probes.store import Store, as_plain
        from qbpass.models.recipe import machine_facts

        folder = cache_folder() / "probes"
        machine = as_plain(machine_facts(self.spec))
        store = Store(folder, self.fresh, made)
        return Bench(self.spec, machine, store, self.witnesses or folder / "witnesses", Settings(self.queries))
