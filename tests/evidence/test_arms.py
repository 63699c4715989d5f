"""Nine arms: the reference, and four layouts with speculation and without. Three layouts are promised to be exact."""

from __future__ import annotations

from pathlib import Path

import pytest
from decoder_blocks import SPEC, random_tokens

from qbpass.evidence.arms import build_arms
from qbpass.evidence.options import ARMS, QualifyOptions, default_arms
from qbpass.evidence.prompts import Prompt
from qbpass.evidence.qualify import qualify
from qbpass.evidence.report import QualificationReport
from qbpass.models.loading import load_decoder
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.bundle_writer import write_bundle
from qbpass.runtime.drafter import NoDrafter

ALL = tuple(ARMS)
REPAIRED = {f"{kind}_{layout}" for kind in "MC" for layout in ("QB", "PQ", "GS")}


@pytest.fixture(scope="module", params=["whole", "chunks:12", "one"])
def report(
    request: pytest.FixtureRequest, tiny_eager: Path, tmp_path_factory: pytest.TempPathFactory
) -> QualificationReport:
    folder = tmp_path_factory.mktemp("bundles") / "bundle"
    bundle = write_bundle(load_decoder(tiny_eager), folder, "qb", SPEC, prefill=request.param)[0]
    prompts = [
        Prompt("a", "random", random_tokens(bundle, 37, 1)),
        Prompt("b", "random", random_tokens(bundle, 3, 2) * 4),
    ]
    return qualify(bundle, prompts, QualifyOptions(arms=ALL, policy="fixed", max_new_tokens=16, replay_rows=8), SPEC)


def test_every_repaired_arm_is_the_reference_and_no_native_one(report: QualificationReport) -> None:
    assert {name for name, arm in report.arms.items() if arm.repaired} == REPAIRED
    for name, arm in report.arms.items():
        if name != "R":
            assert arm.exact == (name in REPAIRED), name
            assert arm.logit_rows == 2 * 8 * 10


def test_arms_without_speculation_propose_nothing(report: QualificationReport) -> None:
    for name, arm in report.arms.items():
        assert (arm.acceptance is None) == (not name.startswith("C_")), name


def test_arms_of_one_layout_share_a_session(tiny_bundle: Bundle) -> None:
    arms = {arm.name: arm for arm in build_arms(tiny_bundle, QualifyOptions(arms=ALL), SPEC)}
    sessions = {name: id(arm.target.session) for name, arm in arms.items()}  # type: ignore[attr-defined]
    assert len(set(sessions.values())) == 3  # frozen, QB, PQ
    assert sessions["R"] == sessions["C_GS"] == sessions["M_GS"]
    assert sessions["C_MQ"] == sessions["C_QB"]
    assert arms["R"].target is not arms["C_GS"].target
    assert all(isinstance(arm.engine.drafter, NoDrafter) for name, arm in arms.items() if name[0] != "C")


def test_a_bundle_names_the_arms_it_can_be_run_with(tiny_bundle: Bundle) -> None:
    manifest = tiny_bundle.manifest
    assert default_arms(manifest) == ("R", "C_MQ", "C_QB", "C_PQ")
    assert default_arms(manifest.model_copy(update={"layout": "gs"})) == ("R", "C_MQ", "C_GS")
