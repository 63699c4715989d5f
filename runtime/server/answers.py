"""Answers in the OpenAI API's form, whole and in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from qbpass.runtime.endpoint import StopReason
from qbpass.runtime.server.job import Finished
from qbpass.runtime.server.served import Served

Json = dict[str, Any]


class Form(Protocol):
    """One of the two endpoints' forms. Every value is an object of the API; pieces are those of a stream.

    ids: token ids to show beside the text; None where nobody asked for them.
    """

    def whole(self, text: str, ids: Sequence[int] | None, done: Finished, usage: Json) -> Json: ...

    def opening(self) -> Json | None: ...

    def piece(self, text: str, ids: Sequence[int] | None) -> Json: ...

    def closing(self, done: Finished) -> Json: ...

    def usage(self, usage: Json) -> Json: ...


class _Form:
    """prefix: of answers' ids. kind, piece_kind: the API's names of an answer and of its pieces."""

    prefix, kind, piece_kind = "", "", ""

    def __init__(self, served: Served, identity: str, created: int, *, shows_usage: bool) -> None:
        """shows_usage: a stream's pieces have a field for it, empty in all but the last."""
        self._head = {"id": f"{self.prefix}-{identity}", "created": created, "model": served.name}
        self._fingerprint, self._shows_usage = served.fingerprint, shows_usage

    def usage(self, usage: Json) -> Json:
        return {**self._object(self.piece_kind, []), "usage": usage}

    def _object(self, kind: str, choices: list[Json]) -> Json:
        return {**self._head, "object": kind, "system_fingerprint": self._fingerprint, "choices": choices}

    def _piece(self, choice: Json, finish_reason: str | None, ids: Sequence[int] | None = None) -> Json:
        whole = {"index": 0, **choice, "logprobs": None, "finish_reason": finish_reason, **_shown(ids)}
        return {**self._object(self.piece_kind, [whole]), **({"usage": None} if self._shows_usage else {})}


class CompletionForm(_Form):
    prefix, kind, piece_kind = "cmpl", "text_completion", "text_completion"

    def whole(self, text: str, ids: Sequence[int] | None, done: Finished, usage: Json) -> Json:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason(done), **_shown(ids)}
        return {**self._object(self.kind, [choice]), "usage": usage}

    def opening(self) -> None:
        return None

    def piece(self, text: str, ids: Sequence[int] | None) -> Json:
        return self._piece({"text": text}, None, ids)

    def closing(self, done: Finished) -> Json:
        return self._piece({"text": ""}, finish_reason(done))


class ChatForm(_Form):
    prefix, kind, piece_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def whole(self, text: str, ids: Sequence[int] | None, done: Finished, usage: Json) -> Json:
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {
            "index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(done), **_shown(ids),
        }  # fmt: skip
        return {**self._object(self.kind, [choice]), "usage": usage}

    def opening(self) -> Json:
        return self._piece({"delta": {"role": "assistant", "content": ""}}, None)

    def piece(self, text: str, ids: Sequence[int] | None) -> Json:
        return self._piece({"delta": {"content": text}}, None, ids)

    def closing(self, done: Finished) -> Json:
        return self._piece({"delta": {}}, finish_reason(done))


def finish_reason(done: Finished) -> str:
    """The API's two words for it; usage_of has the engine's own."""
    return "stop" if done.endpoint.stop_reason in ("end_of_generation", "stop_string") else "length"


def usage_of(done: Finished, seed: int | None) -> Json:
    """Tokens, and under "qbpass" what speculation did, why the answer ended, and the seed it was drawn with."""
    endpoint, trace = done.endpoint, done.trace
    reason: StopReason | str = endpoint.stop_reason
    return {
        "prompt_tokens": trace.prompt_tokens,
        "completion_tokens": endpoint.length,
        "total_tokens": trace.prompt_tokens + endpoint.length,
        "qbpass": {
            "rounds": trace.rounds,
            "proposed_tokens": trace.proposed,
            "accepted_tokens": trace.accepted,
            # Whoever cancels does not read this: of an answer that is read, time was up.
            "stop_reason": "time_limit" if reason == "cancelled" else reason,
            "seed": seed,
        },
    }


def _shown(ids: Sequence[int] | None) -> Json:
    return {} if ids is None else {"token_ids": list(ids)}
