"""Questions about tables in parts: Dask collections, and files.

Answers to Dask collections are lazy ones, whose partitions are asked on the workers. Those to a
file are in memory, the file's rows are not.

A question is asked of a table without rows at once. So mistakes in it are told before anything is
computed, and it shows what the answer is made of: whatever has rows there (Series, DataFrames,
arrays; also in tuples and records of them) becomes a lazy one, the rest is as it is. The model is
one key of the graph: it comes to each worker once, and is unpacked there once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import lru_cache, wraps
from typing import Any, TypeVar

import numpy as np

from knothole.columns.columns import Columns, Kind
from knothole.columns.outputs import DRAW
from knothole.errors import InvalidInput
from knothole.out_of_core.files import FileTable, is_path
from knothole.out_of_core.work import done, is_lazy, key
from knothole.progress import bar

F = TypeVar("F", bound=Callable[..., Any])

# The question whose answer is a table like X, other columns and all.
FILLING = "impute"


def lazily(method: F) -> F:
    """Let a method that answers each row of a table by itself take paths and Dask collections."""
    signature = inspect.signature(method)

    @wraps(method)
    def asked(self: Any, X: Any, *arguments: Any, **options: Any) -> Any:
        if not is_lazy(X) and not is_path(X):
            return method(self, X, *arguments, **options)
        given = dict(list(signature.bind(self, X, *arguments, **options).arguments.items())[2:])
        if not isinstance(given.get("holes"), (str, type(None))):
            raise InvalidInput(
                "holes must be 'auto' or 'all' for a table in parts; a mask is about single rows. "
                "Ask part by part (map_partitions), with the mask of each."
            )
        if is_path(X):
            table = FileTable.of(X, self.columns_, every=method.__name__ == FILLING)
            return _of_file(lambda rows: method(self, rows, **given), table)
        return _Question(self, method.__name__, X, given).answer()

    return asked  # type: ignore[return-value]


def _of_file(ask: Callable[[Any], Any], table: FileTable) -> Any:
    """What is asked of all rows of a file, of which no more than some are in memory."""
    import pandas as pd

    answers: list[Any] = []
    template = None
    with bar(f"asking of {table.source.shown}") as advance:
        for number, (rows, _, _) in enumerate(table.parts()):
            template = ask(rows.iloc[:0]) if template is None else template
            answers.append(done(ask, number, rows, alone=False))
            advance(amount=len(rows))
    if template is None:
        raise InvalidInput(f"{table.source.shown}: has no rows.")

    def together(empty: Any, path: tuple[Any, ...]) -> Any:
        several = [_picked(answer, path, None) for answer in answers]
        return np.concatenate(several) if isinstance(empty, np.ndarray) else pd.concat(several)

    return _with_lazy_rows(template, (), together)


class _Question:
    """A method of a model and its options, asked of all partitions of a collection."""

    def __init__(self, model: Any, method: str, X: Any, options: dict[str, Any]) -> None:
        self.model, self.method, self.options = model, method, options
        self.columns: Columns = model.columns_
        self.is_frame = hasattr(X, "_meta") and hasattr(X._meta, "columns")
        self.filled = method == FILLING
        self.X = X if self.is_frame else _in_row_blocks(X)
        # The table without its rows; an array's own has no columns either.
        self.empty: Any = X._meta if self.is_frame else np.empty((0, self.X.shape[1]), X.dtype)
        self.columns.read(self.empty, options.get("absent", "error"))  # refuses other columns

    def answer(self) -> Any:
        """The answer, with lazy parts."""
        import dask

        template = self._on_no_rows()
        once = dask.delayed(packed(self.model), traverse=False, name=key("model"))
        name = key(self.method)
        kinds = template.dtypes if self.filled and self.is_frame else None
        asking = _Asking(self.method, self.options, kinds)
        if self.is_frame and hasattr(template, "iloc"):
            # Dask puts it into one task with the reading of a partition and what comes after it.
            return self._wanted().map_partitions(
                asking, once, meta=template, enforce_metadata=False,
                clear_divisions=self._times() > 1,
            )  # fmt: skip
        parts = [
            dask.delayed(asking, pure=False)(part, once, number, dask_key_name=f"{name}-{number}")
            for number, part in enumerate(self._parts())
        ]
        pick = dask.delayed(_picked, pure=False)

        def lazy(empty: Any, path: tuple[Any, ...]) -> Any:
            if not path and isinstance(empty, np.ndarray):
                return self._collected(parts, empty)
            starts = self._starts() if hasattr(empty, "iloc") else None
            several = [
                pick(part, path, None if starts is None else starts[number],
                     dask_key_name=f"{name}_{'_'.join(map(str, path))}-{number}")
                for number, part in enumerate(parts)
            ]  # fmt: skip
            return self._collected(several, empty)

        return _with_lazy_rows(template, (), lazy)

    def _on_no_rows(self) -> Any:
        """What is answered where there are no rows."""
        empty = self.empty
        if self.filled:
            return filled_meta(empty, self.columns, self.options.get("draws"))
        if not self.is_frame:
            empty = np.empty((0, len(self.columns)))
        else:  # no levels, which may not be known before partitions are read
            import pandas as pd

            names = list(self.columns.names if self.columns.named else empty.columns)
            empty = pd.DataFrame(np.empty((0, len(names))), index=empty.index, columns=names)
        return getattr(self.model, self.method)(empty, **self.options)

    def _parts(self) -> list[Any]:
        """The partitions."""
        return list(np.ravel(self._wanted().to_delayed()))

    def _wanted(self) -> Any:
        """The table, with no more columns than are needed."""
        if not self.is_frame:
            return self.X
        labels = list(self.X.columns)
        if self.columns.named and not self.filled and labels != list(range(len(labels))):
            names = set(self.columns.names)
            labels = [label for label in labels if str(label) in names]
        return self.X[labels]

    def _times(self) -> int:
        """How often each row is in the answer."""
        return (self.options.get("draws") or 1) if self.filled else 1

    def _collected(self, parts: list[Any], empty: Any) -> Any:
        """Lazy parts as one lazy Series, DataFrame or array, like one without rows."""
        if self.is_frame:
            return collected(parts, empty, self.X.divisions)
        return collected(parts, empty, None, [size * self._times() for size in self.X.chunks[0]])

    def _starts(self) -> list[float] | None:
        """The number of the first row of each block of an array, where known; None for frames."""
        if self.is_frame:
            return None
        return [0, *np.cumsum(self.X.chunks[0])[:-1].tolist()]


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
    from copy import copy

    import cloudpickle

    model = copy(model)
    model._model = None
    return bytes(cloudpickle.dumps(model))


@lru_cache(maxsize=4)
def unpacked(model: bytes) -> Any:
    """A model that :func:`packed` made bytes of; a worker keeps the last few."""
    import cloudpickle

    return cloudpickle.loads(model)


class _Asking:
    """A question, to be put to a partition on a worker; ``kinds`` are types told of its answer."""

    def __init__(self, method: str, options: dict[str, Any], kinds: Any) -> None:
        self.method, self.options, self.kinds = method, options, kinds
        self.__name__ = f"knothole_{method}"  # for the dashboard

    def __call__(self, part: Any, model: bytes, number: int = 0, partition_info: Any = None) -> Any:
        if partition_info is not None:
            number = partition_info["number"]
        asked, options = getattr(unpacked(model), self.method), self.options
        alone = options.get("n_jobs") is None
        found = done(lambda rows: asked(rows, **options), number, part, alone=alone)
        return found if self.kinds is None else as_told(found, self.kinds)


def as_told(found: Any, kinds: Any) -> Any:
    """A filled partition with the types that were told before it was read."""
    import pandas as pd

    unknown = [
        isinstance(kind, pd.CategoricalDtype) and "__UNKNOWN_CATEGORIES__" in kind.categories
        for kind in kinds
    ]
    return found.astype({name: kinds[name] for name in kinds.index[~np.array(unknown, dtype=bool)]})


def _picked(found: Any, path: tuple[Any, ...], start: float | None) -> Any:
    """A part of an answer; in an array's block, rows are numbered from ``start``."""
    for step in path:
        found = found[step] if isinstance(step, int) else getattr(found, step)
    if start is not None and np.isfinite(start):
        found = found.set_axis(range(int(start), int(start) + len(found)), axis=0)
    return found


def _with_lazy_rows(found: Any, path: tuple[Any, ...], lazy: Callable[..., Any]) -> Any:
    """An answer about no rows, with lazy parts in the place of what has none."""
    if is_dataclass(found) and not isinstance(found, type):
        names = [field.name for field in fields(found)]
        parts = {n: _with_lazy_rows(getattr(found, n), (*path, n), lazy) for n in names}
        return type(found)(**parts)
    if isinstance(found, (tuple, list)):
        return type(found)(_with_lazy_rows(one, (*path, i), lazy) for i, one in enumerate(found))
    shape = getattr(found, "shape", ())
    return lazy(found, path) if shape and shape[0] == 0 else found


def filled_meta(empty: Any, columns: Columns, draws: int | None) -> Any:
    """What a table without rows is once holes are filled, which may take other types."""
    if isinstance(empty, np.ndarray):
        return empty if draws is None else np.empty((0, empty.shape[1] + 1), empty.dtype)
    import pandas as pd

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
    if draws is not None:
        out.insert(0, DRAW, np.empty(0, dtype=np.int64))
    return out
