"""The server as an ASGI application: engines, endpoints, and errors in one form."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from qbpass.runtime.engine import Engine
from qbpass.runtime.server.api_error import ApiError, failed, shutting_down
from qbpass.runtime.server.engine_pool import EnginePool
from qbpass.runtime.server.generation import CHAT, COMPLETIONS, Generation
from qbpass.runtime.server.guard import Guard
from qbpass.runtime.server.intake import Intake
from qbpass.runtime.server.job import Failed
from qbpass.runtime.server.metrics import Metrics
from qbpass.runtime.server.served import Served


class Service:
    """What is served, by whom. `app` is to be run in an ASGI server; its lifespan is that of the engines' threads."""

    def __init__(self, served: Served, engines: Sequence[Engine], api_key: str | None = None) -> None:
        """api_key: whoever does not have it is refused; None where only this machine can ask."""
        self.served, self.metrics = served, Metrics()
        self.pool = EnginePool(engines, served.limits.queue, self.metrics.generated)
        self.metrics.watch(self.pool)
        self.intake = Intake(served.limits)
        application = self._application()
        self.routes = [route.path for route in application.routes if isinstance(route, Route)]
        self.app: ASGIApp = Guard(application, api_key)

    def stop(self) -> None:
        """Call it in the event loop. Requests that wait are refused, those under way get the time of grace."""
        for job in self.pool.close():
            job.end(Failed(shutting_down()))
        asyncio.get_running_loop().call_later(self.served.limits.grace_seconds, self.pool.cancel_running)

    def _application(self) -> Starlette:
        def generation(kind: Any) -> Generation:
            return Generation(kind, self.served, self.pool, self.metrics, self.intake)

        return Starlette(
            routes=[
                Route("/v1/completions", generation(COMPLETIONS), methods=["POST"]),
                Route("/v1/chat/completions", generation(CHAT), methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/v1/models/{name:path}", self._model),
                Route("/health", self._health),
                Route("/ready", self._ready),
                Route("/metrics", self._metrics),
            ],
            exception_handlers={HTTPException: _told, Exception: _bug},
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        del app
        self.pool.start()
        try:
            yield
        finally:
            self.stop()
            self.pool.cancel_running()
            await asyncio.to_thread(self.pool.join)
            self.intake.close()

    async def _models(self, request: Request) -> Response:
        del request
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def _model(self, request: Request) -> Response:
        if request.path_params["name"] != self.served.name:
            return ApiError(404, "there is no such model here", param="model", code="model_not_found").response()
        return JSONResponse(self._card())

    async def _health(self, request: Request) -> Response:
        del request
        return JSONResponse({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        del request
        ready = self.pool.ready
        return JSONResponse({"status": "ready" if ready else "not ready"}, 200 if ready else 503)

    async def _metrics(self, request: Request) -> Response:
        del request
        return Response(self.metrics.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def _card(self) -> dict[str, Any]:
        served = self.served
        return {
            "id": served.name,
            "object": "model",
            "created": served.created,
            "owned_by": "qbpass",
            "max_model_len": served.context_length,  # as vLLM has it
        }


def _told(request: Request, error: Exception) -> Response:
    """Starlette's own refusals: no such path, no such method."""
    del request
    assert isinstance(error, HTTPException)
    return ApiError(error.status_code, error.detail).response(dict(error.headers or {}))


def _bug(request: Request, error: Exception) -> Response:
    del request, error
    return failed().response()
