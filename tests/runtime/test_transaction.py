"""The transaction's arrows in their order, what holds at every stop, and what ends a request early."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Sequence

import pytest
from fake_target import FakeTarget, scrambled, serially
from hypothesis import given
from hypothesis import strategies as st

from qbpass.models.errors import QbpassError
from qbpass.runtime.choosing import GREEDY, Chooser
from qbpass.runtime.drafter import NoDrafter, Proposal
from qbpass.runtime.drafting.ngram import NgramDrafter
from qbpass.runtime.engine import Engine, EngineBusy, Request
from qbpass.runtime.policy import FixedPolicy, Round
from qbpass.runtime.stops import Stops
from qbpass.runtime.trace_log import TraceLog
from qbpass.runtime.transaction import State, Transaction

VOCABULARY = 7
NEXT = scrambled(VOCABULARY)
ARROWS = {
    "begin": (State.IDLE, State.VERIFIED),
    "commit": (State.VERIFIED, State.COMMITTED),
    "reconcile": (State.COMMITTED, State.PENDING),
    "propose": (State.PENDING, State.PROPOSED),
    "verify": (State.PROPOSED, State.VERIFIED),
    "cancel": (State.PENDING, State.STOPPED),
}


def transaction(target: FakeTarget | None = None, limit: int = 9) -> Transaction:
    target = target or FakeTarget(NEXT, VOCABULARY)
    return Transaction(target, NgramDrafter(), FixedPolicy(), limit=limit, limit_reason="max_new_tokens", k=3)


def step(of: Transaction, arrow: str) -> None:
    if arrow == "begin":
        of.begin((1, 2, 1), GREEDY, Stops())
    else:
        getattr(of, arrow)()


@given(arrows=st.lists(st.sampled_from(sorted(ARROWS)), max_size=12))
def test_no_arrow_is_taken_out_of_order(arrows: list[str]) -> None:
    machine = transaction(limit=50)
    for arrow in arrows:
        before, after = ARROWS[arrow]
        if machine.state is before:
            step(machine, arrow)
            assert machine.state is after
        else:
            state = machine.state
            with pytest.raises(AssertionError, match="a transaction in state"):
                step(machine, arrow)
            assert machine.state is state


class KeepsRejectedRows(FakeTarget):
    def rollback(self, length: int) -> None:
        del length


class ForgetsThePendingToken(FakeTarget):
    def rollback(self, length: int) -> None:
        super().rollback(length)
        del self.kv[-1:]


class Wrong(NoDrafter):
    def propose(self, limit: int, fork: Callable[[], Chooser]) -> Proposal:
        del fork
        return Proposal((0,) * limit)


@pytest.mark.parametrize("kind", [KeepsRejectedRows, ForgetsThePendingToken])
def test_a_cache_that_does_not_hold_what_was_consumed_is_found_at_the_next_stop(kind: type[FakeTarget]) -> None:
    with pytest.raises(AssertionError, match="the KV cache holds"):
        Engine(kind(NEXT, VOCABULARY), Wrong()).generate(Request((1, 2), 9))


def test_a_proposal_is_cut_where_the_target_does_not_know_a_token() -> None:
    class Foreign(NoDrafter):
        def propose(self, limit: int, fork: Callable[[], Chooser]) -> Proposal:
            del limit, fork
            return Proposal((0, VOCABULARY, 0))

    endpoint, trace = Engine(FakeTarget(NEXT, VOCABULARY), Foreign()).generate(Request((1, 2), 9))
    assert endpoint.token_ids == serially(NEXT, (1, 2), 9, frozenset())
    assert 0 < trace.proposed <= trace.rounds


class Halving(FixedPolicy):
    """Asks for all, verifies half, and keeps what it is told."""

    def __init__(self) -> None:
        self.seen: list[Round] = []

    def keep(self, proposal: Proposal, rows: int) -> int:
        return len(proposal.tokens) // 2

    def observe(self, round_: Round) -> None:
        self.seen.append(round_)


def test_a_policy_withholds_proposals_and_sees_every_round() -> None:
    policy = Halving()
    endpoint, trace = Engine(FakeTarget(NEXT, VOCABULARY), Wrong(), policy).generate(Request((1, 2), 9))
    assert endpoint.token_ids == serially(NEXT, (1, 2), 9, frozenset())
    assert len(policy.seen) == trace.rounds
    assert sum(r.drafted for r in policy.seen) == trace.drafted > trace.proposed == sum(r.proposed for r in policy.seen)
    assert [r.rows for r in policy.seen] == sorted({r.rows for r in policy.seen})
    assert trace.withheld == trace.drafted - trace.proposed > 0


@pytest.mark.parametrize("after", [1, 2, 5])
def test_a_cancelled_request_returns_what_was_visible(after: int) -> None:
    shown: list[int] = []
    engine = Engine(FakeTarget(NEXT, VOCABULARY), NgramDrafter())
    endpoint, trace = engine.generate(Request((1, 2), 40), shown.extend, lambda: len(shown) >= after)
    wanted = serially(NEXT, (1, 2), 40, frozenset())
    assert endpoint.stop_reason == "cancelled"
    assert after <= endpoint.length < 40
    assert endpoint.token_ids == wanted[: endpoint.length]
    trace.check(endpoint.length)
    assert engine.generate(Request((1, 2), 40))[0].token_ids == wanted


def test_an_engine_takes_one_request_at_a_time_and_the_next_after_a_failure() -> None:
    engine = Engine(FakeTarget(NEXT, VOCABULARY))
    refused: list[BaseException] = []

    def second() -> None:
        try:
            engine.generate(Request((1,), 2))
        except QbpassError as error:
            refused.append(error)

    def during(tokens: Sequence[int]) -> None:
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
        raise RuntimeError("the reader is gone")

    with pytest.raises(RuntimeError, match="the reader is gone"):
        engine.generate(Request((1, 2), 5), during)
    assert [type(error) for error in refused] == [EngineBusy]
    assert engine.generate(Request((1, 2), 5))[0].token_ids == serially(NEXT, (1, 2), 5, frozenset())


def test_the_trace_tells_every_round_and_changes_nothing() -> None:
    lines = io.StringIO()
    calls = []
    for log in (None, TraceLog(lines)):
        target = FakeTarget(NEXT, VOCABULARY)
        endpoint, trace = Engine(target, Wrong(), trace_log=log).generate(Request((1, 2), 9))
        calls.append((target.fed, endpoint, trace))
    assert calls[0] == calls[1]
    events = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [event["event"] for event in events] == ["begin", *["round"] * trace.rounds, "end"]
    assert [t for event in events[1:-1] for t in event["tokens"]] == list(endpoint.token_ids[1:])
    assert sum(event["rejected"] for event in events[1:-1]) == events[-1]["rejected"] == trace.rejected


def test_a_failed_request_ends_its_trace_with_the_kind_of_error() -> None:
    lines = io.StringIO()

    def gone(tokens: Sequence[int]) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        Engine(FakeTarget(NEXT, VOCABULARY), trace_log=TraceLog(lines)).generate(Request((1, 2), 9), gone)
    assert json.loads(lines.getvalue().splitlines()[-1]) == {
        "event": "failed",
        "request": 1,
        "error": "BrokenPipeError",
    }
