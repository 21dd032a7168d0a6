"""The server's routes: the page, the questions, and what describes them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from importlib import resources
from typing import Any

import anyio
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from knothole.errors import KnotholeError
from knothole.serve import openapi
from knothole.serve.guard import Door, Guard, dumps, refusal
from knothole.serve.questions import Questions
from knothole.serve.rows import parse

log = logging.getLogger(__name__)

#: Seconds that an answer may take, and requests that may wait for theirs.
SECONDS, WAITING = 30.0, 256
#: Files of the page, with their types.
PAGE = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "api.js": "text/javascript; charset=utf-8",
    "state.js": "text/javascript; charset=utf-8",
    "form.js": "text/javascript; charset=utf-8",
    "plots.js": "text/javascript; charset=utf-8",
    "main.js": "text/javascript; charset=utf-8",
}


class Desk:
    """Where questions are answered, on threads, each in its turn; too many are turned away."""

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


def application(questions: Questions, door: Door) -> Starlette:
    """The server of a model."""
    desk = Desk()

    def page(name: str) -> Any:
        content = resources.files("knothole.serve").joinpath("page", name).read_bytes()

        async def serve(_: Request) -> Response:
            return Response(content, media_type=PAGE[name])

        return serve

    def told(what: Callable[[], Any]) -> Any:
        async def serve(_: Request) -> Response:
            return await desk.answer(lambda: dumps(what()))

        return serve

    def posted(answer: Callable[[Any], Any]) -> Any:
        async def serve(request: Request) -> Response:
            body = await request.body()
            return await desk.answer(lambda: dumps(answer(parse(body))))

        return serve

    async def health(_: Request) -> Response:
        return Response(b'{"status":"ok"}', media_type="application/json")

    routes = [
        Route("/", page("index.html")),
        *(Route(f"/page/{name}", page(name)) for name in PAGE if name != "index.html"),
        Route("/health", health),
        Route("/form", told(questions.form)),
        Route("/openapi.json", told(partial(openapi.description, questions))),
        *(
            Route(f"/{name}", posted(answer), methods=["POST"])
            for name, answer in questions.by_name().items()
        ),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, door=door)],
        exception_handlers={HTTPException: _not_served},
    )


async def _not_served(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = {404: "there is nothing here; see /openapi.json.", 405: "this takes another method."}
    return refusal(status, what.get(status, "this cannot be served."))
