"""What a server serves, and how a request's body becomes the engine's request."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from qbpass.models.errors import ModelFileError, QbpassError
from qbpass.models.tokenizer import TextCodec
from qbpass.runtime.engine import Request
from qbpass.runtime.server.api_error import ApiError
from qbpass.runtime.server.bodies import ChatBody, CompletionBody, GenerationBody
from qbpass.runtime.server.choosing_of import choosing_of, grammar_of
from qbpass.runtime.server.limits import Limits
from qbpass.runtime.stops import Stops

#: New tokens of /v1/completions where a request does not say, as the OpenAI API has it. A chat's answer has all there
#: is room for.
DEFAULT_COMPLETION_TOKENS = 16


@dataclass(frozen=True)
class Served:
    """name: the model's, as clients ask for it. fingerprint: of everything its answers depend on.

    k: the most tokens proposed in a round; None: what the target's width allows. created: Unix seconds.
    """

    name: str
    codec: TextCodec
    vocab_size: int
    context_length: int | None
    stop_ids: frozenset[int]
    fingerprint: str
    k: int | None = None
    limits: Limits = field(default_factory=Limits)
    created: int = field(default_factory=lambda: int(time.time()))

    def completion(self, body: CompletionBody) -> Request:
        """Raises ApiError where the request can't be followed."""
        prompt = body.text_or_ids
        ids = self.codec.encode(prompt) if isinstance(prompt, str) else prompt
        return self._request(body, ids, "prompt", DEFAULT_COMPLETION_TOKENS)

    def chat(self, body: ChatBody) -> Request:
        """Raises ApiError where the request can't be followed."""
        messages = [
            {"role": message.role, "content": message.text, **({} if message.name is None else {"name": message.name})}
            for message in body.messages
        ]
        try:
            text = self.codec.conversation(messages)
        except ModelFileError as error:  # a template may refuse a conversation, such as one that begins with an answer
            raise ApiError(400, str(error), param="messages") from error
        if text is None:
            raise ApiError(400, "this model has no chat template: use /v1/completions", param="messages")
        return self._request(body, self.codec.encode(text, rendered=True), "messages", None)

    def _request(self, body: GenerationBody, ids: list[int], param: str, default: int | None) -> Request:
        if body.model not in (None, self.name):
            raise ApiError(
                404,
                f"there is no such model here: this server has {self.name!r}",
                param="model",
                code="model_not_found",
            )
        if not ids:
            raise ApiError(400, f"{param}: give at least one token", param=param)
        if max(ids) >= self.vocab_size:
            raise ApiError(400, f"{param}: token ids must be below {self.vocab_size}", param=param)
        context, most = self.context_length, self.limits.max_tokens
        if context is not None and len(ids) >= context:
            raise ApiError(
                400, f"{param} has {len(ids)} tokens, the model's context {context}: shorten it",
                param=param, code="context_length_exceeded",
            )  # fmt: skip
        asked = body.most_tokens
        if asked is not None and asked > most:
            raise ApiError(400, f"at most {most} tokens may be asked for", param="max_tokens")
        stop_ids = frozenset(body.stop_token_ids or ()) | (frozenset() if body.ignore_eos else self.stop_ids)
        try:
            stops = Stops(stop_ids, body.stop_strings, self.codec.decode, body.min_tokens or 0)
            grammar = grammar_of(body, self.codec, self.vocab_size, self.stop_ids)
            choosing = choosing_of(body, stop_ids, grammar)
        except QbpassError as error:
            raise ApiError(400, str(error)) from error
        # The engine ends a request at the context's end by itself.
        return Request(tuple(ids), asked or default or most, k=self.k, choosing=choosing, stops=stops)
