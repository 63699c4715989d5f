"""The speculative loop: propose, verify, commit, reconcile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qbpass.models.errors import PromptError
from qbpass.runtime.drafter import Drafter, NoDrafter
from qbpass.runtime.endpoint import Endpoint, StopReason
from qbpass.runtime.target import Target, greedy
from qbpass.runtime.trace import Trace
from qbpass.runtime.verification import verify_greedy


@dataclass(frozen=True)
class Request:
    """stop_ids: end-of-generation tokens.

    k: the most tokens proposed in a round (the target's width bounds it, too).
    """

    prompt: tuple[int, ...]
    max_new_tokens: int = 128
    stop_ids: frozenset[int] = frozenset()
    k: int = 3


class Engine:
    """One target and one drafter, one request at a time. Without proposals it is serial decoding."""

    def __init__(self, target: Target, drafter: Drafter | None = None):
        self.target = target
        self.drafter: Drafter = drafter or NoDrafter()

    def generate(
        self, request: Request, on_tokens: Callable[[Sequence[int]], None] = lambda tokens: None
    ) -> tuple[Endpoint, Trace]:
        """The greedy continuation of the prompt. `on_tokens` sees committed tokens as they come.

        Raises PromptError where the prompt does not fit, BadLogits and CallError where the model fails.
        """
        limit, limit_reason = self._limit(request)
        target, drafter = self.target, self.drafter
        trace = Trace(prompt_tokens=len(request.prompt))
        rows = len(request.prompt) + limit
        target.start(rows)
        drafter.start(request.prompt, rows)
        # `pending` is visible but not yet in the KV cache: the next call consumes it, exactly once.
        pending = greedy(target.prefill(request.prompt))[0]
        output = [pending]
        on_tokens(output)
        while output[-1] not in request.stop_ids and len(output) < limit:
            drafter.extend([pending])
            room = min(request.k, target.max_queries - 1, limit - len(output) - 1)
            proposal = drafter.propose(room)[: max(room, 0)]
            committed_rows = target.length
            verdict = verify_greedy(proposal, greedy(target.verify([pending, *proposal])))
            tokens = _until_stop(verdict.committed, request.stop_ids)
            # One row a shown token: the pending one and all but the last, which is pending now.
            target.rollback(committed_rows + len(tokens))
            _count(trace, len(proposal), len(verdict.accepted), verdict.is_bonus, len(verdict.committed) - len(tokens))
            drafter.extend(verdict.accepted)
            pending = verdict.next_token
            output.extend(tokens)
            on_tokens(tokens)
        trace.check(len(output))
        ended = output[-1] in request.stop_ids
        return Endpoint(tuple(output), ended, "end_of_generation" if ended else limit_reason), trace

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


def _count(trace: Trace, proposed: int, accepted: int, bonus: bool, discarded: int) -> None:
    trace.rounds += 1
    trace.rows += 1 + proposed
    trace.proposed += proposed
    trace.accepted += accepted
    trace.rejected += proposed - accepted
    trace.discarded += discarded
    trace.rows_rolled_back += proposed - accepted + discarded
    trace.bonuses += bonus
    trace.corrections += not bonus


def _until_stop(tokens: Sequence[int], stop_ids: frozenset[int]) -> list[int]:
    """Tokens up to and including the first stop: what serial decoding would have shown."""
    for index, token in enumerate(tokens):
        if token in stop_ids:
            return list(tokens[: index + 1])
    return list(tokens)
