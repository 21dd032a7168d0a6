"""What is done to one part of a table, wherever that is, and how parts are added up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, TypeVar

from knothole.arrays import joined
from knothole.compiled.threads import over_chunks
from knothole.errors import KnotholeError

T = TypeVar("T")

# Sums that are added to one at a time.
FAN = 8


def done(work: Callable[..., T], number: int, *arguments: Any, alone: bool = True) -> T:
    """What ``work`` makes of its arguments; an error names the partition.

    ``alone`` is for work of which other threads do more at the same time: it starts none itself.
    """
    try:
        if not alone:
            return work(*arguments)
        found: T = over_chunks(lambda *_: work(*arguments), 1, 1, threads=1)[0]
        return found
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
