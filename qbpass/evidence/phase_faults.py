"""Faults that the phase guard and the reuse checks exist to keep out, injected one at a time, each to be found.

A check that nothing can fail shows nothing. So each fault is put into this process's own code, the requests of
phase_checks.py run, and what they find is written down; then it is taken out again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any
from unittest.mock import patch

from qbpass.evidence.phase_checks import Finding, PhaseScenario
from qbpass.models.session import SessionSpec
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.manifest import Manifest
from qbpass.runtime.graph_cache import GraphCache, GraphKey
from qbpass.runtime.phase_guard import PhaseGuard, Role, Stage
from qbpass.runtime.shared_cache import SharedCache
from qbpass.runtime.trace_log import TraceLog

Injection = Callable[[], Any]


@dataclass(frozen=True)
class Fault:
    """applies: to which bundles. Elsewhere the code it breaks is not run, or breaking it changes nothing."""

    name: str
    what: str
    inject: Injection
    applies: Callable[[Manifest], bool]


@dataclass(frozen=True)
class FaultResult:
    """findings: what the requests showed with the fault in."""

    name: str
    what: str
    findings: tuple[Finding, ...]

    @property
    def found(self) -> bool:
        return bool(self.findings)

    @property
    def checks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(finding.check for finding in self.findings))


@dataclass(frozen=True)
class FaultReport:
    """clean: findings without a fault, of which there must be none; calls: how many calls that run watched."""

    clean: tuple[Finding, ...]
    calls: int
    results: tuple[FaultResult, ...]

    @property
    def passed(self) -> bool:
        return not self.clean and self.calls > 0 and all(result.found for result in self.results)

    def to_json(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "clean": [asdict(finding) for finding in self.clean],
            "faults_injected": len(self.results),
            "faults_found": sum(result.found for result in self.results),
            "faults": {
                result.name: {
                    "what": result.what,
                    "found": result.found,
                    "checks": list(result.checks),
                    "findings": [asdict(finding) for finding in result.findings],
                }
                for result in self.results
            },
        }


def phase_faults(bundle: Bundle, spec: SessionSpec, progress: Callable[[str], None] = lambda text: None) -> FaultReport:
    """Every fault that applies to the bundle. Raises BundleError for one of layout gs."""
    progress("without a fault")
    scenario = PhaseScenario.over(bundle, spec)
    clean = tuple(scenario.findings())
    calls, results = scenario.calls, []
    for fault in FAULTS:
        if fault.applies(bundle.manifest):
            progress(fault.name)
            with fault.inject():
                results.append(FaultResult(fault.name, fault.what, tuple(scenario.findings())))
    return FaultReport(clean, calls, tuple(results))


# The guard ----------------------------------------------------------------------------------------------------------


def _at(enter: Callable[[PhaseGuard, Stage], Stage | None], *, restores: str) -> Injection:
    """PhaseGuard.at with another idea of which stage to set, or of when to put back what was there.

    enter: None leaves the stage as it is. restores: "always", "success" or "never".
    """

    @contextmanager
    def at(self: PhaseGuard, stage: Stage) -> Iterator[None]:
        before, self._stage = self._stage, enter(self, stage) or self._stage
        try:
            yield
        except BaseException:
            if restores == "always":
                self._stage = before
            raise
        if restores != "never":
            self._stage = before

    return lambda: patch.object(PhaseGuard, "at", at)


def _as_asked(guard: PhaseGuard, stage: Stage) -> Stage:
    return stage


def _never_back(guard: PhaseGuard, stage: Stage) -> Stage | None:
    """Once in continuation, always in continuation."""
    return None if guard.stage is Stage.CONTINUATION else stage


def _other(guard: PhaseGuard, stage: Stage) -> Stage:
    return Stage.PREFILL if stage is Stage.CONTINUATION else Stage.CONTINUATION


def _unset(guard: PhaseGuard, stage: Stage) -> None:
    """The flag is not set at all."""


@contextmanager
def _kept_for_the_next_request() -> Iterator[None]:
    with _at(_never_back, restores="never")(), patch.object(PhaseGuard, "new_request", lambda self: None):
        yield


@contextmanager
def _only_when_observed() -> Iterator[None]:
    """The path without observers is taken before the flag is set."""
    observed = False

    def begins(self: TraceLog, *rest: Any) -> None:
        nonlocal observed
        observed = True

    def ends(self: TraceLog, *rest: Any) -> None:
        nonlocal observed
        observed = False

    def enter(guard: PhaseGuard, stage: Stage) -> Stage | None:
        return stage if observed else None

    with (
        _at(enter, restores="always")(),
        patch.object(TraceLog, "begin", begins),
        patch.object(TraceLog, "end", ends),
        patch.object(TraceLog, "failed", ends),
    ):
        yield


def _value_as_if(guard_of: Callable[[PhaseGuard], PhaseGuard]) -> Injection:
    """The flag of another guard in the same stage."""
    given = vars(PhaseGuard)["value"]

    def value(self: PhaseGuard) -> int:
        other = guard_of(self)
        other._stage = self.stage
        return int(given.fget(other))

    return lambda: patch.object(PhaseGuard, "value", property(value))


def _other_role(guard: PhaseGuard) -> PhaseGuard:
    return PhaseGuard(Role.DRAFT if guard.role is Role.TARGET else Role.TARGET, native_only=guard.native_only)


def _any_layout(guard: PhaseGuard) -> PhaseGuard:
    return PhaseGuard(guard.role)


# Reuse --------------------------------------------------------------------------------------------------------------


def _key_without(**same: Any) -> Injection:
    """What is kept is looked up by a key that has these fields alike for all calls."""
    right = GraphCache.get

    def get(self: GraphCache[Any], key: GraphKey, make: Callable[[], Any]) -> Any:
        return right(self, replace(key, **same), make)

    return lambda: patch.object(GraphCache, "get", get)


@contextmanager
def _capacity_left_out() -> Iterator[None]:
    """Growing keeps what was bound to the old buffers, which are kept, too: else this would read freed memory."""
    right, old = SharedCache.reserve, []

    def reserve(self: SharedCache, rows: int) -> bool:
        old.append(self.values)
        return right(self, rows)

    with (
        _key_without(capacity=0)(),
        patch.object(GraphCache, "clear", lambda self: None),
        patch.object(SharedCache, "reserve", reserve),
    ):
        yield


def _every(manifest: Manifest) -> bool:
    return True


def _keeps(manifest: Manifest) -> bool:
    """Bindings are kept where all caches lie still: those of a decoder whose every layer is a chain."""
    return len(manifest.chains) == len(manifest.interface.layers)


def _keeps_in_one_graph(manifest: Manifest) -> bool:
    """Of two straight-line graphs each has one layout: the session says which."""
    return _keeps(manifest) and manifest.emission == "guarded"


def _keeps_many_rows_in_one_graph(manifest: Manifest) -> bool:
    """Of graphs for each number of rows the session says how many."""
    return _keeps(manifest) and manifest.emission != "widths"


def _keeps_several_graphs(manifest: Manifest) -> bool:
    return _keeps(manifest) and manifest.emission != "guarded"


FAULTS: tuple[Fault, ...] = (
    Fault(
        "not-restored-after-failure",
        "the flag stays where it was when a call fails",
        _at(_as_asked, restores="success"),
        _every,
    ),
    Fault("never-restored", "the flag stays where it was when a call ends", _at(_as_asked, restores="never"), _every),
    Fault(
        "continuation-kept",
        "a new request starts in the stage the last one ended in",
        _kept_for_the_next_request,
        _every,
    ),
    Fault("never-set", "the flag is not set in any call", _at(_unset, restores="always"), _every),
    Fault("set-for-observers-only", "the flag is set behind the path of unobserved calls", _only_when_observed, _every),
    Fault(
        "stages-swapped",
        "prefill runs as continuation and continuation as prefill",
        _at(_other, restores="always"),
        _every,
    ),
    Fault(
        "roles-swapped",
        "the target runs with the draft's flag and the draft with the target's",
        _value_as_if(_other_role),
        _every,
    ),
    Fault("native-forgotten", "plain speculation runs the plan's layout", _value_as_if(_any_layout), _every),
    Fault(
        "key-without-layout", "the reuse check leaves out the layout flag", _key_without(layout=0), _keeps_in_one_graph
    ),
    Fault(
        "key-without-width",
        "the reuse check leaves out the width",
        _key_without(width=0),
        _keeps_many_rows_in_one_graph,
    ),
    Fault("key-without-capacity", "the reuse check leaves out the capacity", _capacity_left_out, _keeps),
    Fault(
        "key-without-session",
        "the reuse check leaves out the session, and the layout that names it",
        _key_without(session=None, layout=0),
        _keeps_several_graphs,
    ),
)
