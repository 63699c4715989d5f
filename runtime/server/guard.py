"""Who may ask: holders of the key, or, where there is none, who calls this machine by a name of its own."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from qbpass.runtime.server.api_error import ApiError

OPEN = ("/health", "/ready")


class Guard:
    """Around an application. Health is open to everybody; it says nothing but that it is.

    Without a key the server is bound to the loopback device, where a page in a browser can still reach it under a name
    that its own server resolves to this machine: so the name asked for has to be this machine's.
    """

    def __init__(self, app: ASGIApp, key: str | None) -> None:
        self._app = app
        self._digest = None if key is None else _digest(key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN:
            error = self._refusal(Headers(scope=scope))
            if error is not None:
                headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
                await error.response(headers)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, headers: Headers) -> ApiError | None:
        if self._digest is None:
            if _is_own_name(headers.get("host", "")):
                return None
            return ApiError(403, "without an API key this server answers to localhost only", code="wrong_host")
        kind, _, key = headers.get("authorization", "").partition(" ")
        # Digests, so that the comparison takes the same time for keys of every length.
        if kind.lower() == "bearer" and hmac.compare_digest(_digest(key.strip().encode("latin-1")), self._digest):
            return None
        return ApiError(401, "give the API key: Authorization: Bearer KEY", code="invalid_api_key")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server bound to `host`, a name or an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_own_name(host: str) -> bool:
    """host: a Host header, with or without a port."""
    name = host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]
    return is_loopback(name)


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
