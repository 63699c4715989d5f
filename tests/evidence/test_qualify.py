"""Qualification says of every arm whether it returned the reference, and gives no speed to one that did not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence

import pytest
from decoder_blocks import SPEC, random_tokens
from fake_target import FakeTarget, NextToken, scrambled

from qbpass.evidence import qualify as qualify_module
from qbpass.evidence.arms import Arm
from qbpass.evidence.options import DEFAULT_ARMS, QualifyOptions
from qbpass.evidence.prompts import Prompt
from qbpass.evidence.qualify import qualify
from qbpass.evidence.report import QualificationReport
from qbpass.models.errors import BundleError
from qbpass.models.session import SessionSpec
from qbpass.rewrites.bundle import Bundle
from qbpass.runtime.drafter import NoDrafter
from qbpass.runtime.drafting.ngram import NgramDrafter
from qbpass.runtime.engine import Engine

PROMPTS = 3
REPLAY_ROWS = 17


def prompts_for(bundle: Bundle) -> list[Prompt]:
    repeated = [random_tokens(bundle, length, seed) * 2 for length, seed in ((3, 1), (9, 2), (30, 3))]
    return [Prompt(f"p{index}", "random", tokens) for index, tokens in enumerate(repeated)]


@pytest.fixture(scope="module")
def report(tiny_bundle: Bundle) -> QualificationReport:
    options = QualifyOptions(max_new_tokens=24, replay_rows=REPLAY_ROWS)
    return qualify(tiny_bundle, prompts_for(tiny_bundle), options, SPEC)


def test_both_repaired_arms_return_the_reference(report: QualificationReport) -> None:
    assert list(report.arms) == list(DEFAULT_ARMS)
    assert report.exact
    for name in ("C_QB", "C_PQ"):
        arm = report.arms[name]
        assert arm.repaired
        assert arm.exact
        assert arm.equal == arm.endpoints == PROMPTS
        assert arm.logit_rows_equal == arm.logit_rows == PROMPTS * REPLAY_ROWS * 10
        assert arm.first_difference is arm.first_row_difference is None
        assert arm.ratio_to_R is not None
        assert arm.ratio_to_R > 0


def test_native_speculation_differs_in_most_rows_and_decides_nothing(report: QualificationReport) -> None:
    native = report.arms["C_MQ"]
    assert not native.repaired
    assert not native.exact
    assert native.logit_rows - native.logit_rows_equal > native.logit_rows / 2
    assert native.first_row_difference is not None
    assert native.first_row_difference.max_abs_difference > 0


def test_the_reference_has_no_rows_to_compare_and_the_ratio_of_itself(report: QualificationReport) -> None:
    reference = report.arms["R"]
    assert reference.logit_rows == 0
    assert reference.ratio_to_R == 1.0
    assert reference.tokens_per_round == 1.0
    assert reference.acceptance is None


def test_the_report_is_json_of_this_shape(report: QualificationReport) -> None:
    written = json.loads(json.dumps(report.to_json()))
    assert written.keys() == {
        *("schema_version", "recipe", "draft", "draft_model", "policy", "k", "max_new_tokens", "arms", "prompts"),
    }
    assert written["draft_model"] is None  # n-grams are looked up
    assert written["schema_version"] == 1
    assert written["arms"]["C_QB"].keys() == {
        *("endpoints", "equal", "first_difference", "logit_rows", "logit_rows_equal", "first_row_difference"),
        *("rows_by_width_and_alignment", "seconds", "ratio_to_R", "geometric_mean", "worst_prompt"),
        *("geometric_mean_by_domain", "tokens_per_round", "acceptance", "mean_k", "undrafted_rounds", "repaired"),
    }
    cells = {f"q={width} n%4={residue}" for width in (1, 2, 3, 4) for residue in range(4)}
    assert written["arms"]["C_QB"]["rows_by_width_and_alignment"].keys() == cells
    assert written["prompts"][0].keys() == {
        *("id", "domain", "prompt_tokens", "generated_tokens", "stop_reason", "first_difference", "seconds"),
    }
    for prompt in written["prompts"]:
        assert prompt["first_difference"].keys() == {"C_MQ", "C_QB", "C_PQ"}
        assert prompt["seconds"].keys() == set(DEFAULT_ARMS)
    assert QualificationReport.model_validate(written) == report


def test_a_recipe_that_is_not_this_process_s_is_refused_before_anything_runs(tiny_bundle: Bundle) -> None:
    with pytest.raises(BundleError, match="threads: bundle 2, this process 1"):
        qualify(tiny_bundle, prompts_for(tiny_bundle), QualifyOptions(), SessionSpec(threads=1))


VOCABULARY = 257
RIGHT = scrambled(VOCABULARY)

Arms = Callable[..., QualificationReport]


@pytest.fixture
def fake_arms(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> Arms:
    """qualify over fake targets, each arm with a next-token function of its own."""

    def run(options: QualifyOptions, **functions: NextToken) -> QualificationReport:
        arms = []
        for name in options.arms:
            target = FakeTarget(functions.get(name, RIGHT), VOCABULARY)
            drafter = NoDrafter() if name == "R" else NgramDrafter()
            arms.append(Arm(name, target, Engine(target, drafter), repaired=name in ("C_QB", "C_PQ")))
        monkeypatch.setattr(qualify_module, "build_arms", lambda *args: arms)
        return qualify(tiny_bundle, prompts_for(tiny_bundle), options, SPEC)

    return run


def off_at(length: int) -> NextToken:
    """The right next token, but behind exactly `length` tokens."""

    def next_token(tokens: Sequence[int]) -> int:
        return (RIGHT(tokens) + (len(tokens) == length)) % VOCABULARY

    return next_token


def test_one_differing_endpoint_takes_the_arms_speed_away(fake_arms: Arms) -> None:
    # Prompts have 6, 18 and 60 tokens; 8 new tokens reach the 22nd of the second alone.
    report = fake_arms(QualifyOptions(max_new_tokens=8, replay_rows=0), C_PQ=off_at(22))
    right, wrong = report.arms["C_QB"], report.arms["C_PQ"]
    assert right.ratio_to_R is not None
    assert right.exact
    assert (wrong.equal, wrong.endpoints) == (2, 3)
    assert wrong.ratio_to_R is None
    assert wrong.first_difference is not None
    assert (wrong.first_difference.prompt, wrong.first_difference.token) == ("p1", 22 - 18)
    assert not report.exact
    assert [prompt.first_difference["C_PQ"] for prompt in report.prompts] == [None, 4, None]


def test_a_differing_row_is_enough_to_be_inexact(fake_arms: Arms) -> None:
    """Rows behind the last compared token: the endpoints agree, the replay does not."""
    options = QualifyOptions(arms=("R", "C_QB"), max_new_tokens=4, replay_rows=4)
    report = fake_arms(options, C_QB=off_at(22))  # only the row behind the last generated token
    arm = report.arms["C_QB"]
    assert arm.equal == arm.endpoints
    assert arm.logit_rows_equal < arm.logit_rows
    assert not arm.exact
    assert not report.exact


def test_ratios_of_prompts_are_given_to_equal_arms_alone(fake_arms: Arms) -> None:
    report = fake_arms(QualifyOptions(max_new_tokens=8, replay_rows=0), C_PQ=off_at(22))
    right, wrong = report.arms["C_QB"], report.arms["C_PQ"]
    ratios = {prompt.id: prompt.seconds["R"] / prompt.seconds["C_QB"] for prompt in report.prompts}
    assert right.worst_prompt is not None
    assert right.worst_prompt.ratio_to_R == ratios[right.worst_prompt.prompt] == min(ratios.values())
    assert right.geometric_mean == pytest.approx(math.prod(ratios.values()) ** (1 / PROMPTS))
    assert right.geometric_mean_by_domain == {"random": right.geometric_mean}
    assert (wrong.geometric_mean, wrong.worst_prompt, wrong.geometric_mean_by_domain) == (None, None, {})


def test_rounds_without_a_draft_are_a_share_of_all(fake_arms: Arms) -> None:
    arms = fake_arms(QualifyOptions(max_new_tokens=8, replay_rows=0)).arms
    assert (arms["R"].mean_k, arms["R"].undrafted_rounds) == (0.0, 1.0)
    k, undrafted = arms["C_QB"].mean_k, arms["C_QB"].undrafted_rounds
    assert k is not None
    assert undrafted is not None
    assert 0 < k <= 3 * (1 - undrafted)


def test_k_is_what_the_bundles_width_allows_where_nothing_is_said(fake_arms: Arms) -> None:
    assert fake_arms(QualifyOptions(max_new_tokens=2, replay_rows=0)).k == 3
    assert fake_arms(QualifyOptions(max_new_tokens=2, replay_rows=0, k=9)).k == 3
    assert fake_arms(QualifyOptions(max_new_tokens=2, replay_rows=0, k=1)).k == 1


def test_a_native_arm_that_differs_does_not_spoil_the_verdict(fake_arms: Arms) -> None:
    report = fake_arms(QualifyOptions(max_new_tokens=8), C_MQ=off_at(22))
    assert not report.arms["C_MQ"].exact
    assert report.exact


def test_a_repeat_that_differs_is_not_hidden_by_the_others(fake_arms: Arms) -> None:
    visits: list[int] = []

    def unstable(tokens: Sequence[int]) -> int:
        visits.append(len(tokens))
        return (RIGHT(tokens) + (len(tokens) == 20 and visits.count(20) == 2)) % VOCABULARY

    options = QualifyOptions(arms=("R", "C_QB"), max_new_tokens=8, repeats=3, replay_rows=0)
    report = fake_arms(options, C_QB=unstable)
    assert (report.arms["C_QB"].equal, report.arms["C_QB"].endpoints) == (2, 3)
    assert report.arms["C_QB"].ratio_to_R is None


def test_progress_names_what_runs_and_reaches_the_end(tiny_bundle: Bundle) -> None:
    told: list[tuple[str, int, int]] = []
    options = QualifyOptions(arms=("R",), max_new_tokens=2, replay_rows=1)
    qualify(tiny_bundle, prompts_for(tiny_bundle), options, SPEC, lambda *step: told.append(step))
    assert told[-1] == ("done", PROMPTS, PROMPTS)
    assert ("p1: R", 1, PROMPTS) in told
