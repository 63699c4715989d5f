"""`qbpass serve` from outside: the address, the key, how it ends, and that being killed leaves nothing behind."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from qbpass.models.session import SessionSpec
from qbpass.models.tokenizer import TextCodec
from qbpass.rewrites.bundle import Bundle
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.open_target import open_target
from qbpass.runtime.server.serving import listening_socket

Mistake = Callable[..., str]
PROMPT, TOKENS = "one two one two", 60


@pytest.fixture(scope="module")
def wanted(tiny_bundle: Bundle) -> tuple[int, ...]:
    """The library's own answer."""
    ids = TextCodec(tiny_bundle.reference.tokenizer_files).encode(PROMPT)
    request = Request(tuple(ids), TOKENS, frozenset(tiny_bundle.manifest.eos_token_ids))
    return Engine(open_target(tiny_bundle, SessionSpec(threads=2))).generate(request)[0].token_ids


class Process:
    """`qbpass serve` as a process, ready. It is killed at the end."""

    def __init__(self, bundle: Bundle, *arguments: str) -> None:
        command = [sys.executable, "-m", "qbpass", "serve", str(bundle.folder), "--threads", "2", "--port", "0"]
        self.process = subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"at (http://127\.0\.0\.1:\d+)/v1$", line.strip())
        assert found is not None, line
        self.client = openai.OpenAI(base_url=f"{found[1]}/v1", api_key="none", max_retries=0, timeout=60)

    def answer(self, **more: Any) -> tuple[int, ...]:
        asked = {"model": self.client.models.list().data[0].id, "prompt": PROMPT, "max_tokens": TOKENS, **more}
        choice = self.client.completions.create(**asked, extra_body={"return_token_ids": True}).choices[0]
        return tuple((choice.model_extra or {})["token_ids"])

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *raised: object) -> None:
        self.client.close()
        self.process.kill()
        self.process.communicate()

    def ended(self, number: signal.Signals) -> tuple[int, str]:
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


def test_an_answer_is_the_librarys_before_and_behind_a_kill_in_the_middle_of_one(
    tiny_bundle: Bundle, wanted: tuple[int, ...]
) -> None:
    files = {path.name: path.stat().st_mtime_ns for path in tiny_bundle.folder.iterdir()}
    with Process(tiny_bundle, "--log-requests") as server:
        assert server.answer() == wanted
        stream = server.client.completions.create(model=tiny_bundle.folder.name, prompt=PROMPT, stream=True)
        next(iter(stream))
        assert server.ended(signal.SIGKILL)[0] == -signal.SIGKILL
        stream.close()
    assert {path.name: path.stat().st_mtime_ns for path in tiny_bundle.folder.iterdir()} == files
    with Process(tiny_bundle, "--draft", "none") as server:
        assert server.answer() == wanted
        assert server.ended(signal.SIGTERM) == (0, "")


def test_several_engines_over_one_session_give_the_same_answers_at_the_same_time(
    tiny_bundle: Bundle, wanted: tuple[int, ...]
) -> None:
    with Process(tiny_bundle, "--engines", "3") as server:
        answers: list[tuple[int, ...]] = []
        threads = [threading.Thread(target=lambda: answers.extend(server.answer() for _ in range(4))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(answers) == {wanted}
        assert len(answers) == 12
        assert server.ended(signal.SIGINT) == (130, "")


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with listening_socket("127.0.0.1", 0, None) as listener:
        listener.listen()
        yield listener.getsockname()[1]


def test_an_address_that_is_taken_or_not_ours(tiny_bundle: Bundle, taken: int, mistake: Mistake) -> None:
    arguments = ["serve", tiny_bundle.folder, "--threads", 2]
    assert "choose another --host or --port" in mistake(*arguments, "--port", taken)
    assert "choose another" in mistake(*arguments, "--host", "192.0.2.1", "--api-key", "k", "--port", 0)
    assert "no address" in mistake(*arguments, "--host", "no.such.name.invalid", "--api-key", "k")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "example.com", ""])
def test_what_others_can_reach_needs_a_key(
    host: str, tiny_bundle: Bundle, mistake: Mistake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QBPASS_API_KEY", raising=False)
    assert "QBPASS_API_KEY" in mistake("serve", tiny_bundle.folder, "--host", host)


@pytest.mark.parametrize("key", ["", "two words", "ключ", "line\nend"])
def test_a_key_that_no_client_can_send(key: str, tiny_bundle: Bundle, mistake: Mistake) -> None:
    assert "API key" in mistake("serve", tiny_bundle.folder, "--api-key", key)


def test_a_key_comes_from_the_environment_too(
    tiny_bundle: Bundle, mistake: Mistake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QBPASS_API_KEY", "two words")
    assert "API key" in mistake("serve", tiny_bundle.folder)


def test_a_folder_that_is_no_bundle_and_a_drafter_that_is_not_there(
    tiny_bundle: Bundle, tmp_path: Path, mistake: Mistake
) -> None:
    assert "is not a bundle" in mistake("serve", tmp_path)
    assert "--draft" in mistake("serve", tiny_bundle.folder, "--draft", "oracle")
    assert "threads: bundle 2" in mistake("serve", tiny_bundle.folder, "--threads", 1, "--port", 0)


def test_serving_without_what_it_needs(tiny_bundle: Bundle, mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qbpass.commands.serve.find_spec", lambda name: None if name == "uvicorn" else object())
    assert "qbpass[serve]" in mistake("serve", tiny_bundle.folder)
