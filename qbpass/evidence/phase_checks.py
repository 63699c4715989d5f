"""Requests through the engine that a wrong phase flag, or a wrong reuse of bindings, can't get through unseen.

One target runs a request, a request whose call fails, one that is cancelled, one for which its buffers grow, and one
that is traced; its session runs in the native layout and in a draft's role besides. The checks:

endpoint  the tokens are serial decoding's
rows      the logits of the forced replay are serial decoding's, byte for byte
kv        the committed rows of the cache are those of one-row calls, byte for byte
phase     every call of a guarded graph is told the phase of its role and stage
graph     of several graphs, every call runs the one of its phase and width
memory    every call reads and writes the current buffers at its own extent, and each link of a chain its own
stage     between calls the guard stands at prefill, however the last call ended
observer  whether a request is traced changes neither graph, phase nor width of any call
failed    nothing raises that was not made to
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from qbpass.evidence.forced_replay import ReplayCount, replay, serial_rows
from qbpass.evidence.observed_calls import ObservedCall, ObservedSession
from qbpass.models.errors import BundleError
from qbpass.models.session import SessionSpec
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.chains.cache import link_cache_name
from qbpass.rewrites.kv_cache import cache_name
from qbpass.rewrites.phases import Phase, layout_active
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.buffers import GRANULE
from qbpass.runtime.call_error import CallError
from qbpass.runtime.choosing import Chooser
from qbpass.runtime.drafter import NoDrafter, Proposal
from qbpass.runtime.endpoint import first_difference
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.open_target import open_target
from qbpass.runtime.phase_guard import Stage
from qbpass.runtime.serial_target import SerialTarget
from qbpass.runtime.trace_log import TraceLog

CHECKS = ("endpoint", "rows", "kv", "phase", "graph", "memory", "stage", "observer", "failed")

#: Phases by who runs: the first where the prompt is read, the second behind it.
_EXPECTED = {
    "target": (int(Phase.TARGET_PREFILL), int(Phase.TARGET_CONTINUATION)),
    "draft": (int(Phase.DRAFT_PREFILL), int(Phase.DRAFT_CONTINUATION)),
    "native": (0, 0),
}

#: New tokens of a request; the call of it that is made to fail; rounds before it is cancelled.
TOKENS, FAILING_CALL, CANCELLED_AFTER = 12, 3, 2
MADE_TO_FAIL = "this call was made to fail"


@dataclass(frozen=True)
class Finding:
    """check: one of CHECKS. step: the request it was found in."""

    check: str
    step: str
    detail: str


@dataclass(frozen=True)
class Wanted:
    """Serial decoding of one prompt, and the cache behind it."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    rows: np.ndarray  # (len(tokens), vocabulary)
    kv: tuple[bytes, ...]


@dataclass
class PhaseScenario:
    """The requests over one bundle: what is right is computed once, then any number of targets are watched.

    calls: how many were watched in the last run.
    """

    bundle: Bundle
    spec: SessionSpec
    short: Wanted
    long: Wanted
    sessions: BlockTarget
    calls: int = 0
    _findings: list[Finding] = field(default_factory=list)

    @classmethod
    def over(cls, bundle: Bundle, spec: SessionSpec, seed: int = 0) -> PhaseScenario:
        """The short prompt is as long as a block: a width says nothing about which layout a call is in.

        Raises BundleError for a bundle of layout gs, which holds no cache of its own.
        """
        target, serial = open_target(bundle, spec), SerialTarget.from_bundle(bundle, spec)
        if not isinstance(target, BlockTarget):
            raise BundleError(f"{bundle.folder} is of layout gs, whose graph has no cache to check")
        draw = np.random.default_rng(seed)
        lengths = (max(bundle.manifest.max_queries - 1, 1), 9)
        prompts = [tuple(draw.integers(0, serial.vocab_size, length).tolist()) for length in lengths]
        short, long = (_wanted(serial, target.sibling(spec), prompt) for prompt in prompts)
        return cls(bundle, spec, short, long, target)

    def findings(self) -> list[Finding]:
        """Everything that the requests show to be wrong; empty where nothing is."""
        self.calls, self._findings = 0, []
        watched = _Watched("target", self.sessions.sibling(self.spec), self.bundle, self._told)
        plain = self._request("plain", watched, self.short)
        self._failing(watched)
        self._request("cancelled", watched, self.short, cancel=True)
        self._request("grown", watched, self.long, room=GRANULE, cancel=True)
        traced = self._request("traced", watched, self.short, traced=True)
        if plain != traced:
            where = first_difference([hash(c) for c in plain], [hash(c) for c in traced]) or 0
            self._tell("observer", "traced", f"call {where + 1} of {len(plain)} is another, or is not there")
        for who, other in (
            ("native", self.sessions.native(self.spec)),
            ("draft", self.sessions.draft(self.spec, None)),
        ):
            self._request(who, _Watched(who, other, self.bundle, self._told), self.short)
        self._replay(watched)
        return list(dict.fromkeys(self._findings))

    def _told(self, watched: _Watched, call: ObservedCall) -> None:
        self.calls += 1
        for check, detail in watched.problems(call):
            self._tell(check, watched.step, detail)

    def _tell(self, check: str, step: str, detail: str) -> None:
        if not any(found.check == check and found.step == step for found in self._findings):
            self._findings.append(Finding(check, step, detail))

    def _request(
        self,
        step: str,
        watched: _Watched,
        wanted: Wanted,
        *,
        cancel: bool = False,
        traced: bool = False,
        room: int = TOKENS,
    ) -> list[tuple[str, int | None, int]]:
        """The facts of its calls."""
        engine = Engine(watched.target, _Scripted(wanted), trace_log=TraceLog(io.StringIO()) if traced else None)
        rounds = iter(range(CANCELLED_AFTER + 1))
        with self._watching(step, watched, wanted.prompt):
            endpoint, _ = engine.generate(
                Request(wanted.prompt, room, k=watched.target.max_queries - 1),
                cancelled=(lambda: next(rounds, None) is None) if cancel else lambda: False,
            )
            if watched.who == "target":
                self._compare(step, watched.target, endpoint.token_ids, wanted)
        return [call.facts for call in watched.calls]

    def _failing(self, watched: _Watched) -> None:
        watched.fail_at = FAILING_CALL
        with self._watching("failing", watched, self.short.prompt):
            try:
                Engine(watched.target, _Scripted(self.short)).generate(
                    Request(self.short.prompt, TOKENS, k=watched.target.max_queries - 1)
                )
            except CallError as error:
                if MADE_TO_FAIL in str(error):
                    return
                raise
            self._tell("failed", "failing", "a call that failed was not reported")

    def _replay(self, watched: _Watched) -> None:
        count = ReplayCount()
        with self._watching("replay", watched, self.short.prompt):
            replay(watched.target, "replay", self.short.prompt, self.short.tokens, self.short.rows, count)
        if count.equal != count.rows:
            self._tell("rows", "replay", f"{count.rows - count.equal} of {count.rows} differ, first {count.first}")

    @contextmanager
    def _watching(self, step: str, watched: _Watched, prompt: Sequence[int]) -> Iterator[None]:
        watched.begin(step, len(prompt))
        try:
            yield
        except Exception as error:  # a fault may show as anything, ONNX Runtime's private types among it
            self._tell("failed", step, f"{type(error).__name__}: {error}")
        stage = watched.target.guard.stage
        if stage is not Stage.PREFILL:
            self._tell("stage", step, f"the guard stands at {stage.value} behind the request")

    def _compare(self, step: str, target: BlockTarget, tokens: Sequence[int], wanted: Wanted) -> None:
        where = first_difference(wanted.tokens[: len(tokens)], tokens)
        if where is not None:
            self._tell("endpoint", step, f"token {where} is not serial decoding's")
        for index, kept in enumerate(wanted.kv):
            rows = target.cached(index)
            if rows.tobytes() != kept[: rows.nbytes]:
                self._tell("kv", step, f"buffer {index} differs in {len(rows)} rows")


class _Watched:
    """A target whose sessions are watched, and who it is. fail_at: the call of the next request that raises."""

    def __init__(self, who: str, target: BlockTarget, bundle: Bundle, told: Callable[[_Watched, ObservedCall], None]):
        self.target, self.who, self.step = target, who, ""
        self.calls: list[ObservedCall] = []
        self.fail_at: int | None = None
        self._bundle, self._told, self._prompt_rows = bundle, told, 0
        self._chained = {chain.layer for chain in bundle.manifest.chains}
        self._row_calls = bundle.appends_in_place
        target.watch(lambda session, graph: ObservedSession(session, graph, bundle.manifest.interface.input_ids, self))

    def begin(self, step: str, prompt_rows: int) -> None:
        self.step, self._prompt_rows, self.calls = step, prompt_rows, []

    def __call__(self, call: ObservedCall) -> None:
        self.calls.append(call)
        self._told(self, call)
        if self.fail_at == len(self.calls):
            self.fail_at = None
            raise RuntimeError(MADE_TO_FAIL)

    def problems(self, call: ObservedCall) -> Iterator[tuple[str, str]]:
        """(check, detail) of whatever is wrong with what a call is given."""
        past = self.target.length
        expected = _EXPECTED[self.who][past >= self._prompt_rows]
        active = layout_active(Phase(expected), self._bundle.manifest.phase_mask)
        if call.phase is not None and call.phase != expected:
            yield "phase", f"{call.rows} row(s) behind {past} ran in phase {call.phase}, not {expected}"
        if call.phase is None and call.graph not in self._graphs(call.rows, active):
            yield "graph", f"{call.rows} row(s) behind {past} ran the {call.graph} graph"
        if call.graph == "row":
            yield from self._row_problems(call)
            return
        for layer in self._bundle.manifest.interface.layers:
            for kind in ("key", "value"):
                if layer.layer in self._chained:
                    links = call.rows if active else 1
                    yield from self._chain_problems(call, layer.layer, kind, links)
                    continue
                name, shape = cache_name(layer.layer, kind), past + call.rows
                if call.memory[name].shape[0] != shape:
                    yield "memory", f"{name} is bound at {call.memory[name].shape[0]} rows, not {shape}"

    def _graphs(self, rows: int, active: bool) -> set[str]:
        """Those without a phase input that may run a call: a row alone is what it is in every phase."""
        return {"row"} if rows == 1 and self._row_calls else {"active", f"rows{rows}"} if active else {"native"}

    def _row_problems(self, call: ObservedCall) -> Iterator[tuple[str, str]]:
        """The frozen graph's past is the buffer itself."""
        for layer in self._bundle.manifest.interface.layers:
            for name in (layer.past_key, layer.past_value):
                if call.memory[name].shape[2] != self.target.caches.capacity:
                    yield "memory", f"{name} is bound at {call.memory[name].shape[2]} rows"

    def _chain_problems(self, call: ObservedCall, layer: int, kind: str, links: int) -> Iterator[tuple[str, str]]:
        """The first `links` links have the buffer, the others a row of scratch."""
        first = call.memory[link_cache_name(layer, kind, 0)]
        for link in range(self.target.max_queries):
            name = link_cache_name(layer, kind, link)
            bound = call.memory.get(name)
            if bound is None:  # a straight-line graph of the native layout has one link
                continue
            rows = self.target.caches.capacity if link < links else 1
            if bound.shape[2] != rows or (bound.address == first.address) != (link < links):
                yield "memory", f"{name} is bound at {bound.shape[2]} rows, not {rows}, or elsewhere"


class _Scripted:
    """Proposes what serial decoding says next, 0 to `limit` tokens, the last one wrong in every second round."""

    def __init__(self, wanted: Wanted):
        self._wanted = wanted

    def start(self, tokens: Sequence[int], rows: int) -> None:
        del tokens, rows
        self._done, self._round = 0, 0

    def extend(self, tokens: Sequence[int]) -> None:
        self._done += len(tokens)

    def propose(self, limit: int, fork: Callable[[], Chooser]) -> Proposal:
        del fork
        self._round += 1
        many = (limit, 1, limit - 1, limit)[self._round % 4]
        tokens = list(self._wanted.tokens[self._done : self._done + many])
        if tokens and self._round % 2:
            tokens[-1] ^= 1
        return Proposal(tuple(tokens))


def _wanted(serial: SerialTarget, target: BlockTarget, prompt: tuple[int, ...]) -> Wanted:
    """The cache behind one-row calls of the target itself: it may hold keys that the export scales in every call."""
    request = Request(prompt, TOKENS)
    tokens = Engine(serial).generate(request)[0].token_ids
    Engine(target, NoDrafter()).generate(request)
    kv = tuple(target.cached(index).tobytes() for index in range(2 * len(target.interface.layers)))
    return Wanted(prompt, tokens, serial_rows(serial, prompt, tokens), kv)
