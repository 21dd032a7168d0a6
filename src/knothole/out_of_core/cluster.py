"""Questions about tables that are read here, answered by the workers of a cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from knothole.errors import InvalidInput, MissingExtra
from knothole.out_of_core.lazy import packed, unpacked
from knothole.out_of_core.work import done, key

# Tables on their way for each thread of the workers, so that none waits.
AHEAD = 2


def on_cluster(
    address: str, model: Any, ask: Callable[[Any, Any], Any], tables: Iterable[Any]
) -> Iterator[Any]:
    """What ``ask(model, table)`` gives for each table, in their order, few of them at a time."""
    try:
        from distributed import Client
    except ImportError as error:
        raise MissingExtra(
            "a scheduler needs distributed: pip install 'knothole[dask]'."
        ) from error
    try:
        client = Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"scheduler: there is none at {address!r} ({error}); give the address that `dask "
            f"scheduler` shows, such as tcp://10.0.0.1:8786."
        ) from error
    with client:
        # A task, not data: what a worker held is made again where that is lost.
        once = client.submit(bytes, packed(model), key=key("model"))
        name, waiting = key("answer"), deque[Any]()
        for number, table in enumerate(tables):
            waiting.append(
                client.submit(_asked, once, ask, number, table, key=f"{name}-{number}", pure=False)
            )
            if len(waiting) > AHEAD * max(1, sum(client.nthreads().values())):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _asked(model: bytes, ask: Callable[[Any, Any], Any], number: int, table: Any) -> Any:
    return done(lambda rows: ask(unpacked(model), rows), number, table)
