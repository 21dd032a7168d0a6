"""Completions of a table, of the table's own class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Mask
from knothole.densities.base import Density
from knothole.reach.registry import completer_of
from knothole.tables.evidence import Evidence
from knothole.tables.fill import filled
from knothole.tables.holes import holes_in
from knothole.tables.read import class_of

Rows = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Completions:
    """Rows whose holes can be drawn.

    Attributes
    ----------
    density : Density
        What they are drawn from.
    table : table
        The rows.
    gone : bool (rows, columns)
        The holes; what else is NaN stays so.
    evidence : Evidence
        What the rows say, with the target where the density has one and it is known.
    """

    density: Density
    table: Any
    gone: Mask
    evidence: Evidence

    @classmethod
    def of(cls, density: Density, X: Any, target: Any = None, holes: Mask | None = None) -> Self:
        """Of a table; ``holes`` are by default every NaN of a column that is not nullable."""
        columns = density.columns_
        matrix = columns.matrix(X)
        gone = holes_in(columns, matrix) if holes is None else np.asarray(holes)
        evidence = density.extended(columns.evidence(np.where(gone, np.nan, matrix), gone), target)
        return cls(density, X, gone, evidence)

    def __getitem__(self, rows: Rows) -> Completions:
        """Some of the rows."""
        return Completions(
            self.density, take(self.table, rows), self.gone[rows], self.evidence[rows]
        )

    def __len__(self) -> int:
        return len(self.gone)

    @property
    def incomplete(self) -> Mask:
        """Rows that have holes, (rows,)."""
        return np.asarray(self.gone.any(axis=1))

    def drawn(self, draws: int, seed: int) -> Floats:
        """The incomplete rows, encoded, with holes drawn: (incomplete rows, draws, columns)."""
        columns, open_rows = self.density.columns_, np.flatnonzero(self.incomplete)
        points = completer_of(self.density).complete_points(self.evidence[open_rows], draws, seed)
        points = points[:, :, : len(columns.variables)]
        flat = columns.decode(points.reshape(-1, points.shape[2]))
        return flat.reshape(*points.shape[:2], len(columns))

    def each(self, draws: int, seed: int) -> Any:
        """Every row ``draws`` times in a run, complete ones too."""
        row = np.repeat(np.arange(len(self)), draws)
        matrix = np.full((len(row), self.gone.shape[1]), np.nan)
        matrix[self.incomplete[row]] = self.drawn(draws, seed).reshape(-1, matrix.shape[1])
        return self.filled(row, matrix)

    def filled(self, row: Rows, matrix: Floats) -> Any:
        """Rows by number, with the holes of each filled from encoded ones."""
        table = take(self.table, row)
        if hasattr(table, "reset_index"):
            table = table.reset_index(drop=True)
        return filled(table, self.density.columns_, matrix, self.gone[row])


def aligned(params: Mapping[str, Any], n: int, rows: Rows) -> dict[str, Any]:
    """Parameters of ``fit`` for some of n rows: those that go with rows are taken along."""
    return {
        name: take(value, rows)
        if not isinstance(value, str) and hasattr(value, "__len__") and len(value) == n
        else value
        for name, value in params.items()
    }


def take(values: Any, rows: Rows) -> Any:
    """Some rows of a table, or of what goes with its rows."""
    kind = class_of(values)
    if kind is None:
        return values.iloc[rows] if hasattr(values, "iloc") else np.asarray(values)[rows]
    if kind[0] == "pandas":
        return values.iloc[rows]
    return values.take(rows) if kind[0] == "pyarrow" else values[rows]
