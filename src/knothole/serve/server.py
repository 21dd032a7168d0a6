"""Serving a model, in the foreground for the command line or beside a session."""

from __future__ import annotations

import errno
import secrets
import socket
import threading
import webbrowser
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from knothole.errors import InvalidInput, MissingExtra
from knothole.inspection.acquisition import costs
from knothole.serve.questions import Questions

if TYPE_CHECKING:
    import uvicorn

#: Where the command line serves, so that links stay the same.
PORT = 8765


class Serving:
    """A page that is being served; made by :func:`whatif`.

    Attributes
    ----------
    url : str
        Where it is, with the token where there is one.
    """

    def __init__(self, server: uvicorn.Server, listening: socket.socket, url: str) -> None:
        self.url = url
        self._server, self._listening = server, listening
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Serve on a thread of its own, until :meth:`stop`."""
        work = {"sockets": [self._listening]}
        self._thread = threading.Thread(
            target=self._server.run, kwargs=work, name="knothole whatif", daemon=True
        )
        self._thread.start()
        return self

    def run(self) -> None:
        """Serve until interrupted."""
        self._server.run(sockets=[self._listening])

    def stop(self) -> None:
        """Serve no more."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
        self._listening.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"what if: {self.url}"

    def _repr_html_(self) -> str:
        return f'What if: <a href="{self.url}" target="_blank" rel="noopener">{self.url}</a>'


def whatif(
    model: Any,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    names: Iterable[str] = (),
    token: str | None = None,
    cost: Mapping[str, float] | None = None,
    browser: bool = False,
) -> Serving:
    """A server of a wrapped model, which listens and waits to be started.

    Parameters
    ----------
    model : Robust
    host : str
        The address to listen at. Any but loopback needs ``names``, and a token, which is made
        where none is given.
    port : int
        0 for any that is free.
    names : iterable of str
        Names by which others reach this machine.
    token : str, optional
        What requests must carry.
    cost : mapping, optional
        What finding out a variable costs.
    browser : bool
        Whether to open the page.

    Examples
    --------
    >>> import numpy as np
    >>> import knothole as kh
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> X = np.array([[0.0], [1.0]] * 10)
    >>> robust = kh.wrap(DecisionTreeRegressor().fit(X, X[:, 0]), X, density=kh.Factorized())
    >>> with whatif(robust) as serving:
    ...     serving.url.startswith("http://127.0.0.1:")
    True
    """
    try:
        import uvicorn

        from knothole.serve.app import LOOPBACK, application
        from knothole.serve.protocol import LimitedProtocol
    except ImportError as error:
        raise MissingExtra(
            "whatif needs starlette and uvicorn: pip install 'knothole[serve]'."
        ) from error
    if token == "":
        raise InvalidInput(
            "token must not be empty: it would ask for nothing; got ''. Leave it out, on loopback "
            "to do without one, elsewhere to have one made."
        )
    questions = Questions(model, cost)
    costs(cost, tuple(questions.fields.variables))  # refuses what `acquire` would
    known = tuple(name.lower() for name in names)
    if host not in LOOPBACK:
        if not known:
            raise InvalidInput(
                f"names: at {host!r} others can reach this server; say by which names they do, "
                f"such as names=['{socket.gethostname()}']."
            )
        token = token or secrets.token_urlsafe(24)
    listening = _listen(host, port)
    answers_to = tuple(dict.fromkeys((*LOOPBACK, host, *known)))
    # What is no HTTP is not logged: anyone who connects could fill the log.
    config = uvicorn.Config(
        application(questions, answers_to, token), log_level="error", access_log=False,
        http=LimitedProtocol, server_header=False, lifespan="off", timeout_keep_alive=5,
        timeout_graceful_shutdown=2,
    )  # fmt: skip
    shown = f"[{host}]" if ":" in host else (known[0] if known else host)
    url = f"http://{shown}:{listening.getsockname()[1]}/"
    if token is not None:
        url += f"#token={token}"
    if browser:
        webbrowser.open(url)
    return Serving(uvicorn.Server(config), listening, url)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=512)
    except OverflowError:
        raise InvalidInput(f"port: must be from 0 to 65535; got {port}.") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InvalidInput(
                f"port: {port} is taken by another program; choose another, or 0 for any that is "
                f"free."
            ) from None
        raise InvalidInput(f"host: cannot listen at {host!r}, {error.strerror}.") from None
    # Connections inherit it: else the body of an answer waits 40 ms for word of its head.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
