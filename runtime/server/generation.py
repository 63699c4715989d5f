"""The two endpoints that generate: a body in, an answer out, whole or as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.types import Receive, Scope, Send

from qbpass.runtime.answer_text import AnswerText
from qbpass.runtime.engine import Request
from qbpass.runtime.server.answers import ChatForm, CompletionForm, Form, finish_reason, usage_of
from qbpass.runtime.server.api_error import ApiError, failed
from qbpass.runtime.server.bodies import ChatBody, CompletionBody, GenerationBody
from qbpass.runtime.server.engine_pool import EnginePool
from qbpass.runtime.server.intake import Intake
from qbpass.runtime.server.job import Finished, Tokens
from qbpass.runtime.server.metrics import Metrics
from qbpass.runtime.server.served import Served
from qbpass.runtime.server.ticket import ClientGone, Ticket

_LOG = logging.getLogger("qbpass.server")
_STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store"}


@dataclass(frozen=True)
class Kind:
    """name: the endpoint's, in metrics. request_of: from a parsed body."""

    name: str
    parse: Callable[[bytes], GenerationBody]
    request_of: Callable[[Served, Any], Request]
    form: type[CompletionForm] | type[ChatForm]


COMPLETIONS = Kind("completions", CompletionBody.parse, Served.completion, CompletionForm)
CHAT = Kind("chat_completions", ChatBody.parse, Served.chat, ChatForm)


@dataclass(frozen=True)
class Shows:
    """What an answer shows: pieces as they come, a usage behind them, token ids beside the text."""

    streamed: bool
    usage: bool
    ids: bool


class Generation:
    """An endpoint, as an ASGI application."""

    def __init__(self, kind: Kind, served: Served, pool: EnginePool, metrics: Metrics, intake: Intake) -> None:
        self._kind, self._served, self._pool, self._metrics, self._intake = kind, served, pool, metrics, intake

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, identity = time.monotonic(), uuid.uuid4().hex
        exchange = _Exchange(send, identity, self._served.limits.stall_seconds)
        outcome = "failed"
        try:
            outcome = await self._answer(HttpRequest(scope, receive), exchange)
        except ApiError as error:
            outcome = error.outcome
            with contextlib.suppress(ClientGone):
                await exchange.refuse(error, scope, receive)
        except (ClientGone, asyncio.CancelledError):
            outcome = "cancelled"
        except Exception:  # a bug. Its traceback is for the log, which has no prompt in it, and not for the client
            _LOG.exception("request %s failed", identity)
            with contextlib.suppress(ClientGone):
                await exchange.refuse(failed(), scope, receive)
        finally:
            seconds = time.monotonic() - began
            self._metrics.answered(self._kind.name, outcome, seconds)
            _LOG.info("%s %s: %s in %.3f s", self._kind.name, identity, outcome, seconds)

    async def _answer(self, http: HttpRequest, exchange: _Exchange) -> str:
        """What the request is counted as."""
        request, shows = await self._intake.read(http, self._understood)
        form = self._kind.form(self._served, exchange.identity, int(time.time()), shows_usage=shows.usage)
        text = AnswerText(self._served.codec.decode, request.stops)
        ticket = Ticket(self._pool, request, self._served.limits, http.receive, streams=shows.streamed)
        async with ticket:
            done = await (_stream if shows.streamed else _whole)(ticket, form, text, exchange, shows)
        return finish_reason(done)

    def _understood(self, data: bytes) -> tuple[Request, Shows]:
        """Nothing of the body is kept beyond it."""
        body = self._kind.parse(data)
        options = body.stream_options
        shows = Shows(bool(body.stream), options is not None and options.include_usage, bool(body.return_token_ids))
        return self._kind.request_of(self._served, body), shows


async def _whole(ticket: Ticket, form: Form, text: AnswerText, exchange: _Exchange, shows: Shows) -> Finished:
    done = await ticket.next()
    assert isinstance(done, Finished)
    ids = done.endpoint.token_ids
    shown = text.push(ids) + text.finish()
    await exchange.whole(form.whole(shown, ids if shows.ids else None, done, usage_of(done, ticket.seed)))
    return done


async def _stream(ticket: Ticket, form: Form, text: AnswerText, exchange: _Exchange, shows: Shows) -> Finished:
    # Nothing is sent before the first event: until then an error has a status of its own.
    event = await ticket.next()
    opening = form.opening()
    if opening is not None:
        await exchange.event(opening)
    while isinstance(event, Tokens):
        await _show(exchange, form, text.push(event.ids), event.ids if shows.ids else None)
        event = await ticket.next()
    await _show(exchange, form, text.finish(), None)
    await exchange.event(form.closing(event))
    if shows.usage:
        await exchange.event(form.usage(usage_of(event, ticket.seed)))
    await exchange.end()
    return event


async def _show(exchange: _Exchange, form: Form, text: str, ids: Sequence[int] | None) -> None:
    if text or ids:
        await exchange.event(form.piece(text, ids))


class _Exchange:
    """What is sent to a client: one answer, or events and their end."""

    def __init__(self, send: Send, identity: str, stall_seconds: float) -> None:
        self.identity = identity
        self._to_client, self._stall_seconds = send, stall_seconds
        self._started = False

    async def whole(self, value: Any) -> None:
        data = _encoded(value)
        await self._start(200, {"Content-Type": "application/json", "Content-Length": str(len(data))})
        await self._send(data, more=False)

    async def event(self, value: Any) -> None:
        if not self._started:
            await self._start(200, _STREAM_HEADERS)
        await self._send(b"data: " + _encoded(value) + b"\n\n", more=True)

    async def end(self) -> None:
        await self._send(b"data: [DONE]\n\n", more=False)

    async def refuse(self, error: ApiError, scope: Scope, receive: Receive) -> None:
        """As an answer of its own, or as the stream's last event, behind which clients raise it."""
        if not self._started:
            headers = {"X-Request-Id": self.identity}
            if error.status in (408, 413):  # the rest of the body is not read
                headers["Connection"] = "close"
            await error.response(headers)(scope, receive, self._to_client)
            return
        await self._send(b"data: " + _encoded(error.body()) + b"\n\n", more=False)

    async def _start(self, status: int, headers: dict[str, str]) -> None:
        self._started = True
        shown = {**headers, "X-Request-Id": self.identity}
        pairs = [(name.lower().encode(), value.encode()) for name, value in shown.items()]
        await self._to_client({"type": "http.response.start", "status": status, "headers": pairs})

    async def _send(self, data: bytes, *, more: bool) -> None:
        """Raises ClientGone where the client leaves unread what it was sent."""
        try:
            async with asyncio.timeout(self._stall_seconds):
                await self._to_client({"type": "http.response.body", "body": data, "more_body": more})
        except (TimeoutError, OSError):
            raise ClientGone from None
        await asyncio.sleep(0)  # sending need not wait for anything: let the loop see that the client is gone


def _encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
