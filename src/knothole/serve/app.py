"""The server: its routes, and the guard in front of them."""

from __future__ import annotations

import hmac
import json
import logging
import os
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

import anyio
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from knothole.errors import KnotholeError
from knothole.serve.questions import Questions
from knothole.serve.rows import parse

log = logging.getLogger(__name__)

#: Seconds that an answer may take, and requests that may wait for theirs.
SECONDS, WAITING = 30.0, 256
#: Files that are served as they are, with their types.
FILES = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "api.js": "text/javascript; charset=utf-8",
    "state.js": "text/javascript; charset=utf-8",
    "form.js": "text/javascript; charset=utf-8",
    "plots.js": "text/javascript; charset=utf-8",
    "main.js": "text/javascript; charset=utf-8",
    "openapi.json": "application/json",
}
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


class Desk:
    """Answers questions on as many threads as there are cores; refuses when too many wait."""

    def __init__(self) -> None:
        self._limiter = CapacityLimiter(os.cpu_count() or 1)
        self._waiting = 0

    async def answer(self, work: Callable[[], Any]) -> Response:
        """The answer as JSON, or why there is none."""
        if self._waiting >= WAITING:
            return refusal(503, f"{WAITING} requests are waiting already; try again later.")
        self._waiting += 1
        try:
            with anyio.fail_after(SECONDS):
                found = await to_thread.run_sync(
                    work, limiter=self._limiter, abandon_on_cancel=True
                )
        except TimeoutError:
            return refusal(503, f"no answer within {SECONDS:g} seconds; send fewer rows.")
        except KnotholeError as error:
            return refusal(422, str(error))
        except Exception:
            log.exception("a question was not answered")
            return refusal(500, "the server could not answer; its log says why.")
        finally:
            self._waiting -= 1
        return Response(found, media_type="application/json")


def application(
    questions: Questions, names: tuple[str, ...] = LOOPBACK, token: str | None = None
) -> Starlette:
    """The server of a model; ``names`` and ``token`` as :class:`Guard` takes them."""
    desk = Desk()

    def file(name: str) -> Any:
        content = resources.files("knothole.serve").joinpath("page", name).read_bytes()

        async def serve(_: Request) -> Response:
            return Response(content, media_type=FILES[name])

        return serve

    def posted(answer: Callable[[Any], Any]) -> Any:
        async def serve(request: Request) -> Response:
            body = await request.body()
            return await desk.answer(lambda: dumps(answer(parse(body))))

        return serve

    async def form(_: Request) -> Response:
        return await desk.answer(lambda: dumps(questions.form()))

    async def health(_: Request) -> Response:
        return Response(b'{"status":"ok"}', media_type="application/json")

    routes = [
        Route("/", file("index.html")),
        *(Route(f"/page/{name}", file(name)) for name in FILES if name.endswith(("css", "js"))),
        Route("/openapi.json", file("openapi.json")),
        Route("/health", health),
        Route("/form", form),
        *(
            Route(f"/{name}", posted(answer), methods=["POST"])
            for name, answer in questions.by_name().items()
        ),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, names=names, token=token)],
        exception_handlers={HTTPException: _not_served},
    )


async def _not_served(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = {
        404: "there is nothing here; see /openapi.json.",
        405: "use the other method, GET or POST; see /openapi.json.",
    }
    return refusal(status, what.get(status, "this cannot be served."))


class Refused(Exception):
    """A request that is not served, with its status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def refusal(status: int, message: str) -> JSONResponse:
    """What a client is told when it is refused."""
    return JSONResponse({"error": message}, status)


class Guard:
    """Middleware that refuses a request before its body is read or anything is computed.

    Parameters
    ----------
    app : ASGI application
    names : tuple of str
        Names of this server in a ``Host`` header. (A page of another site whose name was made to
        resolve to this address, DNS rebinding, sends another name.)
    token : str, optional
        Must come with every request except those for the page's own files.
    """

    def __init__(
        self, app: ASGIApp, names: tuple[str, ...] = LOOPBACK, token: str | None = None
    ) -> None:
        self.app, self.names, self.token = app, names, token

    def check(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        """Refuse a request by its method, path and headers."""
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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it; count the bytes of bodies without a stated length."""
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
            self.check(scope["method"], scope["path"], Headers(scope=scope))
            await self.app(scope, receiving, sending)
        except Refused as error:
            if started:
                raise
            await refusal(error.status, str(error))(scope, receive, sending)


def _host(header: str) -> str:
    """The name in a Host header, without the port."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def _is_page(path: str) -> bool:
    return path in ("/", "/health") or path.startswith("/page/")


def dumps(content: Any) -> bytes:
    """JSON without NaN: an answer that has one is a fault, and no answer."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
