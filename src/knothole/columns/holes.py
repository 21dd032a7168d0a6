"""Which NaN is a hole: decided here, for everybody.

A NaN can be one of three things.

=====================  ============================================================================
a hole                 Nobody knows the value. Predictions integrate over it.
not recorded           NaN was there in training, and the model has learned a side for it: that
                       nothing was recorded is a value of the model's own. The columns where it can
                       be are *nullable*, and a density has a state for it.
taken for NaN          A number in the table that the model itself reads as NaN: XGBoost's
                       ``missing=0``, LightGBM's zeros. It becomes NaN (:func:`with_nan`); then it
                       is "not recorded" where the column is nullable, and elsewhere a hole.
=====================  ============================================================================

In a nullable column the first two look the same. By default ("auto") NaN is "not recorded" there,
unless the column is one to ``integrate`` over; "all" makes every NaN a hole; a mask says it entry
by entry. A one-hot block is "not recorded" where all of its dummies are NaN: if only some are, they
are holes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from knothole.arrays import Floats, Mask
from knothole.errors import InvalidInput

if TYPE_CHECKING:
    from knothole.columns.columns import Columns, Variable

#: How a caller says which NaN are holes.
Holes = Literal["auto", "all"] | Mask


def nowhere(variable: Variable, matrix: Floats) -> Mask:
    """Rows in which a variable is NaN in all of its columns, (rows,)."""
    return np.asarray(np.isnan(matrix[:, list(variable.columns)]).all(axis=1))


def holes_in(columns: Columns, matrix: Floats, integrate: Mask | None = None) -> Mask:
    """Every NaN but those that are "not recorded", (rows, columns).

    ``integrate`` (columns,) marks nullable columns in which every NaN is a hole all the same.

    Examples
    --------
    >>> from knothole.columns.columns import Column, Columns
    >>> columns = Columns((Column("a"), Column("b"))).with_nullable([False, True])
    >>> holes_in(columns, np.array([[np.nan, np.nan]])).tolist()
    [[True, False]]
    """
    holes = np.isnan(matrix)
    for variable in columns.variables:
        members = list(variable.columns)
        if variable.nullable and not (integrate is not None and integrate[members].any()):
            holes[:, members] &= ~nowhere(variable, matrix)[:, None]
    return holes


def nullable_as_met(columns: Columns, matrix: Floats) -> Columns:
    """The columns, nullable also where a training matrix has NaN: the model has met it there.

    Examples
    --------
    >>> from knothole.columns.columns import Column, Columns
    >>> met = nullable_as_met(Columns((Column("a"), Column("b"))), np.array([[1, np.nan], [2, 3]]))
    >>> [column.nullable for column in met]
    [False, True]
    """
    nullable = np.zeros(len(columns), dtype=np.bool_)
    for variable in columns.variables:
        nullable[list(variable.columns)] = variable.nullable or nowhere(variable, matrix).any()
    return columns.with_nullable(nullable)


def without_nullable(columns: Columns) -> Columns:
    """The columns where every NaN is a hole."""
    return columns.with_nullable(np.zeros(len(columns), dtype=np.bool_))


def with_nan(matrix: Floats, sentinel: Floats, columns: Columns) -> Floats:
    """Rows with NaN wherever the model takes a value for it; the same array where it never does.

    Dummies of a block stay as they are: a zero there says which category it is not, and
    :func:`knothole.trees.in_variables.in_variables` knows where the model sends it. ``sentinel`` is
    that of an :class:`~knothole.trees.ensemble.Ensemble`.
    """
    low, high = sentinel.T
    applies = ~np.isnan(low)
    if not applies.any():
        return matrix
    applies[[column for block in columns.blocks for column in block.columns]] = False
    return np.where(applies & (low <= matrix) & (high >= matrix), np.nan, matrix)


def checked_mask(holes: Any, shape: tuple[int, ...], what: str = "a matrix of booleans") -> Mask:
    """A mask that a caller gave, which must have the rows' shape."""
    mask = np.asarray(holes)
    if mask.shape != shape or mask.dtype != np.bool_:
        raise InvalidInput(
            f"holes must be {what} of shape {shape}; got {mask.dtype} of shape {mask.shape}."
        )
    return mask


@dataclass(frozen=True, eq=False)
class HoleRule:
    """How a model's NaN are read: ``sentinel`` (columns, 2) is what it takes for NaN.

    ``integrate`` (columns,) marks columns in which "auto" makes every NaN a hole: those that are
    not nullable, and perhaps others.
    """

    columns: Columns
    sentinel: Floats
    integrate: Mask

    @classmethod
    def of(cls, columns: Columns, sentinel: Floats, integrate: Mask | None = None) -> HoleRule:
        """By default only columns that are not nullable are integrated over."""
        return cls(
            columns, sentinel, ~columns.nullable | (False if integrate is None else integrate)
        )

    def read(
        self, matrix: Floats, holes: Holes = "auto", absent: Sequence[int] = ()
    ) -> tuple[Floats, Mask | None]:
        """Rows as the model takes them (:func:`with_nan`), and which of their NaN are holes.

        None says that all are. A mask may mark what is NaN in ``matrix``, which is as
        ``columns.matrix`` gives it. Columns that are ``absent`` from the table are holes, whatever
        NaN is in others.

        Examples
        --------
        >>> from knothole.columns.columns import Column, Columns
        >>> columns = Columns((Column("a"), Column("b"))).with_nullable([False, True])
        >>> zero_is_nan = np.zeros((2, 2))
        >>> values, holes = HoleRule.of(columns, zero_is_nan).read(np.array([[0.0, 0.0]]))
        >>> values.tolist(), holes.tolist()
        ([[nan, nan]], [[True, False]])
        """
        values = with_nan(matrix, self.sentinel, self.columns)
        if not isinstance(holes, str):
            mask = checked_mask(holes, matrix.shape, "'auto', 'all' or booleans")
            if not np.isnan(matrix[mask]).all():
                raise InvalidInput("holes: an entry that is not NaN was marked as a hole.")
            return values, mask
        if holes not in ("auto", "all"):
            raise InvalidInput(f"holes must be 'auto', 'all' or a mask; got {holes!r}.")
        if not self.columns.nullable.any():
            return values, None
        # What the model takes for NaN is known to be that: a value of its own where it has one.
        known = ~np.isnan(matrix) & self.columns.nullable
        found = holes_in(self.columns, values, self.integrate) if holes == "auto" else True
        marked = np.asarray(np.isnan(values) & ~known & found)
        marked[:, list(absent)] = True
        return values, marked
