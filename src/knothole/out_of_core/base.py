"""A table in parts: some functions of each part, wherever it is, and their sum.

A part is a tuple of its number, its table, its targets and the weights of its rows (None where
there are none). Parts are a Dask collection's partitions, on their workers, or what an iterator
gives, one after the other: the rows of a file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

from knothole.columns.columns import Columns
from knothole.errors import InvalidInput
from knothole.out_of_core.disk import room
from knothole.out_of_core.files import FileTable, is_path
from knothole.out_of_core.work import added, done, is_lazy, key, tree

#: The number of a part, its table, its targets and its rows' weights.
Part = tuple[int, Any, Any, Any]

# Bytes that are kept in memory in one process, and the part of the memory of a cluster.
LOCAL = 2**28
SHARE = 0.3


class Parts(ABC):
    """Something in parts."""

    @abstractmethod
    def each(self, work: Callable[..., Any], *shared: Any) -> list[Any]:
        """``work(part, *shared)`` of each part, in their order."""

    @abstractmethod
    def summed(self, work: Callable[..., Any], *shared: Any) -> Any:
        """The sum of the records that ``work`` has of each part; None where none has one."""

    @abstractmethod
    def made(self, work: Callable[..., Any], *shared: Any, size: float) -> Parts:
        """What ``work`` makes of each part, ``size`` bytes in all: kept in memory, or on disk.

        Where there is room on neither, it is made again whenever it is asked for.
        """


class LocalParts(Parts):
    """Parts that are gone through one after the other.

    ``passes`` begins a pass each time it is called.

    Examples
    --------
    >>> parts = LocalParts(lambda: iter([1.0, 2.0, 4.0]))
    >>> parts.made(float.__neg__, size=8).summed(float.__mul__, 10.0)
    -70.0
    """

    def __init__(self, passes: Callable[[], Iterable[Any]]) -> None:
        self.passes = passes

    @classmethod
    def of(cls, tables: Callable[[], Iterable[tuple[Any, Any, Any]]]) -> LocalParts:
        """Tables, their targets and weights as parts."""
        return cls(lambda: ((i, *one) for i, one in enumerate(tables())))

    def _results(self, work: Callable[..., Any], *shared: Any, keep: Any = None) -> Iterable[Any]:
        for number, part in enumerate(self.passes()):
            yield done(work, number, part, *shared, alone=False, keep=keep)

    def each(self, work: Callable[..., Any], *shared: Any) -> list[Any]:
        """See :class:`Parts`."""
        return list(self._results(work, *shared))

    def summed(self, work: Callable[..., Any], *shared: Any) -> Any:
        """See :class:`Parts`."""
        return tree(self._results(work, *shared), added)

    def made(self, work: Callable[..., Any], *shared: Any, size: float) -> LocalParts:
        """See :class:`Parts`."""
        small = size <= LOCAL
        if not small and size > room():
            return LocalParts(lambda: self._results(work, *shared))
        kept = list(self._results(work, *shared, keep=None if small else key("kept")))
        return LocalParts(lambda: kept)


class DaskParts(Parts):
    """Parts that are keys of a Dask graph."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = list(parts)

    @classmethod
    def of(cls, X: Any, y: Any = None, weight: Any = None) -> DaskParts:
        """The partitions of a collection, each with those of its targets and weights."""
        tables = _partitions(X, "X")
        beside = []
        for name, one in (("y", y), ("sample_weight", weight)):
            own = [None] * len(tables) if one is None else _partitions(one, name)
            if len(own) != len(tables):
                raise InvalidInput(
                    f"{name} must have the partitions of X; it has {len(own)} and X has "
                    f"{len(tables)}. Take both from one collection, or use {name}.repartition."
                )
            beside.append(own)
        return cls(list(zip(range(len(tables)), tables, *beside, strict=True)))

    def tasks(self, work: Callable[..., Any], *shared: Any, keep: Any = None) -> list[Any]:
        """``work`` of each part, to be done."""
        import dask

        name = key(work.__name__)
        # One key each, that comes to every worker once.
        once = [
            dask.delayed(one, traverse=False, name=f"{key('shared')}-{i}")
            for i, one in enumerate(shared)
        ]
        call = dask.delayed(done, pure=False)
        return [
            call(work, number, part, *once, keep=keep, dask_key_name=f"{name}-{number}")
            for number, part in enumerate(self.parts)
        ]

    def each(self, work: Callable[..., Any], *shared: Any) -> list[Any]:
        """See :class:`Parts`."""
        import dask

        return list(dask.compute(*self.tasks(work, *shared)))

    def summed(self, work: Callable[..., Any], *shared: Any) -> Any:
        """See :class:`Parts`."""
        import dask

        name, numbers = key("sum"), iter(range(2 * len(self.parts) + 1))
        add = dask.delayed(added, pure=False)

        def join(several: list[Any]) -> Any:
            return add(list(several), dask_key_name=f"{name}-{next(numbers)}")

        return tree(self.tasks(work, *shared), join).compute()

    def made(self, work: Callable[..., Any], *shared: Any, size: float) -> DaskParts:
        """See :class:`Parts`."""
        import dask

        small = size <= _memory()
        if not small and size > _room():
            return DaskParts(self.tasks(work, *shared))
        tasks = self.tasks(work, *shared, keep=None if small else key("kept"))
        return DaskParts(dask.persist(*tasks))


def parts_of(
    X: Any, y: Any = None, weight: Any = None, columns: Columns | None = None
) -> Parts | None:
    """The parts of a Dask collection or of a path; parts as they are; None for other tables.

    ``columns`` are a model's, by which a file's are told.
    """
    if isinstance(X, Parts):
        for name, given in (("y", y), ("sample_weight", weight)):
            if given is not None:
                raise InvalidInput(f"{name} must be None for parts, which have their own.")
        return X
    if is_path(X):
        return LocalParts.of(FileTable.of(X, columns, y, weight).parts)
    return DaskParts.of(X, y, weight) if is_lazy(X) else None


def _partitions(collection: Any, name: str) -> list[Any]:
    if not hasattr(collection, "to_delayed"):
        raise InvalidInput(
            f"{name} must be a Dask Series or Array, as X is a Dask collection; got "
            f"{type(collection).__name__}."
        )
    if getattr(collection, "ndim", 1) == 2 and hasattr(collection, "numblocks"):
        collection = collection.rechunk({1: -1})
    delayed = collection.to_delayed()
    return list(delayed.ravel() if hasattr(delayed, "ravel") else delayed)


def _client() -> Any:
    """That of the cluster in use, if any."""
    try:
        from distributed import get_client

        return get_client()
    except (ImportError, ValueError):
        return None


def _room() -> float:
    """Bytes that may be kept on disk, where all machines have as much as the one with the least."""
    client = _client()
    if client is None:
        return room()
    free = client.run(room, on_error="ignore")
    return len({urlsplit(worker).hostname for worker in free}) * min(free.values(), default=0.0)


def _memory() -> float:
    """Bytes that may be kept in memory."""
    client = _client()
    if client is None:
        return LOCAL
    limits = client.run_on_scheduler(_limits)
    return SHARE * float(sum(limits)) if limits and all(limits) else LOCAL


def _limits(dask_scheduler: Any) -> list[int]:
    """Memory of each worker; 0 where it has no limit."""
    return [int(worker.memory_limit or 0) for worker in dask_scheduler.workers.values()]
