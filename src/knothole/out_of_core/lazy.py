"""Methods of a model for tables out of core: Dask collections, files, tables on a cluster.

Results for a Dask collection are lazy; its partitions are processed on the workers. Results for a
file are in memory; its rows are read in chunks.

A method is first called with a table without rows. So errors are raised before anything is
computed, and the result shows its own structure: everything that has rows (Series, DataFrames,
arrays; also inside tuples and records) becomes lazy, the rest is used as it is. The model is one
key of the graph, so each worker receives and unpacks it once.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import fields, is_dataclass
from functools import lru_cache, wraps
from typing import Any, TypeVar

import numpy as np

from knothole.columns.columns import Columns, Kind
from knothole.columns.outputs import DRAW
from knothole.columns.read import raw_columns
from knothole.errors import InvalidInput, MissingExtra
from knothole.out_of_core.files import chunks_of, is_path
from knothole.out_of_core.partitions import done, is_lazy, key
from knothole.progress import bar

F = TypeVar("F", bound=Callable[..., Any])

# The method whose result is a table like X, with all of its columns.
IMPUTE = "impute"
# Tables in transit to a cluster per thread of its workers, so that no thread waits.
AHEAD = 2


def lazily(method: F) -> F:
    """Let a method that treats each row separately accept paths and Dask collections."""
    signature = inspect.signature(method)

    @wraps(method)
    def asked(self: Any, X: Any, *arguments: Any, **options: Any) -> Any:
        if not is_lazy(X) and not is_path(X):
            return method(self, X, *arguments, **options)
        given = dict(list(signature.bind(self, X, *arguments, **options).arguments.items())[2:])
        lost = given.pop("lost", None)
        if lost is not None and not (is_lazy(X) and is_lazy(lost)):
            raise InvalidInput(
                "lost must be a Dask collection with the partitions of X where X is one, and None "
                "where X is a path."
            )
        if is_path(X):
            return _of_file(
                lambda rows: method(self, rows, **given),
                self.columns_,
                X,
                every=method.__name__ == IMPUTE,
            )
        return _of_collection(self, method.__name__, X, given, lost)

    return asked  # type: ignore[return-value]


def _of_file(ask: Callable[[Any], Any], columns: Columns, path: Any, every: bool) -> Any:
    """Call a method on all rows of a file, one chunk in memory at a time."""
    import pandas as pd

    opened, chunks = chunks_of(path, columns, every=every)
    answers: list[Any] = []
    template = None
    with bar(f"asking of {opened.shown}") as advance:
        for number, (rows, _, _) in enumerate(chunks()):
            template = ask(rows.iloc[:0]) if template is None else template
            answers.append(done(ask, number, rows, alone=False))
            advance(amount=len(rows))
    if template is None:
        raise InvalidInput(f"{opened.shown}: has no rows.")

    def together(empty: Any, path: tuple[Any, ...]) -> Any:
        several = [_picked(answer, path, None) for answer in answers]
        return np.concatenate(several) if isinstance(empty, np.ndarray) else pd.concat(several)

    return _with_lazy_rows(template, (), together)


# --- Dask collections ----------------------------------------------------------------------------


def _of_collection(
    model: Any, method: str, X: Any, options: dict[str, Any], lost: Any = None
) -> Any:
    """Call a method of a model on all partitions of a Dask collection; the result is lazy."""
    import dask

    is_frame = hasattr(X, "_meta") and hasattr(X._meta, "columns")
    X = X if is_frame else _in_row_blocks(X)
    template = _answer_to_no_rows(model, method, X, options, is_frame)
    once = dask.delayed(packed(model), traverse=False, name=key("model"))
    imputes = method == IMPUTE
    ask = _question(method, options, template.dtypes if imputes and is_frame else None)
    times = (options.get("n_draws") or 1) if imputes else 1  # result rows per row
    wanted = _with_columns(X, model.columns_) if is_frame and not imputes else X
    if is_frame and hasattr(template, "iloc") and lost is None:
        # Dask fuses this into one task with reading the partition and what follows.
        return wanted.map_partitions(
            ask, once, meta=template, enforce_metadata=False, clear_divisions=times > 1
        )
    name = key(method)
    delayed, pick = dask.delayed(ask, pure=False), dask.delayed(_picked, pure=False)
    partitions = np.ravel(wanted.to_delayed()).tolist()
    parts = [
        delayed(partition, once, number, lost=mask, dask_key_name=f"{name}-{number}")
        for number, (partition, mask) in enumerate(
            zip(partitions, _masks(lost, X, len(partitions)), strict=True)
        )
    ]
    sizes = None if is_frame else [size * times for size in X.chunks[0]]
    starts = [None] * len(parts) if is_frame else [0, *np.cumsum(X.chunks[0])[:-1].tolist()]
    divisions = X.divisions if is_frame else None

    def lazy(empty: Any, path: tuple[Any, ...]) -> Any:
        if not path and isinstance(empty, np.ndarray):
            return collected(parts, empty, divisions, sizes)
        step = f"{name}_{'_'.join(map(str, path))}"
        several = [
            pick(part, path, start if hasattr(empty, "iloc") else None,
                 dask_key_name=f"{step}-{number}")
            for number, (part, start) in enumerate(zip(parts, starts, strict=True))
        ]  # fmt: skip
        return collected(several, empty, divisions, sizes)

    return _with_lazy_rows(template, (), lazy)


def _masks(lost: Any, X: Any, n: int) -> list[Any]:
    """The mask of each partition."""
    if lost is None:
        return [None] * n
    if hasattr(X, "chunks"):
        lost = lost.rechunk(X.chunks)
    masks: list[Any] = np.ravel(lost.to_delayed()).tolist()
    if len(masks) != n:
        raise InvalidInput(f"lost has {len(masks)} partitions; X has {n}, and they must agree.")
    return masks


def _answer_to_no_rows(
    model: Any, method: str, X: Any, options: dict[str, Any], is_frame: bool
) -> Any:
    """The method's result for a table without rows, after the columns have been checked."""
    import pandas as pd

    columns: Columns = model.columns_
    # The collection without rows; an array's own meta has no columns either.
    empty: Any = X._meta if is_frame else np.empty((0, X.shape[1]), X.dtype)
    for _ in raw_columns(columns.read(empty, options.get("absent", "error")), columns.names):
        pass  # values of other kinds are refused
    if method == IMPUTE:
        return filled_meta(empty, columns, options.get("n_draws"))
    if not is_frame:
        empty = np.empty((0, len(columns)))
    else:  # without levels, which may be unknown before partitions are read
        names = list(columns.names if columns.named else empty.columns)
        empty = pd.DataFrame(np.empty((0, len(names))), index=empty.index, columns=names)
    return getattr(model, method)(empty, **options)


def _question(method: str, options: dict[str, Any], kinds: Any) -> Callable[..., Any]:
    """The function to run on each partition; ``kinds`` are data types announced for its result."""
    alone = options.get("threads") is None and options.get("n_jobs") is None

    def ask(
        part: Any, model: bytes, number: int = 0, partition_info: Any = None, lost: Any = None
    ) -> Any:
        if partition_info is not None:
            number = partition_info["number"]
        asked = getattr(unpacked(model), method)
        own = options if lost is None else {**options, "lost": lost}
        answer = done(lambda rows: asked(rows, **own), number, part, alone=alone)
        return answer if kinds is None else as_announced(answer, kinds)

    ask.__name__ = f"knothole_{method}"  # shown on the dashboard
    return ask


def _with_columns(X: Any, columns: Columns) -> Any:
    """A Dask DataFrame with only the columns that are needed."""
    labels = list(X.columns)
    if columns.named and labels != list(range(len(labels))):
        labels = [label for label in labels if str(label) in set(columns.names)]
    return X[labels]


def collected(parts: list[Any], empty: Any, divisions: Any = None, sizes: Any = None) -> Any:
    """Delayed parts as one lazy Series, DataFrame or array, modelled on one without rows."""
    if not isinstance(empty, np.ndarray):
        import dask
        import dask.dataframe as dd

        # Object columns may hold numbers, which must not become text.
        with dask.config.set({"dataframe.convert-string": False}):
            return dd.from_delayed(parts, meta=empty, divisions=divisions, verify_meta=False)
    import dask.array as da

    blocks = [
        da.from_delayed(part, shape=(size, *empty.shape[1:]), dtype=empty.dtype)
        for part, size in zip(parts, sizes or [np.nan] * len(parts), strict=True)
    ]
    return da.concatenate(blocks, allow_unknown_chunksizes=True)


def _in_row_blocks(X: Any) -> Any:
    """The array rechunked so that every block has all columns."""
    if X.ndim != 2:
        raise InvalidInput(f"X must have two dimensions, rows and columns; got {X.ndim}.")
    return X.rechunk({1: -1}) if X.numblocks[1] > 1 else X


def packed(model: Any) -> bytes:
    """A model as bytes, without the library's own model, which predictions do not need."""
    import cloudpickle

    model = copy(model)
    model._model = None
    return bytes(cloudpickle.dumps(model))


@lru_cache(maxsize=4)
def unpacked(model: bytes) -> Any:
    """The model that :func:`packed` made bytes of; a worker caches the last few."""
    import cloudpickle

    return cloudpickle.loads(model)


def as_announced(answer: Any, kinds: Any) -> Any:
    """A filled partition with the data types announced before it was read."""
    import pandas as pd

    unknown = [
        isinstance(kind, pd.CategoricalDtype) and "__UNKNOWN_CATEGORIES__" in kind.categories
        for kind in kinds
    ]
    return answer.astype(
        {name: kinds[name] for name in kinds.index[~np.array(unknown, dtype=bool)]}
    )


def _picked(answer: Any, path: tuple[Any, ...], start: float | None) -> Any:
    """One part of a result; in an array's block, rows are numbered from ``start``."""
    for step in path:
        answer = answer[step] if isinstance(step, int) else getattr(answer, step)
    if start is not None and np.isfinite(start):
        answer = answer.set_axis(range(int(start), int(start) + len(answer)), axis=0)
    return answer


def _with_lazy_rows(answer: Any, path: tuple[Any, ...], lazy: Callable[..., Any]) -> Any:
    """A result for a table without rows, with every part that has rows replaced by a lazy one."""
    if is_dataclass(answer) and not isinstance(answer, type):
        names = [field.name for field in fields(answer)]
        parts = {n: _with_lazy_rows(getattr(answer, n), (*path, n), lazy) for n in names}
        return type(answer)(**parts)
    if isinstance(answer, (tuple, list)):
        return type(answer)(_with_lazy_rows(one, (*path, i), lazy) for i, one in enumerate(answer))
    shape = getattr(answer, "shape", ())
    return lazy(answer, path) if shape and shape[0] == 0 else answer


def filled_meta(empty: Any, columns: Columns, n_draws: int | None) -> Any:
    """A table without rows, with the data types that it has after imputation."""
    import pandas as pd

    if isinstance(empty, np.ndarray):
        return empty if n_draws is None else np.empty((0, empty.shape[1] + 1), empty.dtype)
    out = empty.copy()
    described = {column.name: column for column in columns}
    for position, label in enumerate(empty.columns):
        column, dtype = described.get(str(label)), empty.dtypes.iloc[position]
        if not columns.named:
            column = columns[position]
        if column is None:
            continue
        if isinstance(dtype, pd.CategoricalDtype):
            if "__UNKNOWN_CATEGORIES__" in dtype.categories:
                continue
            further = [level for level in column.levels if level not in set(dtype.categories)]
            out.isetitem(position, empty.iloc[:, position].cat.add_categories(further))
        elif column.kind is Kind.CONTINUOUS and str(dtype).startswith(("Int", "UInt")):
            out.isetitem(position, empty.iloc[:, position].astype("Float64"))
    if n_draws is not None:
        out.insert(0, DRAW, np.empty(0, dtype=np.int64))
    return out


# --- a cluster -----------------------------------------------------------------------------------


def on_cluster(
    address: str, model: Any, ask: Callable[[Any, Any], Any], tables: Iterable[Any]
) -> Iterator[Any]:
    """Yield ``ask(model, table)`` for each table, in order, with few tables in transit."""
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
        # A task, not data: it is computed again if a worker is lost.
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
