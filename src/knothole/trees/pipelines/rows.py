"""Rows made to ask a pipeline with, of the kind of table that it was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.columns.read import RawColumn, as_table, check_rows, names_of, read_column
from knothole.errors import InvalidInput

# Numbers of a column to look at, and rows that the others are taken from.
GRID, BASES = 512, 3
# How far beyond the numbers of training to look, in multiples of their range: closely, and far.
NEAR, FAR = np.arange(1, 33) / 32, 4.0 ** np.arange(1, 9)


@dataclass(frozen=True, eq=False)
class Source:
    """A raw column: what was read of it (None where it cannot be), and what it holds as it is."""

    name: str
    read: RawColumn | None
    values: NDArray[Any]  # observed ones
    dtype: Any
    problem: str = ""

    @property
    def numeric(self) -> bool:
        """Whether it holds numbers."""
        return self.read is not None and self.read.levels is None

    def grid(self, beyond: Floats | None = None) -> Floats:
        """Numbers to look at, ascending: some that occur, and some beyond them."""
        known = np.unique(self.values)
        if len(known) > GRID:
            known = np.unique(np.quantile(known, np.linspace(0, 1, GRID), method="nearest"))
        if beyond is None:
            return np.asarray(known)
        far = max(known[-1] - known[0], np.abs(known).max(), 1.0) * beyond
        return np.unique(np.concatenate([known[0] - far, known, known[-1] + far]))


class Rows:
    """The columns of a training table, and tables like it with values of one's choice."""

    def __init__(self, table: Any) -> None:
        table = as_table(table)
        check_rows(table)
        self.is_array = isinstance(table, np.ndarray)
        names, self.named = names_of(table)
        self.labels: list[Any] = list(range(len(names)) if self.is_array else table.columns)
        self.dtype = table.dtype if self.is_array else None
        self.sources = [
            self._source(name, table[:, i] if self.is_array else table.iloc[:, i])
            for i, name in enumerate(names)
        ]
        rng = np.random.default_rng(0)
        empty = [source.name for source in self.sources if not len(source.values)]
        if empty:
            raise InvalidInput(
                f"column {empty[0]!r} of X_train has no value at all, so a pipeline cannot be "
                f"asked what it does with one; pass rows in which it has, or leave it out of both."
            )
        self.base = [rng.choice(source.values, BASES) for source in self.sources]

    def _source(self, name: str, column: Any) -> Source:
        try:
            read, problem = read_column(name, column), ""
        except InvalidInput as error:
            read, problem = None, str(error)
        if read is None:
            import pandas as pd

            held = pd.Series(column).dropna()
            values: Any = np.empty(len(held), dtype=object)
            values[:] = held.tolist()
        elif read.levels is None:
            values = read.values[~np.isnan(read.values)]
        else:
            values = np.empty(len(read.levels), dtype=object)
            values[:] = read.levels
        return Source(name, read, values, column.dtype, problem)

    def table(self, chosen: Mapping[int, Any]) -> Any:
        """Rows like the first base row, with these values in some of the columns."""
        n = max(len(values) for values in chosen.values())
        columns = [
            self._column(source, chosen.get(i), own[0], n)
            for i, (source, own) in enumerate(zip(self.sources, self.base, strict=True))
        ]
        if self.is_array:
            kind = self.dtype if self.dtype in (np.float32, np.float64, object) else np.float64
            out = np.empty((n, len(columns)), dtype=kind)
            for i, column in enumerate(columns):
                out[:, i] = column
            return out
        import pandas as pd

        return pd.DataFrame(dict(enumerate(columns))).set_axis(self.labels, axis=1)

    def in_every_base(self, position: int, values: Any) -> Any:
        """Every base row with each of these values in one column, the base rows in turn."""
        own = {i: np.tile(base, len(values)) for i, base in enumerate(self.base)}
        return self.table({**own, position: np.repeat(values, BASES)})

    def _column(self, source: Source, values: Any, own: Any, n: int) -> Any:
        given: Any = np.empty(n, dtype=np.float64 if source.numeric else object)
        given[:] = [own] * n if not source.numeric else own
        if values is not None:
            given[: len(values)] = values
        if self.is_array:
            return given
        import pandas as pd

        if source.numeric:
            return given.astype(np.float32 if source.dtype == np.float32 else np.float64)
        if isinstance(source.dtype, pd.CategoricalDtype):  # what is no level is NaN there
            codes = source.dtype.categories.get_indexer(given)
            return pd.Series(pd.Categorical.from_codes(codes, dtype=source.dtype))
        return pd.Series(given, dtype=source.dtype)


def next_to(values: Floats, dtype: Any) -> tuple[Floats, Floats]:
    """The numbers just below and just above, among those that a column can hold."""
    kind = np.float32 if dtype == np.float32 else np.float64
    exact = values.astype(kind)
    below, above = np.nextafter(exact, kind(-np.inf)), np.nextafter(exact, kind(np.inf))
    return below.astype(np.float64), above.astype(np.float64)
