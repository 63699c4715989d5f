"""--draft PATH: any bundle or export of the same tokens drafts, and no other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from chain_models import chained, exported
from decoder_blocks import SPEC, random_tokens, serial_target
from fake_target import FakeTarget, scrambled
from fused_graphs import Fused

from qbpass.models.errors import ModelFileError
from qbpass.rewrites.bundle import Bundle
from qbpass.runtime.choosing import GREEDY
from qbpass.runtime.drafting.drafts import Drafts
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.model_drafter import ModelDrafter
from qbpass.runtime.open_target import open_target


def drafted(bundle: Bundle, draft: Path) -> float:
    """The acceptance of a draft that changes no token."""
    target, drafts = open_target(bundle, SPEC), Drafts(str(draft), bundle, SPEC)
    request = Request(random_tokens(bundle, 9, 3), max_new_tokens=30)
    endpoint, trace = Engine(target, drafts.drafter(target)).generate(request)
    assert endpoint == Engine(serial_target(bundle)).generate(request)[0]
    assert drafts.model is not None
    assert (drafts.model.source, drafts.model.form, drafts.model.threads) == (str(draft), None, 2)
    assert trace.acceptance is not None
    return trace.acceptance


def test_an_export_of_the_same_model_drafts_in_a_session_of_its_own(tiny_sdpa_bundle: Bundle, tiny_eager: Path) -> None:
    assert drafted(tiny_sdpa_bundle, tiny_eager) > 0.9


def test_a_bundle_of_the_same_model_drafts(tiny_sdpa_bundle: Bundle, tiny_bundle: Bundle) -> None:
    assert drafted(tiny_sdpa_bundle, tiny_bundle.folder) > 0.9


def test_an_export_whose_operators_append_in_place_is_rolled_back_by_a_counter(tmp_path: Path) -> None:
    bundle = chained(tmp_path, Fused())
    (tmp_path / "draft").mkdir()
    path = exported(tmp_path / "draft", Fused())
    assert drafted(bundle, path) > 0.9
    drafter = Drafts(str(path), bundle, SPEC).drafter(open_target(bundle, SPEC))
    assert drafter.target.shares_cache  # type: ignore[attr-defined]


def test_a_model_of_other_weights_is_less_often_right_and_changes_nothing(
    tiny_sdpa_bundle: Bundle, tiny_eager: Path, tmp_path: Path
) -> None:
    """The acceptance above is earned: by weights that are the target's."""
    other = shutil.copytree(tiny_eager, tmp_path / "other")
    weights = next(path for path in other.iterdir() if path.name.endswith(".data"))
    values = np.fromfile(weights, np.float32)
    noise = np.random.default_rng(0).standard_normal(values.size, dtype=np.float32)
    (values + 0.5 * np.abs(values).mean() * noise).astype(np.float32).tofile(weights)
    assert drafted(tiny_sdpa_bundle, other) < 0.9


def test_another_tokenizer_is_refused_with_the_first_difference(
    tiny_sdpa_bundle: Bundle, tiny_eager: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(tiny_eager, tmp_path / "other")
    definition = json.loads((other / "tokenizer.json").read_text())
    vocabulary = definition["model"]["vocab"]
    first, second = sorted(vocabulary, key=vocabulary.get)[3:5]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(ModelFileError, match=r"can't draft for this bundle: token .* is id 3 for the target and id 4"):
        Drafts(str(other), tiny_sdpa_bundle, SPEC)


def test_a_model_of_another_vocabulary_is_refused_where_there_is_no_tokenizer(tmp_path: Path) -> None:
    bundle = chained(tmp_path, Fused())
    with pytest.raises(ModelFileError, match=r"comes without tokenizer.json|neither has a tokenizer"):
        Drafts(str(_export_of_another_vocabulary()), bundle, SPEC)


def _export_of_another_vocabulary() -> Path:
    from qbpass.models.export import cached_export

    return cached_export("builtin:tiny", "eager")


def narrow(vocabulary: int) -> FakeTarget:
    return FakeTarget(scrambled(vocabulary), vocabulary)


@pytest.mark.parametrize("vocabulary", [40, 61, 80])
def test_logits_of_another_width_are_cut_or_filled_up(vocabulary: int) -> None:
    """61 tokens are the target's: what a wider model says of others is cut off, a narrower one never proposes them."""
    right = scrambled(61)
    drafter = ModelDrafter(narrow(vocabulary), 61)
    endpoint, trace = Engine(FakeTarget(right, 61), drafter).generate(Request((1, 2, 3), 24, k=3))
    assert list(endpoint.token_ids) == list(Engine(FakeTarget(right, 61)).generate(Request((1, 2, 3), 24))[0].token_ids)
    assert trace.proposed == trace.accepted + trace.rejected


def test_a_token_the_draft_does_not_know_ends_its_proposals() -> None:
    draft = narrow(40)
    drafter = ModelDrafter(draft, 61)
    drafter.start((1, 2, 3), 16)
    drafter.extend([9])
    assert drafter.propose(2, GREEDY.fork).tokens
    drafter.extend([50])
    assert drafter.propose(2, GREEDY.fork).tokens == ()
    drafter.start((1, 50), 16)
    drafter.extend([9])
    assert drafter.propose(2, GREEDY.fork).tokens == ()
    assert all(token < 40 for _, token in draft.fed)
    drafter.start((1, 2), 16)
    drafter.extend([9])
    assert drafter.propose(2, GREEDY.fork).tokens


def test_a_draft_of_a_shorter_context_proposes_as_far_as_that_goes() -> None:
    draft = narrow(61)
    draft.context_length = 6
    drafter = ModelDrafter(draft)
    drafter.start((1, 2, 3), 32)
    drafter.extend([9])
    assert len(drafter.propose(8, GREEDY.fork).tokens) == 3
    drafter.start(tuple(range(7)), 32)
    drafter.extend([9])
    assert drafter.propose(8, GREEDY.fork).tokens == ()
