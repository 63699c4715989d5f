"""The index map of a path says which element lands where."""

from __future__ import annotations

import numpy as np
import pytest
from site_graphs import Knobs, make_decoder

from qbpass.admission.calls.call import CALLS, Call
from qbpass.admission.dataflow import Flow
from qbpass.admission.path_map import PathError, index_map


def key_map(knobs: Knobs, queries: int = 2, past: int = 3) -> np.ndarray:
    flow = Flow.of(make_decoder(knobs))
    (qk,) = (node for node in flow.nodes if node.output[0] == "l0.qk")
    return index_map(flow, "present.0.key", qk.input[1], Call(queries, past))


@pytest.mark.parametrize(("queries", "past"), [(1, 0), (1, 7), (4, 5)])
def test_an_expanded_key_reads_each_kv_head_group_times_in_place(queries: int, past: int) -> None:
    present = np.arange(2 * (queries + past) * 8).reshape(1, 2, queries + past, 8)
    assert key_map(Knobs(), queries, past).tolist() == np.repeat(present, 2, axis=1).tolist()


def test_a_tiled_key_reads_the_kv_heads_round_robin() -> None:
    present = np.arange(2 * 5 * 8).reshape(1, 2, 5, 8)
    assert key_map(Knobs(repeat="tile")).tolist() == np.concatenate([present, present], axis=1).tolist()


def test_a_transposed_key_has_its_columns_as_rows() -> None:
    plain, turned = key_map(Knobs()), key_map(Knobs(product="matmul"))
    assert turned.tolist() == plain.swapaxes(-1, -2).tolist()


def test_an_empty_path_maps_each_element_to_itself() -> None:
    assert key_map(Knobs(heads=2, repeat="none")).reshape(-1).tolist() == list(range(2 * 5 * 8))


def test_a_scalar_factor_moves_nothing() -> None:
    assert key_map(Knobs(repeat="scaled")).tolist() == key_map(Knobs()).tolist()


def test_a_path_that_changes_values_has_no_map() -> None:
    with pytest.raises(PathError, match="has a Add that changes values"):
        key_map(Knobs(repeat="shifted"))


def test_a_path_of_unknown_size_has_no_map() -> None:
    with pytest.raises(PathError, match="whose dimension 1 is unknown"):
        index_map(Flow.of(make_decoder(Knobs(query_heads="heads"))), "l0.q", "l0.q", CALLS[0])
