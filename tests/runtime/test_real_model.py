"""SmolLM2-135M-Instruct: all thirty layers, the rewritten decoder against its own serial reference, byte for byte."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from decoder_blocks import SPEC, random_tokens

from qbpass.evidence.forced_replay import ReplayCount, replay, serial_rows
from qbpass.models.loading import load_decoder
from qbpass.models.tokenizer import TextCodec
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.bundle_writer import write_bundle
from qbpass.rewrites.self_draft.quantize import QuantForm
from qbpass.rewrites.self_draft.store import stored_draft
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.self_draft.open import drafter_of
from qbpass.runtime.serial_target import SerialTarget

pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module", params=["smollm2_eager", "smollm2_sdpa"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bundle]:
    """A QB bundle of one export. Over half a gigabyte: it is removed when these tests are done."""
    export: Path = request.getfixturevalue(request.param)
    folder = tmp_path_factory.mktemp(request.param) / "bundle"
    written, _, report = write_bundle(load_decoder(export), folder, "qb", SPEC)
    assert [site.admitted for site in report.sites] == [True] * 30
    yield written
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def target(bundle: Bundle) -> BlockTarget:
    return BlockTarget.from_bundle(bundle, SPEC)


@pytest.fixture(scope="module")
def serial(bundle: Bundle) -> SerialTarget:
    return SerialTarget.from_frozen(bundle.reference, SPEC)


@pytest.mark.parametrize(("prompt_tokens", "rows"), [(11, 6), (1000, 4)])
def test_every_row_of_every_block_equals_serial_decoding(
    bundle: Bundle, target: BlockTarget, serial: SerialTarget, prompt_tokens: int, rows: int
) -> None:
    prompt, tokens = random_tokens(bundle, prompt_tokens, 1), random_tokens(bundle, rows, 2)
    count = ReplayCount()
    replay(target, "prompt", prompt, tokens, serial_rows(serial, prompt, tokens), count)
    assert count.equal == count.rows == rows * 10
    for index in (0, 29, 59):
        assert target.cached(index).tobytes() == serial.cached(index).tobytes()


def test_most_rows_of_the_native_graph_do_not(bundle: Bundle, target: BlockTarget, serial: SerialTarget) -> None:
    prompt, tokens = random_tokens(bundle, 11, 1), random_tokens(bundle, 6, 2)
    count = ReplayCount()
    replay(target.native(SPEC), "prompt", prompt, tokens, serial_rows(serial, prompt, tokens), count)
    assert count.rows - count.equal > count.rows / 2


def test_the_bundle_holds_those_weights_alone_that_the_optimizer_changed(bundle: Bundle) -> None:
    """It transposes every projection of torch's exports; the embedding stays the export's, which the head's is not."""
    sizes = {path.name: path.stat().st_size for path in bundle.folder.iterdir()}
    weights = bundle.manifest.weights
    assert {name for name, file in weights.items() if file.folder is None} == {"reference.data"}
    assert len(weights) == 2
    assert 500 * 2**20 < sizes["reference.data"] < 520 * 2**20
    assert sizes["decoder.onnx"] < 2 * 2**20


def test_a_self_draft_changes_no_token_of_the_real_model_and_is_mostly_right(
    bundle: Bundle, target: BlockTarget
) -> None:
    form = QuantForm(8, 8)
    drafter = drafter_of(bundle, target, form, stored_draft(bundle, form), SPEC)
    prompt = tuple(TextCodec(bundle.reference.tokenizer_files).encode_prompt("Tell me about the sea."))
    serial = SerialTarget.from_bundle(bundle, SPEC)
    endpoint, trace = Engine(target, drafter).generate(Request(prompt, 24, k=3))
    assert endpoint == Engine(serial).generate(Request(prompt, 24))[0]
    assert trace.acceptance is not None
    assert trace.acceptance > 0.8
    layers = range(2 * len(target.interface.layers))
    assert [target.cached(i).tobytes() for i in layers] == [serial.cached(i).tobytes() for i in layers]
