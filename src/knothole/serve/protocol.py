"""HTTP with limits: how long a request may take to come, an answer to go, and how many at once."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

#: Seconds in which a request must have come, headers and body, and in which it must be answered.
REQUEST_SECONDS, ANSWER_SECONDS = 10.0, 45.0
#: Connections at a time; fewer where the process may not open as many files.
MOST_CONNECTIONS = 512


def most_connections() -> int:
    """Connections that leave the process half of the files that it may open.

    Without any left, the server would accept nobody, and log each try.
    """
    try:
        import resource
    except ImportError:  # pragma: no cover: Windows, where sockets are no files
        return MOST_CONNECTIONS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if files < 0 else max(1, min(MOST_CONNECTIONS, files // 2))


class LimitedProtocol(H11Protocol):
    """A connection that is closed when it takes too long; one too many is closed at once."""

    _deadline: asyncio.TimerHandle | None = None
    _receives = False

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            transport.abort()
        else:
            self._watch()

    def data_received(self, data: bytes) -> None:
        """Take some of a request; the time that it may take is not prolonged."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        super().connection_lost(exc)
        if self._deadline is not None:
            self._deadline.cancel()

    def _watch(self) -> None:
        receives = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if self._deadline is None or receives != self._receives:
            if self._deadline is not None:
                self._deadline.cancel()
            seconds = REQUEST_SECONDS if receives else ANSWER_SECONDS
            self._deadline = self.loop.call_later(seconds, self.transport.abort)
            self._receives = receives
