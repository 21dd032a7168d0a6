"""Rows drawn evenly from all parts of a table, and a few that show what the others have."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from knothole.arrays import Floats, Ints
from knothole.columns.read import WHOLE_LIMIT, check_finite
from knothole.errors import InvalidInput
from knothole.out_of_core.base import Part, Parts
from knothole.progress import tell

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
    weight : array (rows,), or None
        Their weights.
    shown : table
        The same, and a few rows that no row is like, with all that columns hold elsewhere: levels,
        a number that is not whole, a hole. It says how columns are to be described.
    total : int
        How many rows there are.
    total_weight : float
        What they weigh.
    """

    parts: Parts
    table: Any
    y: Any
    weight: Any
    shown: Any
    total: int
    total_weight: float

    @property
    def whole(self) -> bool:
        """Whether it is the whole table."""
        return len(self.table) == self.total

    def tell(self, verbose: bool) -> None:
        """Say what is learned from what, where that is not the whole table."""
        if not self.whole:
            tell(
                f"X has {self.total:,} rows: {ROWS:,} of them, drawn evenly, are what everything "
                f"is chosen by; what is chosen is then learned from all of them.",
                verbose,
            )


def sample(parts: Parts, seed: int, categories: Collection[str] = ()) -> Sample:
    """Draw rows; ``categories`` are columns whose numbers are codes of levels."""
    looks = parts.each(look, frozenset(categories))
    sizes = [rows for rows, _, _ in looks]
    starts = np.cumsum([0, *sizes])
    total = int(starts[-1])
    if not total:
        raise InvalidInput("X must have at least one row; its parts have none.")
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
    y, weight = (None if own[0] is None else np.concatenate(own) for own in beside)
    shown = _together([pd.DataFrame(table), *levels])
    return Sample(parts, table, y, weight, shown, total, total_weight)


def look(part: Part, categories: Collection[str]) -> tuple[int, float, pd.DataFrame]:
    """How many rows a part has, what they weigh, and what its columns hold."""
    _, table, y, weight = part
    if y is not None and len(y) != len(table):
        raise InvalidInput(f"y must have a target for each of {len(table)} rows; it has {len(y)}.")
    own = weights_of(part)
    if weight is not None and not (np.isfinite(own).all() and (own >= 0).all()):
        raise InvalidInput("sample_weight must hold finite numbers, none negative.")
    return len(table), float(own.sum()), witness(pd.DataFrame(table), categories)


def weights_of(part: Part) -> Floats:
    """The weights of a part's rows: 1 where nothing is said."""
    _, table, _, weight = part
    own = np.ones(len(table)) if weight is None else np.asarray(weight, dtype=np.float64)
    if own.shape != (len(table),):
        raise InvalidInput(
            f"sample_weight must have a number for each of {len(table)} rows; its shape is "
            f"{own.shape}."
        )
    return own


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


def take(part: Part, chosen: Ints, starts: Ints) -> Any:
    """The rows of a part that were chosen, targets, weights; None where there are none."""
    number, table, y, weight = part
    first, stop = np.searchsorted(chosen, starts[number : number + 2])
    own = chosen[first:stop] - starts[number]
    if not len(own):
        return None
    rows = table.iloc[own] if hasattr(table, "iloc") else np.asarray(table)[own]
    return rows, *(None if one is None else np.asarray(one)[own] for one in (y, weight))


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
