"""A table as the variables that go missing together, and masks back onto its columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Mask
from knothole.checks import check_whole
from knothole.columns.columns import Blocks, Columns, Kind, variable_of
from knothole.errors import InvalidInput


def apply_mask(X: Any, mask: Mask) -> Any:
    """Copy a table with holes where the mask is True: NaN, or what the column has for missing.

    Columns of whole numbers or booleans become float.

    Examples
    --------
    >>> apply_mask(np.array([[1, 2]]), np.array([[True, False]]))
    array([[nan,  2.]])
    """
    mask = np.asarray(mask)
    if mask.dtype != np.bool_ or mask.shape != np.shape(X):
        raise InvalidInput(
            f"mask must hold booleans and have the table's shape {np.shape(X)}; got {mask.dtype} "
            f"of shape {mask.shape}."
        )
    if isinstance(X, np.ndarray):
        out = X.astype(np.float64) if X.dtype.kind in "biu" else X.copy()
        out[mask] = None if out.dtype == object else np.nan
        return out
    import pandas as pd  # numpy arrays do without it

    if not isinstance(X, pd.DataFrame):
        raise InvalidInput(
            f"X must be a numpy array or a pandas DataFrame; got {type(X).__name__}. Convert "
            f"it, or take the mask alone."
        )
    plain = [isinstance(dtype, np.dtype) and dtype.kind in "biu" for dtype in X.dtypes]
    lost = X.columns[np.array(plain, dtype=np.bool_) & mask.any(axis=0)]
    return X.astype(dict.fromkeys(lost, np.float64)).mask(mask)


class VariableTable:
    """A table as points of its variables, and the reference the mechanism is fixed by.

    A mechanism sets ``p``, how likely each variable is to go missing in each row.
    """

    p: Floats

    def __init__(
        self,
        X: Any,
        seed: int,
        blocks: Blocks | None = None,
        reference: Any = None,
        mechanism: int | None = None,
    ) -> None:
        self.table, self.seed = X, seed
        self.rng = generator(seed if mechanism is None else mechanism, 0)
        self.columns = Columns.infer(X if reference is None else reference, blocks=blocks)
        self.matrix = self.columns.matrix(X, unseen="hole")
        self.points = self.reference = self.columns.evidence(self.matrix).points
        if reference is not None:
            fixed = self.columns.matrix(reference, unseen="hole")
            self.reference = self.columns.evidence(fixed).points
        self.reference_known = ~np.isnan(self.reference)

    def variable_of(self, column: str | int, parameter: str) -> int:
        """Variable of a column that a parameter names."""
        return variable_of(column, self.columns.names, self.columns.variables, parameter)

    def drivers(self, observed: float | Sequence[str | int]) -> NDArray[np.intp]:
        """Variables that stay observed."""
        n = len(self.columns.variables)
        if isinstance(observed, (int, float)):
            if not 0 < observed < 1:
                raise InvalidInput(f"observed must be a share between 0 and 1; got {observed}.")
            count = min(max(1, round(observed * n)), n - 1)
            drivers = np.sort(self.rng.permutation(n)[:count])
        else:
            found = {self.variable_of(column, "observed") for column in observed}
            drivers = np.array(sorted(found), dtype=np.intp)
        if not 0 < len(drivers) < n:
            raise InvalidInput(
                f"observed must leave at least one column that stays observed and one that can go "
                f"missing; of {n} columns {len(drivers)} would stay."
            )
        return drivers

    def scores(self) -> tuple[Floats, Floats]:
        """Points and reference, standardised: a category has a random number, a hole is 0."""
        own, fitted = self.points.copy(), self.reference.copy()
        for j, variable in enumerate(self.columns.variables):
            if variable.kind is Kind.CATEGORICAL:
                number = np.append(self.rng.normal(size=len(variable.levels)), np.nan)
                own[:, j], fitted[:, j] = (
                    number[np.where(np.isnan(codes), -1, codes).astype(np.intp)]
                    for codes in (self.points[:, j], self.reference[:, j])
                )
        known = self.reference_known
        count = np.maximum(known.sum(axis=0), 1)
        mean = np.where(known, fitted, 0.0).sum(axis=0) / count
        spread = np.sqrt((np.where(known, fitted - mean, 0.0) ** 2).sum(axis=0) / count)
        spread[spread == 0] = 1.0
        return np.nan_to_num((own - mean) / spread), np.nan_to_num((fitted - mean) / spread)

    def probability(self) -> Floats:
        """How likely each entry is to go missing, (rows, columns)."""
        return self.spread(self.p)

    def mask(self) -> Mask:
        """A mask of the columns, drawn."""
        uniform = generator(self.seed, 1).random(self.p.shape)
        return self.spread(uniform < self.p) & ~np.isnan(self.matrix)

    def poked(self) -> Any:
        """The table with holes."""
        return apply_mask(self.table, self.mask())

    def spread(self, of_variables: NDArray[Any]) -> NDArray[Any]:
        """From variables to columns: the dummies of a block share what the block has."""
        out = np.empty((len(of_variables), len(self.columns)), dtype=of_variables.dtype)
        for j, variable in enumerate(self.columns.variables):
            out[:, list(variable.columns)] = of_variables[:, [j]]
        return out


def generator(seed: int, stream: int) -> np.random.Generator:
    """A generator for one of the streams of a seed.

    Draws of a mask have their own, so that they do not depend on how much randomness the mechanism
    used.
    """
    check_whole("seed", seed, least=0)
    return np.random.default_rng([int(seed), stream])
