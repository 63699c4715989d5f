"""The speculative engine: one target, one drafter, one request at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from qbpass.models.errors import PromptError, QbpassError
from qbpass.runtime.choosing import GREEDY, Choosing
from qbpass.runtime.drafter import Drafter, NoDrafter
from qbpass.runtime.endpoint import Endpoint, StopReason
from qbpass.runtime.policy import DraftingPolicy, FixedPolicy
from qbpass.runtime.stops import Stops
from qbpass.runtime.target import Target
from qbpass.runtime.trace import Trace
from qbpass.runtime.trace_log import TraceLog
from qbpass.runtime.transaction import State, Transaction


@dataclass(frozen=True)
class Request:
    """stop_ids: end-of-generation tokens, stops: everything that ends a request; give one of them.

    k: the most tokens proposed in a round; None: what the target's width allows, which bounds it in any case.
    choosing: how tokens are picked.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int = 128
    stop_ids: frozenset[int] = frozenset()
    k: int | None = None
    choosing: Choosing = GREEDY
    stops: Stops = field(default_factory=Stops)

    def __post_init__(self) -> None:
        if self.stop_ids and self.stops.ids and self.stop_ids != self.stops.ids:
            raise PromptError("a request's stop tokens are given twice, and differ: give stop_ids or stops")

    @property
    def all_stops(self) -> Stops:
        stops = self.stops
        return Stops(self.stop_ids | stops.ids, stops.strings, stops.decode, stops.min_tokens)


class EngineBusy(QbpassError):
    """A second request while one is running."""


class Engine:
    """Without proposals it is serial decoding. Speculation is a matter of drafter and policy, never of the output."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None = None,
        policy: DraftingPolicy | None = None,
        trace_log: TraceLog | None = None,
    ):
        """policy: how much is drafted; as much as a round has room for, where nothing is said."""
        self.target = target
        self.drafter: Drafter = drafter or NoDrafter()
        self.policy: DraftingPolicy = policy or FixedPolicy()
        self.trace_log = trace_log
        self._busy = threading.Lock()

    def generate(
        self,
        request: Request,
        on_tokens: Callable[[Sequence[int]], None] = lambda tokens: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> tuple[Endpoint, Trace]:
        """The continuation of the prompt. `on_tokens` sees visible tokens as they come; `cancelled` is asked each time.

        Raises PromptError where the prompt does not fit, EngineBusy where another request is running, BadLogits and
        CallError where the model fails. After any of them the engine takes the next request.
        """
        limit, limit_reason = self._limit(request)
        if not self._busy.acquire(blocking=False):
            raise EngineBusy("this engine is running another request: wait for it, or make a second engine")
        try:
            return self._run(request, limit, limit_reason, on_tokens, cancelled)
        finally:
            self._busy.release()

    def _run(
        self,
        request: Request,
        limit: int,
        limit_reason: StopReason,
        on_tokens: Callable[[Sequence[int]], None],
        cancelled: Callable[[], bool],
    ) -> tuple[Endpoint, Trace]:
        log = self.trace_log
        transaction = Transaction(
            self.target, self.drafter, self.policy, limit=limit, limit_reason=limit_reason, k=request.k
        )
        if log is not None:
            log.begin(len(request.prompt), limit)
        try:
            transaction.begin(request.prompt, request.choosing, request.all_stops)
            while True:
                verdict = transaction.commit()
                round_ = transaction.reconcile()
                if log is not None and round_ is not None:
                    log.round(round_, verdict)
                on_tokens(verdict.tokens)
                if transaction.state is State.STOPPED:
                    break
                if cancelled():
                    transaction.cancel()
                    break
                transaction.propose()
                transaction.verify()
        except BaseException as error:
            if log is not None:
                log.failed(error)
            raise
        transaction.check()
        trace, reason = transaction.trace, transaction.stop_reason
        assert reason is not None
        if log is not None:
            log.end(reason, asdict(trace))
        return Endpoint(tuple(transaction.output), reason == "end_of_generation", reason), trace

    def _limit(self, request: Request) -> tuple[int, StopReason]:
        """The most tokens this request may generate, and what to call reaching it."""
        prompt, context = len(request.prompt), self.target.context_length
        if not prompt:
            raise PromptError("the prompt is empty: give at least one token")
        if request.max_new_tokens < 1:
            raise PromptError("--max-new-tokens must be at least 1")
        bad = next((t for t in request.prompt if not 0 <= t < self.target.vocab_size), None)
        if bad is not None:
            raise PromptError(
                f"token id {bad} is outside the vocabulary of {self.target.vocab_size}: is this the model's tokenizer?"
            )
        if context is not None and prompt >= context:
            raise PromptError(f"the prompt has {prompt} tokens, the model's context {context}: shorten the prompt")
        if context is not None and prompt + request.max_new_tokens > context:
            return context - prompt, "context_length"
        return request.max_new_tokens, "max_new_tokens"
