"""Questions about tables out of core: Dask collections, files, and tables sent to a cluster.

Answers to Dask collections are lazy ones, whose partitions are asked on the workers. Those to a
file are in memory, the file's rows are not.

A question is asked of a table without rows at once. So mistakes in it are told before anything is
computed, and it shows what the answer is made of: whatever has rows there (Series, DataFrames,
arrays; also in tuples and records of them) becomes a lazy one, the rest is as it is. The model is
one key of the graph: it comes to each worker once, and is unpacked there once.
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

# The question whose answer is a table like X, other columns and all.
IMPUTE = "impute"
# Tables on their way to a cluster for each thread of its workers, so that none waits.
AHEAD = 2


def lazily(method: F) -> F:
    """Let a method that answers each row of a table by itself take paths and Dask collections."""
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
    """What is asked of all rows of a file, of which a chunk at a time is in memory."""
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
    """A method of a model, asked of all partitions of a Dask collection; its answer is lazy."""
    import dask

    is_frame = hasattr(X, "_meta") and hasattr(X._meta, "columns")
    X = X if is_frame else _in_row_blocks(X)
    template = _answer_to_no_rows(model, method, X, options, is_frame)
    once = dask.delayed(packed(model), traverse=False, name=key("model"))
    imputes = method == IMPUTE
    ask = _question(method, options, template.dtypes if imputes and is_frame else None)
    times = (options.get("n_draws") or 1) if imputes else 1  # a row's in the answer
    wanted = _with_columns(X, model.columns_) if is_frame and not imputes else X
    if is_frame and hasattr(template, "iloc") and lost is None:
        # Dask puts it into one task with the reading of a partition and what comes after it.
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
    """What is answered where there are no rows, of columns that have been checked."""
    import pandas as pd

    columns: Columns = model.columns_
    # The collection without its rows; an array's own has no columns either.
    empty: Any = X._meta if is_frame else np.empty((0, X.shape[1]), X.dtype)
    for _ in raw_columns(columns.read(empty, options.get("absent", "error")), columns.names):
        pass  # what is no column is refused
    if method == IMPUTE:
        return filled_meta(empty, columns, options.get("n_draws"))
    if not is_frame:
        empty = np.empty((0, len(columns)))
    else:  # no levels, which may not be known before partitions are read
        names = list(columns.names if columns.named else empty.columns)
        empty = pd.DataFrame(np.empty((0, len(names))), index=empty.index, columns=names)
    return getattr(model, method)(empty, **options)


def _question(method: str, options: dict[str, Any], kinds: Any) -> Callable[..., Any]:
    """A question, to be put to a partition on a worker; ``kinds`` are types told of its answer."""
    alone = options.get("threads") is None and options.get("n_jobs") is None

    def ask(
        part: Any, model: bytes, number: int = 0, partition_info: Any = None, lost: Any = None
    ) -> Any:
        if partition_info is not None:
            number = partition_info["number"]
        asked = getattr(unpacked(model), method)
        own = options if lost is None else {**options, "lost": lost}
        answer = done(lambda rows: asked(rows, **own), number, part, alone=alone)
        return answer if kinds is None else as_told(answer, kinds)

    ask.__name__ = f"knothole_{method}"  # for the dashboard
    return ask


def _with_columns(X: Any, columns: Columns) -> Any:
    """A Dask DataFrame with no more columns than are needed."""
    labels = list(X.columns)
    if columns.named and labels != list(range(len(labels))):
        labels = [label for label in labels if str(label) in set(columns.names)]
    return X[labels]


def collected(parts: list[Any], empty: Any, divisions: Any = None, sizes: Any = None) -> Any:
    """Delayed parts as one lazy Series, DataFrame or array, like one without rows."""
    if not isinstance(empty, np.ndarray):
        import dask
        import dask.dataframe as dd

        # Columns of objects hold numbers, too: they must not become text.
        with dask.config.set({"dataframe.convert-string": False}):
            return dd.from_delayed(parts, meta=empty, divisions=divisions, verify_meta=False)
    import dask.array as da

    blocks = [
        da.from_delayed(part, shape=(size, *empty.shape[1:]), dtype=empty.dtype)
        for part, size in zip(parts, sizes or [np.nan] * len(parts), strict=True)
    ]
    return da.concatenate(blocks, allow_unknown_chunksizes=True)


def _in_row_blocks(X: Any) -> Any:
    """An array whose blocks have all columns."""
    if X.ndim != 2:
        raise InvalidInput(f"X must have two dimensions, rows and columns; got {X.ndim}.")
    return X.rechunk({1: -1}) if X.numblocks[1] > 1 else X


def packed(model: Any) -> bytes:
    """A model as bytes, without its library's own, which answers do not need."""
    import cloudpickle

    model = copy(model)
    model._model = None
    return bytes(cloudpickle.dumps(model))


@lru_cache(maxsize=4)
def unpacked(model: bytes) -> Any:
    """A model that :func:`packed` made bytes of; a worker keeps the last few."""
    import cloudpickle

    return cloudpickle.loads(model)


def as_told(answer: Any, kinds: Any) -> Any:
    """A filled partition with the types that were told before it was read."""
    import pandas as pd

    unknown = [
        isinstance(kind, pd.CategoricalDtype) and "__UNKNOWN_CATEGORIES__" in kind.categories
        for kind in kinds
    ]
    return answer.astype(
        {name: kinds[name] for name in kinds.index[~np.array(unknown, dtype=bool)]}
    )


def _picked(answer: Any, path: tuple[Any, ...], start: float | None) -> Any:
    """A part of an answer; in an array's block, rows are numbered from ``start``."""
    for step in path:
        answer = answer[step] if isinstance(step, int) else getattr(answer, step)
    if start is not None and np.isfinite(start):
        answer = answer.set_axis(range(int(start), int(start) + len(answer)), axis=0)
    return answer


def _with_lazy_rows(answer: Any, path: tuple[Any, ...], lazy: Callable[..., Any]) -> Any:
    """An answer about no rows, with lazy parts in the place of what has none."""
    if is_dataclass(answer) and not isinstance(answer, type):
        names = [field.name for field in fields(answer)]
        parts = {n: _with_lazy_rows(getattr(answer, n), (*path, n), lazy) for n in names}
        return type(answer)(**parts)
    if isinstance(answer, (tuple, list)):
        return type(answer)(_with_lazy_rows(one, (*path, i), lazy) for i, one in enumerate(answer))
    shape = getattr(answer, "shape", ())
    return lazy(answer, path) if shape and shape[0] == 0 else answer


def filled_meta(empty: Any, columns: Columns, n_draws: int | None) -> Any:
    """A table without rows, of the types that it has once missing values are filled in."""
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
