"""A model to serve: bytes as tokens, a chat template, and targets whose answers and whose pace a test decides."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openai
from fake_target import FakeTarget
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from qbpass.models.tokenizer import TextCodec
from qbpass.runtime.drafting.ngram import NgramDrafter
from qbpass.runtime.engine import Engine
from qbpass.runtime.server.app import Service
from qbpass.runtime.server.limits import Limits
from qbpass.runtime.server.served import Served
from qbpass.runtime.server.serving import Server, listening_socket, url_of

ASKED: dict[str, Any] = {"model": "tiny", "prompt": "x", "max_tokens": 99}
END, VOCABULARY, CONTEXT = 256, 257, 512
TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'developer' %}{{ raise_exception('no developers') }}{% endif %}"
    "{{ message.role }}: {{ message.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


def byte_codec(folder: Path, template: str | None = TEMPLATE) -> TextCodec:
    """A token a byte, and <|end|>."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bytes_in_order = _byte_characters()
    assert sorted(bytes_in_order) == sorted(alphabet)
    tokenizer = Tokenizer(models.BPE({character: byte for byte, character in enumerate(bytes_in_order)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    files = {"tokenizer.json": folder / "tokenizer.json"}
    if template is not None:
        files["chat_template.jinja"] = folder / "chat_template.jinja"
        files["chat_template.jinja"].write_text(template)
    return TextCodec(files)


def _byte_characters() -> list[str]:
    """The visible character that byte-level BPE writes for each byte (Radford et al., GPT-2)."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte) if byte in visible else chr(256 + hidden.index(byte)) for byte in range(256)]


class Teller(FakeTarget):
    """Says `story` behind every prompt, then <|end|>, whatever the prompt is.

    gate: verifications wait for one of its permits; None lets all through. entered: set while one waits.
    """

    def __init__(self, story: str = "once upon a time", *, gate: threading.Semaphore | None = None, **named: Any):
        super().__init__(self._next, VOCABULARY, context_length=CONTEXT, **named)
        self._story = [*story.encode(), END]
        self.gate, self.entered, self.calls = gate, threading.Event(), 0

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        self._prompt = len(tokens)
        return super().prefill(tokens)

    def verify(self, tokens: Sequence[int]) -> np.ndarray:
        self.calls += 1
        if self.gate is not None:
            self.entered.set()
            assert self.gate.acquire(timeout=30)
        return super().verify(tokens)

    def _next(self, tokens: Sequence[int]) -> int:
        return self._story[min(max(len(tokens) - self._prompt, 0), len(self._story) - 1)]


class Broken(Teller):
    """NaN logits behind a prompt that has the byte `!` in it, at the so-manieth call."""

    def __init__(self, at_call: int = 0, **named: Any):
        super().__init__(**named)
        self._at_call = at_call

    def _rows(self, tokens: Sequence[int]) -> np.ndarray:
        rows = super()._rows(tokens)
        if ord("!") in self.kv and self.calls >= self._at_call:
            rows[:] = np.nan
        return rows


def service_of(codec: TextCodec, *targets: Any, api_key: str | None = None, limits: Limits | None = None) -> Service:
    served = Served("tiny", codec, VOCABULARY, CONTEXT, frozenset({END}), "qbpass-0", limits=limits or Limits())
    return Service(served, [Engine(target, NgramDrafter()) for target in targets], api_key)


@dataclass(frozen=True)
class Running:
    url: str
    service: Service
    server: Server

    def stop(self) -> None:
        """As a signal does."""
        self.server.should_exit = True

    def client(self, key: str = "none", **named: Any) -> openai.OpenAI:
        """The official client, without retries, so that a test sees every answer."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=30, **named)


@contextmanager
def running(service: Service, api_key: str | None = None) -> Iterator[Running]:
    """The service on a real socket, in a thread."""
    listener = listening_socket("127.0.0.1", 0, api_key)
    url = url_of(listener)
    ready = threading.Event()
    server = Server(service, listener, ready.set)
    thread = threading.Thread(target=server.run)
    thread.start()
    assert ready.wait(30)
    try:
        yield Running(url, service, server)
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def until(holds: Callable[[], bool]) -> None:
    """Waits for it; fails after half a minute."""
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def later(work: Callable[[], Any]) -> Future[Any]:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return future


def ask(server: Running, **more: Any) -> Any:
    with server.client() as client:
        return client.completions.create(**ASKED, **more)
