"""Past and new rows are joined in any order of axes that is one; another order, or another past, is refused."""

from __future__ import annotations

import onnx
import pytest
from site_graphs import Knobs, make_decoder

from qbpass.admission.admit import admit
from qbpass.models.decoder import Decoder


def codes(decoder: Decoder) -> set[str]:
    return {diagnostic.code for site in admit(decoder).sites for diagnostic in site.diagnostics}


def node_of(decoder: Decoder, output: str) -> onnx.NodeProto:
    return next(node for node in decoder.model.graph.node if output in node.output)


def test_rows_joined_in_front_of_heads_are_read_with_the_order_of_their_axes() -> None:
    site = admit(make_decoder(Knobs(join="turned"))).sites[0].site
    assert site is not None
    assert (site.old_key, site.new_key) == ("past.0.key.turned", "l0.new_key.turned")
    assert site.key_axes == site.value_axes == (0, 2, 1, 3)


def test_rows_joined_as_they_are_cached_have_no_other_past() -> None:
    site = admit(make_decoder(Knobs())).sites[0].site
    assert site is not None
    assert (site.old_key, site.new_key, site.key_axes) == (None, "l0.new_key", (0, 1, 2, 3))


def _joined_along_the_heads(decoder: Decoder) -> None:
    node_of(decoder, "l0.key.joined").attribute[0].i = 2


def _another_order_in_front(decoder: Decoder) -> None:
    """Width and rows change places in the past alone."""
    node_of(decoder, "past.0.key.turned").attribute[0].ints[:] = [0, 3, 1, 2]


def _the_values_past(decoder: Decoder) -> None:
    node_of(decoder, "past.0.key.turned").input[0] = "past.0.value"


@pytest.mark.parametrize("broken", [_joined_along_the_heads, _another_order_in_front, _the_values_past])
def test_a_join_that_is_not_past_and_then_new_rows_is_refused(broken: object) -> None:
    decoder = make_decoder(Knobs(join="turned"))
    assert codes(decoder) == set()
    broken(decoder)  # type: ignore[operator]
    assert codes(decoder)
