"""A service on a socket, until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from qbpass.models.errors import QbpassError
from qbpass.runtime.server.app import Service
from qbpass.runtime.server.guard import is_loopback


class ServeError(QbpassError):
    """The server can't be bound where it was asked to be."""


def listening_socket(host: str, port: int, api_key: str | None) -> socket.socket:
    """Bound, not listening yet. Raises ServeError: where others could reach a server without a key, among others."""
    if not is_loopback(host) and api_key is None:
        raise ServeError(
            f"--host {host[:80]} can be reached from elsewhere: give --api-key or QBPASS_API_KEY, or leave --host out"
        )
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise ServeError(f"--host {host[:80]} is no address of this machine ({error}): choose another") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ServeError(
            f"can't listen on {host[:80]}, port {port} ({error.strerror}): choose another --host or --port"
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """`run` returns when SIGTERM has ended it, or `should_exit` was set; Ctrl-C raises KeyboardInterrupt behind the
    same ending. Each lets requests under way end within their time of grace; a second signal cancels them.
    """

    def __init__(self, service: Service, listener: socket.socket, on_ready: Callable[[], None]) -> None:
        """on_ready: called once requests are taken."""
        super().__init__(
            uvicorn.Config(
                service.app,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                http="h11",  # whatever else is installed: its limits are the ones that were tried
                ws="none",
                lifespan="on",
                limit_concurrency=service.served.limits.connections + 1,  # the first to be refused
            )
        )
        self._service, self._listener, self._on_ready = service, listener, on_ready
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        super().run([self._listener] if sockets is None else sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets=sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.stop()
        await super().shutdown(sockets=sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        del frame
        if self.should_exit and self._loop is not None:
            self._loop.call_soon_threadsafe(self._service.pool.cancel_running)
        self.should_exit = True
        if sig == signal.SIGINT and sig not in self._captured_signals:
            self._captured_signals.append(sig)  # raised again when all is over
