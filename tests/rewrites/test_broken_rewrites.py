"""A rewrite that is wrong is caught by the comparisons the product itself uses: a falsifier's trial, the forced replay.

Every fault goes through the same comparison as the unbroken code, which passes it in the first tests of this file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnxruntime as ort
import pytest
from decoder_blocks import SPEC, block_target, plan_of, random_tokens, replayed, sites_of
from faults import FAULTS, Fault

from qbpass.models.decoder import Decoder
from qbpass.rewrites import apply
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.extents import NO_TAIL_EFFECT, ExtentRule
from qbpass.rewrites.falsify import SiteFalsifier, Trial
from qbpass.rewrites.plan import Layout, SiteForm
from qbpass.runtime.buffers import KVBuffers

PASTS = (*range(9), 62, 63, 64)
LAYOUTS: tuple[Layout, ...] = ("qb", "pq")


@pytest.fixture(scope="module", params=["eager", "sdpa"])
def bundle(request: pytest.FixtureRequest, tiny_bundle: Bundle, tiny_sdpa_bundle: Bundle) -> Bundle:
    return tiny_bundle if request.param == "eager" else tiny_sdpa_bundle


def falsifier(reference: Decoder, layout: Layout) -> SiteFalsifier:
    sites = sites_of(reference)
    return SiteFalsifier(reference, layout, sites[1], sites, 4, SPEC, pasts=PASTS)


def trial(bundle: Bundle, layout: Layout, extents: ExtentRule | None = None) -> Trial:
    form = plan_of(bundle, layout, extents=extents).sites[0].form
    return falsifier(bundle.reference, layout).trial(form)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_unbroken_site_passes_the_trial(bundle: Bundle, layout: Layout) -> None:
    result = trial(bundle, layout)
    assert result.rows == len(PASTS) * (1 + 2 + 3 + 4)
    assert result.differing == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_unbroken_decoder_passes_the_replay(bundle: Bundle, layout: Layout) -> None:
    count = replayed(bundle, block_target(bundle, plan_of(bundle, layout)))
    assert count.rows > 100
    assert count.equal == count.rows


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_trial_catches(bundle: Bundle, fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(apply.LAYOUT_EMITTERS, "qb", fault(apply.LAYOUT_EMITTERS["qb"]))
    result = trial(bundle, "qb")
    assert result.differing
    # These are no rounding effects: a wrong row is another row.
    assert max(witness.max_abs_difference for witness in result.differing) > 1e-3
    assert result.summary()["verdict"] == "false"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_replay_of_the_whole_decoder_catches(
    tiny_bundle: Bundle, layout: Layout, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(apply.LAYOUT_EMITTERS, layout, fault(apply.LAYOUT_EMITTERS[layout]))
    count = replayed(tiny_bundle, block_target(tiny_bundle, plan_of(tiny_bundle, layout)))
    assert count.equal < count.rows
    assert count.first is not None


def test_the_trial_catches_a_removed_tail_rule_at_the_measured_extents_only(bundle: Bundle) -> None:
    rule = bundle.extents
    if rule == NO_TAIL_EFFECT:
        pytest.skip("no row bears a mark of its tail on this machine")
    result = trial(bundle, "qb", NO_TAIL_EFFECT)
    assert result.differing
    assert all(rule.exact(witness.extent) for witness in result.differing)
    assert all(witness.extent < witness.past + witness.queries for witness in result.differing)


def test_the_replay_catches_a_removed_tail_rule(bundle: Bundle) -> None:
    rule = bundle.extents
    if rule == NO_TAIL_EFFECT:
        pytest.skip("no row bears a mark of its tail on this machine")
    count = replayed(bundle, block_target(bundle, plan_of(bundle, extents=NO_TAIL_EFFECT)))
    assert count.equal < count.rows
    assert count.first is not None
    assert rule.exact(count.first.past + count.first.row + 1)


def test_the_trial_catches_products_whose_rows_were_not_separated(bundle: Bundle) -> None:
    assert falsifier(bundle.reference, "qb").trial(SiteForm("rows", "rows")).differing


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_replay_catches_cache_rows_written_one_slot_early(
    tiny_bundle: Bundle, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "emit_update", _shifted_update(apply.emit_update))
    count = replayed(tiny_bundle, block_target(tiny_bundle, plan_of(tiny_bundle, layout)))
    assert count.equal < count.rows


def _shifted_update(emit: Callable[..., None]) -> Callable[..., None]:
    def broken(builder: Any, site: Any, cache: Any, new: Any, dims: Any) -> None:
        right = dims.slots
        dims.slots = builder.node("Sub", [right, builder.ints(1)], "fault/slots", dtype="int64")
        emit(builder, site, cache, new, dims)
        dims.slots = right

    return broken


def test_the_replay_catches_value_segments_read_before_this_calls_rows_are_written(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tiny_bundle.manifest.segments == 1:
        pytest.skip("no row bears a mark of its tail on this machine: there is one segment")
    monkeypatch.setattr(KVBuffers, "bind", _stale_segments(KVBuffers.bind))
    count = replayed(tiny_bundle, block_target(tiny_bundle, plan_of(tiny_bundle)))
    assert count.equal < count.rows


def _stale_segments(bind: Callable[..., None]) -> Callable[..., None]:
    """Segments bound to what the value cache held when the call began."""

    def broken(self: KVBuffers, binding: Any, extents: list[int]) -> None:
        bind(self, binding, extents)
        for part, value in zip(self._parts, self._values, strict=True):
            for name, extent in zip(part.segments, extents, strict=False):
                stale = value.numpy()[:extent].copy()
                binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(stale))

    return broken


def test_the_replay_catches_the_native_layout(tiny_bundle: Bundle) -> None:
    native = block_target(tiny_bundle, plan_of(tiny_bundle)).native(SPEC)
    count = replayed(tiny_bundle, native, tokens=random_tokens(tiny_bundle, 9, 3))
    multi = {key: rows for key, rows in count.by_width_and_alignment.items() if key[0] > 1}
    assert count.rows - count.equal > 0.5 * sum(multi.values())
