"""`qbpass serve` as a process, and requests whose answers are known beforehand."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai

from qbpass.models.errors import QbpassError
from qbpass.models.tokenizer import TextCodec
from qbpass.runtime.choosing import GREEDY, Choosing
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.sampling.settings import Sampling

#: A request's settings in the API's names, and the library's own for them.
SETTINGS: tuple[tuple[dict[str, Any], Choosing], ...] = (
    ({"temperature": 0}, GREEDY),
    ({"temperature": 0.8, "top_p": 0.95, "seed": 11}, Sampling(temperature=0.8, top_p=0.95, seed=11)),
)


@dataclass(frozen=True)
class Case:
    """One request, and what the library gives for it. chat: by the chat endpoint."""

    chat: bool
    asked: dict[str, Any]
    request: Request
    token_ids: tuple[int, ...]
    text: str

    def ask(self, client: openai.OpenAI, **more: Any) -> Any:
        create = client.chat.completions.create if self.chat else client.completions.create
        return create(**self.asked, **more)

    def equals(self, answer: Any) -> bool:
        """A whole answer's text and token ids, or those of a whole stream's pieces."""
        chunks = answer if isinstance(answer, list) else [answer]
        choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
        ids = [token for choice in choices for token in (choice.model_extra or {}).get("token_ids", ())]
        return tuple(ids) == self.token_ids and "".join(map(text_of, choices)) == self.text

    def begins_with(self, text: str) -> bool:
        return self.text.startswith(text)


def text_of(choice: Any) -> str:
    """Of a choice in either endpoint's form, whole or a piece."""
    if hasattr(choice, "text"):
        return choice.text or ""
    part = choice.delta if hasattr(choice, "delta") else choice.message
    return part.content or ""


def cases_of(
    prompts: Sequence[str], engine: Engine, codec: TextCodec, stop_ids: frozenset[int], tokens: int
) -> list[Case]:
    """Every prompt under every setting, by both endpoints in turn, run by the library in this process."""
    made = []
    for number, prompt in enumerate(prompts):
        chat = number % 2 == 0 and codec.chat(prompt) is not None
        ids = codec.encode_prompt(prompt) if chat else codec.encode(prompt)
        said = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
        for named, choosing in SETTINGS:
            request = Request(tuple(ids), tokens, stop_ids, choosing=choosing)
            endpoint, _trace = engine.generate(request)
            asked = {**said, **named, "model": "load", "max_tokens": tokens, "extra_body": {"return_token_ids": True}}
            made.append(Case(chat, asked, request, endpoint.token_ids, codec.decode(endpoint.token_ids)))
    return made


class ServerProcess:
    """Ready when made. Raises QbpassError where it does not come up."""

    def __init__(self, bundle: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "qbpass", "serve", str(bundle), "--port", "0", "--model-name", "load"]
        self.process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = re.search(r"http://\S+:\d+", self.process.stdout.readline())
        if found is None:
            self.process.kill()
            raise QbpassError("the server did not come up: see its message above")
        self.url = found[0]

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=600)

    def metrics(self) -> dict[str, float]:
        """Every sample by its name with labels, as Prometheus's text has it."""
        lines = httpx2.get(f"{self.url}/metrics", timeout=60).text.splitlines()
        return {name: float(value) for name, value in (ln.rsplit(" ", 1) for ln in lines if not ln.startswith("#"))}

    def kill(self) -> None:
        """As a machine that dies does: nothing is told to end."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """The exit code behind SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=120)
