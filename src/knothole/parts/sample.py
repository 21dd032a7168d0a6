"""Rows drawn evenly from all parts of a table, and a few that show what the others have."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from knothole.arrays import Ints
from knothole.errors import InvalidInput
from knothole.parts.base import Parts
from knothole.tables.read import WHOLE_LIMIT, check_finite

#: Rows that are drawn at most: where there are no more, they are the whole table.
ROWS = 200_000


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows of a table in parts.

    Attributes
    ----------
    parts : Parts
        Where they come from.
    table, y : table and array (rows,), or None
        Rows drawn at random, in their order, and their targets. They depend on the rows and the
        seed, not on where parts begin.
    shown : table
        The same, and a few rows that no row is like, with all that columns hold elsewhere: levels,
        a number that is not whole, a hole. It says how columns are to be described.
    total : int
        How many rows there are.
    """

    parts: Parts
    table: Any
    y: Any
    shown: Any
    total: int

    @property
    def whole(self) -> bool:
        """Whether it is the whole table."""
        return len(self.table) == self.total


def sample(parts: Parts, seed: int, categories: Collection[str] = ()) -> Sample:
    """Draw rows; ``categories`` are columns whose numbers are codes of levels."""
    looks = parts.each(look, frozenset(categories))
    sizes = [rows for rows, _ in looks]
    starts = np.cumsum([0, *sizes])
    total = int(starts[-1])
    if not total:
        raise InvalidInput("X must have at least one row; its parts have none.")
    chosen = np.arange(total)
    if total > ROWS:
        chosen = np.sort(np.random.default_rng(seed).choice(total, ROWS, replace=False))
    drawn = [piece for piece in parts.each(take, chosen, starts) if piece is not None]
    levels = [witness for rows, witness in looks if rows]
    table = _together([one for one, _ in drawn])
    y = None if drawn[0][1] is None else np.concatenate([np.asarray(one) for _, one in drawn])
    frames = [pd.DataFrame(table), *levels]
    return Sample(parts, table, y, _together(frames), total)


def look(part: tuple[int, Any, Any], categories: Collection[str]) -> tuple[int, pd.DataFrame]:
    """How many rows a part has, and what its columns hold."""
    _, table, y = part
    if y is not None and len(y) != len(table):
        raise InvalidInput(f"y must have a target for each of {len(table)} rows; it has {len(y)}.")
    return len(table), witness(pd.DataFrame(table), categories)


def witness(frame: pd.DataFrame, categories: Collection[str] = ()) -> pd.DataFrame:
    """A few rows with all levels, with a number that is not whole and a hole where there are some.

    Examples
    --------
    >>> witness(pd.DataFrame({"a": [1.0, 2.5, None, 3.0], "b": ["x", "y", "y", "x"]}))
         a  b
    0  2.5  x
    1  NaN  y
    """
    shown = []
    for position, label in enumerate(frame.columns):
        series = frame.iloc[:, position].reset_index(drop=True)
        hole = series.isna()
        known = series[~hole]
        if pd.api.types.is_numeric_dtype(series.dtype) and str(label) not in categories:
            values = known.to_numpy(dtype=np.float64)
            check_finite(values, str(label))
            broken = np.flatnonzero((np.floor(values) != values) | (np.abs(values) > WHOLE_LIMIT))
            known = known.iloc[broken[:1]] if len(broken) else known.iloc[:1]
        else:
            known = known.drop_duplicates()
        shown.append(pd.concat([known, series[hole].iloc[:1]]))
    size = max((len(one) for one in shown), default=0)
    places = [np.minimum(np.arange(size), len(one) - 1) for one in shown]
    columns = [one.iloc[at].reset_index(drop=True) for one, at in zip(shown, places, strict=True)]
    return pd.concat(columns, axis=1) if columns else frame.iloc[:0]


def take(part: tuple[int, Any, Any], chosen: Ints, starts: Ints) -> Any:
    """The rows of a part that were chosen, and their targets; None where there are none."""
    number, table, y = part
    first, stop = np.searchsorted(chosen, starts[number : number + 2])
    own = chosen[first:stop] - starts[number]
    if not len(own):
        return None
    rows = table.iloc[own] if hasattr(table, "iloc") else np.asarray(table)[own]
    return rows, None if y is None else np.asarray(y)[own]


def _together(tables: list[Any]) -> Any:
    """Tables under one another; categories that differ are those of all."""
    if not hasattr(tables[0], "iloc"):
        return np.concatenate(tables)
    kinds = tables[0].dtypes
    out = pd.concat(tables, ignore_index=True)
    for label in out.columns:
        if isinstance(kinds[label], pd.CategoricalDtype) and out[label].dtype != kinds[label]:
            out[label] = out[label].astype("category")
    return out
