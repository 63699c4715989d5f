"""What every session is opened with, asked of the session itself: its threads, and that they stop spinning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chain_models import FORMS, chained

from qbpass.models.errors import BundleError
from qbpass.models.loading import load_decoder
from qbpass.models.session import SessionSpec
from qbpass.rewrites.bundle import Bundle, check_recipe
from qbpass.rewrites.bundle_writer import write_bundle
from qbpass.rewrites.manifest import Emit
from qbpass.runtime.model_drafter import ModelDrafter
from qbpass.runtime.open_target import open_target
from qbpass.runtime.serial_target import SerialTarget

ONE, TWO = SessionSpec(threads=1), SessionSpec(threads=2)


def sessions_of(target: Any) -> list[Any]:
    found: list[Any] = []
    target.watch(lambda session, graph: found.append(session) or session)
    return found


def bundle_of(folder: Path, emit: Emit) -> Bundle:
    return chained(folder, FORMS["rows apart"], emit=emit)


@pytest.mark.parametrize("emit", ["guarded", "specialized"])
@pytest.mark.parametrize("spec", [ONE, TWO])
def test_every_session_has_the_threads_asked_for_and_stops_spinning(
    tmp_path: Path, emit: Emit, spec: SessionSpec
) -> None:
    bundle = bundle_of(tmp_path, emit)
    target = open_target(bundle, spec)
    draft = ModelDrafter.sharing(target, bundle.manifest, spec).target
    sessions = [*sessions_of(target), *sessions_of(draft), SerialTarget.from_bundle(bundle, spec).session]
    assert len(sessions) == {"guarded": 2, "specialized": 3}[emit] * 2 + 1
    for session in sessions:
        options = session.get_session_options()
        assert options.intra_op_num_threads == spec.threads
        assert options.inter_op_num_threads == 1
        assert options.get_session_config_entry("session.force_spinning_stop") == "1"


def test_the_recipe_holds_the_threads_of_target_and_of_a_draft_of_its_own(tmp_path: Path) -> None:
    """A draft that is a bundle has a recipe, too: with other threads it would propose what it was not measured with."""
    (tmp_path / "target").mkdir()
    (tmp_path / "draft").mkdir()
    for bundle in (bundle_of(tmp_path / "target", "guarded"), bundle_of(tmp_path / "draft", "guarded")):
        assert bundle.manifest.recipe.threads == 2
        assert check_recipe(bundle, TWO).threads == 2
        with pytest.raises(BundleError, match="threads"):
            check_recipe(bundle, ONE)


def test_threads_are_those_the_bundle_was_made_with(tmp_path: Path) -> None:
    from chain_models import exported

    decoder = load_decoder(exported(tmp_path, FORMS["rows apart"]))
    assert write_bundle(decoder, tmp_path / "bundle", "pq", ONE)[0].manifest.recipe.threads == 1
