"""Targets over one session that run at the same time each give the bytes they give alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from chain_models import FORMS, chained
from decoder_blocks import SPEC, random_tokens

from qbpass.models.loading import load_decoder
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.bundle_writer import write_bundle
from qbpass.runtime.open_target import BundleTarget, open_target

WIDTHS = (4, 1, 2, 3, 1, 4, 4, 2, 1, 3)
STREAMS = 3


@pytest.fixture(scope="module", params=["qb", "gs", "chained"])
def bundle(request: pytest.FixtureRequest, tiny_eager: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    if request.param == "qb":
        shared: Bundle = request.getfixturevalue("tiny_bundle")
        return shared
    folder = tmp_path_factory.mktemp("siblings")
    if request.param == "chained":
        return chained(folder, FORMS["packed, rotary inside"])
    return write_bundle(load_decoder(tiny_eager), folder / "bundle", "gs", SPEC)[0]


def rows_of(target: BundleTarget, bundle: Bundle, stream: int, between: Callable[[], object]) -> list[bytes]:
    """Logits of a request of its own for every stream, with rejected rows between the kept ones."""
    prompt, tokens = random_tokens(bundle, 11 + stream, stream), random_tokens(bundle, sum(WIDTHS), 100 + stream)
    target.start(11 + stream + sum(WIDTHS))
    rows, fed = [target.prefill(prompt).tobytes()], 0
    for width in WIDTHS:
        between()
        past = target.length
        target.verify(tokens[: max(width - 1, 1)])
        target.rollback(past)
        rows.append(target.verify(tokens[fed : fed + width]).tobytes())
        fed += width
    return rows


def test_siblings_at_the_same_time_give_the_bytes_of_each_alone(bundle: Bundle) -> None:
    first = open_target(bundle, SPEC)
    targets = [first, *(first.sibling(SPEC) for _ in range(STREAMS - 1))]
    alone = [rows_of(first, bundle, stream, lambda: None) for stream in range(STREAMS)]
    assert len(set(map(tuple, alone))) == STREAMS
    together: dict[int, list[bytes]] = {}
    barrier = threading.Barrier(STREAMS)

    def run(stream: int) -> None:
        together[stream] = rows_of(targets[stream], bundle, stream, lambda: barrier.wait(60))

    threads = [threading.Thread(target=run, args=(stream,)) for stream in range(STREAMS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together.get(stream) for stream in range(STREAMS)] == alone
