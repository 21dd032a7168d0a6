"""Tables in partitions: functions applied to each partition, their sums, and a random sample.

A partition is a tuple of its number, its table, its targets and its row weights (None where there
are none). Partitions are those of a Dask collection, on their workers, or chunks of a file from an
iterator.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import numpy as np

from knothole.arrays import Floats, Ints, joined
from knothole.columns.columns import Columns
from knothole.columns.read import WHOLE_LIMIT, check_finite, class_names
from knothole.errors import InvalidInput, KnotholeError
from knothole.out_of_core.disk import Spilled, room
from knothole.out_of_core.files import chunks_of, is_path
from knothole.progress import tell
from knothole.threads import over_chunks

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

#: Number, table, targets and row weights of a partition.
Partition = tuple[int, Any, Any, Any]

# Bytes that one process may hold in memory, and the fraction of a cluster's memory.
LOCAL = 2**28
MEMORY_SHARE = 0.3
# How many sums are added at once.
FAN = 8
#: The most rows of a sample; a smaller table is taken as a whole.
ROWS = 200_000


class Partitions:
    """Partitions that are processed one after the other.

    Each call of ``passes`` starts a new pass.

    Examples
    --------
    >>> numbers = Partitions(lambda: iter([1.0, 2.0, 4.0]))
    >>> numbers.made(float.__neg__, size=8).summed(float.__mul__, 10.0)
    -70.0
    """

    def __init__(self, passes: Callable[[], Iterable[Any]]) -> None:
        self.passes = passes

    @classmethod
    def of(cls, tables: Callable[[], Iterable[tuple[Any, Any, Any]]]) -> Partitions:
        """Partitions of tables with their targets and weights."""
        return cls(lambda: ((i, *one) for i, one in enumerate(tables())))

    def _results(self, work: Callable[..., Any], *shared: Any, spill: Any = None) -> Iterable[Any]:
        for number, partition in enumerate(self.passes()):
            yield done(work, number, partition, *shared, alone=False, spill=spill)

    def each(self, work: Callable[..., Any], *shared: Any) -> list[Any]:
        """``work(partition, *shared)`` for each partition, in order."""
        return list(self._results(work, *shared))

    def summed(self, work: Callable[..., Any], *shared: Any) -> Any:
        """The sum of the records that ``work`` returns; None if it returns None for all."""
        return tree(self._results(work, *shared), added)

    def made(self, work: Callable[..., Any], *shared: Any, size: float) -> Partitions:
        """The results of ``work``, ``size`` bytes in all, stored in memory or on disk.

        If there is room on neither, they are computed again at each pass.
        """
        small = size <= LOCAL
        if not small and size > room():
            return Partitions(lambda: self._results(work, *shared))
        results = list(self._results(work, *shared, spill=None if small else key("spilled")))
        return Partitions(lambda: results)


class DaskPartitions(Partitions):
    """Partitions that are keys of a Dask graph."""

    def __init__(self, partitions: Sequence[Any]) -> None:
        self.partitions = list(partitions)

    @classmethod
    def of(cls, X: Any, y: Any = None, weight: Any = None) -> DaskPartitions:
        """The partitions of a collection, each with its targets and weights."""
        tables = _delayed_partitions(X, "X")
        beside = []
        for name, given in (("y", y), ("sample_weight", weight)):
            delayed = [None] * len(tables) if given is None else _delayed_partitions(given, name)
            if len(delayed) != len(tables):
                raise InvalidInput(
                    f"{name} must have the partitions of X; it has {len(delayed)} and X has "
                    f"{len(tables)}. Take both from one collection, or use {name}.repartition."
                )
            beside.append(delayed)
        return cls(list(zip(range(len(tables)), tables, *beside, strict=True)))

    def tasks(self, work: Callable[..., Any], *shared: Any, spill: Any = None) -> list[Any]:
        """Tasks that apply ``work`` to each partition."""
        import dask

        name = key(work.__name__)
        # One key each, which every worker receives once.
        once = [
            dask.delayed(one, traverse=False, name=f"{key('shared')}-{i}")
            for i, one in enumerate(shared)
        ]
        call = dask.delayed(done, pure=False)
        return [
            call(work, number, partition, *once, spill=spill, dask_key_name=f"{name}-{number}")
            for number, partition in enumerate(self.partitions)
        ]

    def each(self, work: Callable[..., Any], *shared: Any) -> list[Any]:
        """See :class:`Partitions`."""
        import dask

        return list(dask.compute(*self.tasks(work, *shared)))

    def summed(self, work: Callable[..., Any], *shared: Any) -> Any:
        """See :class:`Partitions`."""
        import dask

        name, numbers = key("sum"), iter(range(2 * len(self.partitions) + 1))
        add = dask.delayed(added, pure=False)

        def join(several: list[Any]) -> Any:
            return add(list(several), dask_key_name=f"{name}-{next(numbers)}")

        return tree(self.tasks(work, *shared), join).compute()

    def made(self, work: Callable[..., Any], *shared: Any, size: float) -> DaskPartitions:
        """See :class:`Partitions`."""
        import dask

        small = size <= _memory()
        if not small and size > _room():
            return DaskPartitions(self.tasks(work, *shared))
        tasks = self.tasks(work, *shared, spill=None if small else key("spilled"))
        return DaskPartitions(dask.persist(*tasks))


def partitions_of(
    X: Any,
    y: Any = None,
    weight: Any = None,
    columns: Columns | None = None,
    also: Sequence[str] = (),
) -> Partitions | None:
    """The partitions of a Dask collection or of a path; None for a table in memory.

    ``columns``, a model's, decide which columns of a file are read; ``also`` adds others.
    """
    if isinstance(X, Partitions):
        for name, given in (("y", y), ("sample_weight", weight)):
            if given is not None:
                raise InvalidInput(f"{name} must be None for partitions, which have their own.")
        return X
    if is_path(X):
        return Partitions.of(chunks_of(X, columns, y, weight, also=also)[1])
    return DaskPartitions.of(X, y, weight) if is_lazy(X) else None


def _delayed_partitions(collection: Any, name: str) -> list[Any]:
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
    """The client of the cluster in use, if any."""
    try:
        from distributed import get_client

        return get_client()
    except (ImportError, ValueError):
        return None


def _room() -> float:
    """Bytes that may be written to disk, if all machines have as much as the smallest."""
    client = _client()
    if client is None:
        return room()
    free = client.run(room, on_error="ignore")
    return len({urlsplit(worker).hostname for worker in free}) * min(free.values(), default=0.0)


def _memory() -> float:
    """Bytes that may be held in memory."""
    client = _client()
    if client is None:
        return LOCAL
    limits = client.run_on_scheduler(_limits)
    return MEMORY_SHARE * float(sum(limits)) if limits and all(limits) else LOCAL


def _limits(dask_scheduler: Any) -> list[int]:
    """Memory limit of each worker; 0 if it has none."""
    return [int(worker.memory_limit or 0) for worker in dask_scheduler.workers.values()]


# --- what is done to one partition ---------------------------------------------------------------


def is_lazy(table: Any) -> bool:
    """Whether a table is a Dask DataFrame or Array."""
    return any(
        package in ("dask", "dask_expr") and name in ("DataFrame", "Array")
        for package, name in class_names(table)
    )


def key(name: str) -> str:
    """A task name for the dashboard, made unique."""
    return f"knothole_{name}-{uuid.uuid4().hex}"


def done(
    work: Callable[..., T],
    number: int,
    partition: Any,
    *shared: Any,
    alone: bool = True,
    spill: str | None = None,
) -> T | Spilled | None:
    """Apply ``work`` to a partition (None stays None); errors name the partition.

    ``alone`` is for work that already runs on several threads: it starts none of its own. The
    result is written to disk if ``spill`` names a file for it.
    """
    if partition is None:
        return None
    rows = partition.read() if isinstance(partition, Spilled) else partition
    try:
        threads = 1 if alone else None
        result = over_chunks(lambda *_: work(rows, *shared), 1, 1, threads)[0]
        return result if spill is None or result is None else Spilled(spill, result)
    except KnotholeError as error:
        raise type(error)(f"partition {number}: {error}") from error


def added(several: Iterable[Any]) -> Any:
    """The sum of records (:func:`~knothole.arrays.joined`); None is for an empty partition."""
    records = [record for record in several if record is not None]
    return reduce(joined, records) if records else None


def tree(items: Iterable[T], join: Callable[[list[T]], T]) -> T:
    """Combine items in a tree whose shape depends on their number only, for reproducible bits.

    Only a few items of each level are in memory at once.

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


# --- a sample of the rows ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Sample:
    """A random sample of the rows of a table in partitions.

    Attributes
    ----------
    parts : Partitions
        The partitions that it was drawn from.
    table, y : table and array (rows,), or None
        Rows drawn at random, in order, and their targets. They depend on the rows and the seed,
        not on how rows are divided into partitions.
    weight : array (rows,), or None
        Their weights.
    shown : table
        The same rows, and artificial ones that show what columns hold elsewhere: all levels, a
        fraction, a missing value. Columns are described from it.
    total : int
        Number of rows in all partitions.
    total_weight : float
        Their total weight.
    """

    parts: Partitions
    table: Any
    y: Any
    weight: Any
    shown: Any
    total: int
    total_weight: float

    @property
    def whole(self) -> bool:
        """Whether the sample is the full table."""
        return len(self.table) == self.total

    def tell(self, verbose: bool) -> None:
        """Log the size of the sample, if it is not the full table."""
        if not self.whole:
            tell(
                f"X has {self.total:,} rows: {ROWS:,} of them, drawn evenly, are what everything "
                f"is chosen by; what is chosen is then learned from all of them.",
                verbose,
            )


def sample(parts: Partitions, seed: int, categories: Collection[str] = ()) -> Sample:
    """Draw a sample; ``categories`` are columns whose numbers are codes of levels."""
    import pandas as pd

    looks = parts.each(look, frozenset(categories))
    sizes = [rows for rows, _, _ in looks]
    starts = np.cumsum([0, *sizes])
    total = int(starts[-1])
    if not total:
        raise InvalidInput("X must have at least one row; its partitions have none.")
    total_weight = float(sum(weight for _, weight, _ in looks))
    if total_weight <= 0:
        raise InvalidInput("sample_weight must not be all zero.")
    chosen = np.arange(total)
    if total > ROWS:
        chosen = np.sort(np.random.default_rng(seed).choice(total, ROWS, replace=False))
    drawn = [piece for piece in parts.each(take, chosen, starts) if piece is not None]
    levels = [witness for rows, _, witness in looks if rows]
    tables, *beside = zip(*drawn, strict=True)
    table = _together(list(tables))
    y, weight = (None if pieces[0] is None else np.concatenate(pieces) for pieces in beside)
    shown = _together([pd.DataFrame(table), *levels])
    return Sample(parts, table, y, weight, shown, total, total_weight)


def look(part: Partition, categories: Collection[str]) -> tuple[int, float, pd.DataFrame]:
    """Number and total weight of a partition's rows, and rows that show what its columns hold."""
    import pandas as pd

    _, table, y, weight = part
    if y is not None and len(y) != len(table):
        raise InvalidInput(f"y must have a target for each of {len(table)} rows; it has {len(y)}.")
    weights = weights_of(part)
    if weight is not None and not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise InvalidInput("sample_weight must hold finite numbers, none negative.")
    return len(table), float(weights.sum()), witness(pd.DataFrame(table), categories)


def weights_of(part: Partition) -> Floats:
    """The weights of a partition's rows; 1 by default."""
    _, table, _, weight = part
    weights = np.ones(len(table)) if weight is None else np.asarray(weight, dtype=np.float64)
    if weights.shape != (len(table),):
        raise InvalidInput(
            f"sample_weight must have a number for each of {len(table)} rows; its shape is "
            f"{weights.shape}."
        )
    return weights


def witness(frame: pd.DataFrame, categories: Collection[str] = ()) -> pd.DataFrame:
    """A few rows that together show all levels, a fraction and a missing value, if there are any.

    Examples
    --------
    >>> import pandas as pd
    >>> witness(pd.DataFrame({"a": [1.0, 2.5, None, 3.0], "b": ["x", "y", "y", "x"]}))
         a  b
    0  2.5  x
    1  NaN  y
    """
    import pandas as pd

    shown = []
    for position, label in enumerate(frame.columns):
        series = frame.iloc[:, position].reset_index(drop=True)
        missing = series.isna()
        known = series[~missing]
        if pd.api.types.is_numeric_dtype(series.dtype) and str(label) not in categories:
            values = known.to_numpy(dtype=np.float64)
            check_finite(values, str(label))
            broken = np.flatnonzero((np.floor(values) != values) | (np.abs(values) > WHOLE_LIMIT))
            known = known.iloc[broken[:1]] if len(broken) else known.iloc[:1]
        else:
            known = known.drop_duplicates()
        shown.append(pd.concat([known, series[missing].iloc[:1]]))
    size = max((len(one) for one in shown), default=0)
    places = [np.minimum(np.arange(size), len(one) - 1) for one in shown]
    columns = [one.iloc[at].reset_index(drop=True) for one, at in zip(shown, places, strict=True)]
    return pd.concat(columns, axis=1) if columns else frame.iloc[:0]


def take(part: Partition, chosen: Ints, starts: Ints) -> Any:
    """The selected rows of a partition with targets and weights; None if there are none."""
    number, table, y, weight = part
    first, stop = np.searchsorted(chosen, starts[number : number + 2])
    picked = chosen[first:stop] - starts[number]
    if not len(picked):
        return None
    rows = table.iloc[picked] if hasattr(table, "iloc") else np.asarray(table)[picked]
    return rows, *(None if one is None else np.asarray(one)[picked] for one in (y, weight))


def _together(tables: list[Any]) -> Any:
    """Concatenate tables; differing categories are combined."""
    import pandas as pd

    if not hasattr(tables[0], "iloc"):
        return np.concatenate(tables)
    kinds = tables[0].dtypes
    out = pd.concat(tables, ignore_index=True)
    for label in out.columns:
        if isinstance(kinds[label], pd.CategoricalDtype) and out[label].dtype != kinds[label]:
            out[label] = out[label].astype("category")
    return out
