"""What is done to one part of a table, wherever that is, and how parts are added up."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, TypeVar

from knothole.arrays import joined
from knothole.columns.read import class_names
from knothole.compiled.threads import over_chunks
from knothole.errors import KnotholeError
from knothole.out_of_core.disk import Kept

T = TypeVar("T")

# Sums that are added to one at a time.
FAN = 8


def is_lazy(table: Any) -> bool:
    """Whether a table is a Dask DataFrame or Array."""
    return any(
        package in ("dask", "dask_expr") and name in ("DataFrame", "Array")
        for package, name in class_names(table)
    )


def key(name: str) -> str:
    """What tasks are called on the dashboard, with something that no others have."""
    return f"knothole_{name}-{uuid.uuid4().hex}"


def done(
    work: Callable[..., T],
    number: int,
    part: Any,
    *shared: Any,
    alone: bool = True,
    keep: str | None = None,
) -> T | Kept | None:
    """What ``work`` makes of a part, nothing where that is None; an error names the partition.

    ``alone`` is for work of which other threads do more at the same time: it starts none itself.
    What is made is kept on disk where ``keep`` is a name for it.
    """
    if part is None:
        return None
    rows = part.read() if isinstance(part, Kept) else part
    try:
        threads = 1 if alone else None
        found = over_chunks(lambda *_: work(rows, *shared), 1, 1, threads)[0]
        return found if keep is None or found is None else Kept(keep, found)
    except KnotholeError as error:
        raise type(error)(f"partition {number}: {error}") from error


def added(several: Iterable[Any]) -> Any:
    """Records (:func:`~knothole.arrays.joined`) added up; None is for a part without rows."""
    some = [one for one in several if one is not None]
    return reduce(joined, some) if some else None


def tree(items: Iterable[T], join: Callable[[list[T]], T]) -> T:
    """Items joined in a tree whose shape is given by their number: the same bits in every run.

    No more than a few of each level are held at once.

    Examples
    --------
    >>> tree("abcdefghijk", "".join), tree(range(3), sum)
    ('abcdefghijk', 3)
    """
    levels: list[list[T]] = []
    for item in items:
        for level in levels:
            level.append(item)
            if len(level) < FAN:
                break
            item = join(level)
            level.clear()
        else:
            levels.append([item])
    return join([item for level in reversed(levels) for item in level])
