"""Who may ask, and how much: the door of the server, before anything is read or computed."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Bytes that a body may have.
MOST_BYTES = 1 << 20
LOOPBACK = ("localhost", "127.0.0.1", "::1")
#: What every answer carries: nothing of other places is loaded, framed, sniffed or told.
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Refused(Exception):
    """A request that is not served, with its status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def refusal(status: int, message: str) -> JSONResponse:
    """What a client is told when it is refused."""
    return JSONResponse({"error": message}, status)


@dataclass(frozen=True)
class Door:
    """What a request must show.

    Parameters
    ----------
    names : tuple of str
        Names of this server in a ``Host`` header: a page of elsewhere, whose name was made to lead
        here, has another.
    token : str, optional
        Must come with everything but the page itself.
    """

    names: tuple[str, ...] = LOOPBACK
    token: str | None = None

    def check(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        """Refuse what does not belong here."""
        if _host(headers.get("host", "")) not in self.names:
            raise Refused(
                421, f"this server answers to {', '.join(self.names)}; the Host header has another."
            )
        if self.token is not None and not _is_page(path):
            sent = headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(sent.encode(), self.token.encode()):
                raise Refused(401, "send the header Authorization: Bearer TOKEN.")
        if method == "POST" and not headers.get("content-type", "").startswith("application/json"):
            raise Refused(415, "send the body with the header Content-Type: application/json.")
        size = headers.get("content-length", "0")
        if not size.isdecimal() or int(size) > MOST_BYTES:
            raise Refused(413, f"a body may have at most {MOST_BYTES:,} bytes.")


def _host(header: str) -> str:
    """The name in a Host header, without the port."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def _is_page(path: str) -> bool:
    return path in ("/", "/health") or path.startswith("/page/")


class Guard:
    """The door as a middleware, which counts the bytes of bodies that do not tell their size."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self.app, self.door = app, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it."""
        if scope["type"] != "http":
            return
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *own]}
            await send(message)

        read = 0

        async def receiving() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > MOST_BYTES:
                raise Refused(413, f"a body may have at most {MOST_BYTES:,} bytes.")
            return message

        try:
            self.door.check(scope["method"], scope["path"], Headers(scope=scope))
            await self.app(scope, receiving, sending)
        except Refused as error:
            if started:
                raise
            await refusal(error.status, str(error))(scope, receive, sending)


def dumps(content: Any) -> bytes:
    """JSON without NaN: an answer that has one is a fault, and no answer."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
