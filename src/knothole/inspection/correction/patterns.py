"""Holes to learn a correction from: put into rows whose output is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Mask
from knothole.columns.columns import Columns
from knothole.columns.read import as_table, labels_of, listed, places_of
from knothole.errors import InvalidInput

#: Patterns of holes (patterns, columns), or what draws a mask for a table: ``patterns(X, seed)``.
Patterns = Mask | Callable[[Any, int], Any]

# The largest rate; shares of copies in which few variables are gone, which take over the holes of
# another row, and which have patterns that the user has given.
HIGHEST_RATE = 0.7
FEW = 0.4
NATURAL = 0.3
GIVEN = 0.5
# How many variables are gone where few are.
NUMBERS = (1, 1, 2, 3)


def masks(columns: Columns, matrix: Floats, copies: int, rng: np.random.Generator) -> Mask:
    """Entries to hide, (copies, columns): one at least in each, many rates, few variables gone.

    Some have the holes of a row of the table too.

    Examples
    --------
    >>> from knothole.columns.columns import Column
    >>> columns = Columns((Column("a"), Column("b")))
    >>> found = masks(columns, np.zeros((4, 2)), 5, np.random.default_rng(0))
    >>> found.shape, bool(found.any(axis=1).all())
    ((5, 2), True)
    """
    n_variables = len(columns.variables)
    gone = rng.random((copies, n_variables)) < HIGHEST_RATE * rng.random((copies, 1))
    rank = rng.permuted(np.tile(np.arange(n_variables), (copies, 1)), axis=1)
    few = rng.random(copies) < FEW
    gone[few] = (rank < rng.choice(NUMBERS, (copies, 1)))[few]
    gone |= ~gone.any(axis=1, keepdims=True) & (rank == 0)
    others = np.isnan(matrix[rng.integers(len(matrix), size=copies)])
    return on_columns(columns, gone) | (others & (rng.random((copies, 1)) < NATURAL))


def on_columns(columns: Columns, of_variables: Mask) -> Mask:
    """From variables to columns: the dummies of a block go together."""
    out = np.empty((len(of_variables), len(columns)), dtype=np.bool_)
    for number, variable in enumerate(columns.variables):
        out[:, list(variable.columns)] = of_variables[:, [number]]
    return out


def given_masks(patterns: Patterns, table: Any, columns: Columns, rows: int, seed: int) -> Mask:
    """A mask (rows, columns) for the user's table: of its columns, or of those that it names."""
    called = callable(patterns)
    given = patterns(table, seed) if callable(patterns) else patterns
    named = given if hasattr(given, "columns") else as_table(table)
    width, found = len(labels_of(named)) or len(columns), np.asarray(given)
    places = places_of(named, columns.names) if columns.named else list(range(len(columns)))
    fits = found.dtype == np.bool_ and found.ndim == 2 and found.shape[1] == width
    if not fits or not len(found) or None in places or (called and len(found) != rows):
        raise InvalidInput(
            f"patterns must be booleans of shape (patterns, {width}), or a function of a table "
            f"and a seed that returns such a mask of the table's shape {rows, width}, as "
            f"knothole.missingness.mar_mask does; got {found.dtype} of shape {found.shape}. A "
            f"DataFrame of them must name each of the model's columns: {listed(columns.names)}."
        )
    if not called:
        drawn: NDArray[np.intp] = np.random.default_rng(seed).integers(len(found), size=rows)
        found = found[drawn]
    return np.asarray(found[:, [place for place in places if place is not None]])
