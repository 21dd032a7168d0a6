"""What NaN means in columns that had it in training: the model's own value, or a hole.

The model has learned a side for it, which is right where "not recorded" says something. But at
deployment more entries go missing for reasons that say nothing, and the two cannot be told apart.
Which meaning costs less is measured: masked held-out rows are predicted under both. The less NaN a
column had in training, the less of it means anything, so variables are tried in that order: none,
the first few, all of them. Single ones then change sides where that gains more than its standard
error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from knothole.arrays import Floats, Mask
from knothole.columns.columns import Columns, Variable
from knothole.columns.evidence import holes_in, nowhere
from knothole.densities.base import Density
from knothole.densities.held_out import HeldOut
from knothole.expectation.expectation import Expectation
from knothole.scoring import PredictionLoss

if TYPE_CHECKING:
    import pandas as pd


# Numbers of variables to integrate over that are tried, in the order of their NaN in training.
STEPS = 8
# Variables whose meaning is tried by itself, those with the least NaN first.
SINGLE = 32


class NanMeaning:
    """Losses of held-out rows as a function of the variables whose NaN are integrated over."""

    def __init__(
        self,
        loss: PredictionLoss,
        parts: tuple[tuple[Density, HeldOut], ...],
        columns: Columns,
        matrix: Floats,
    ) -> None:
        self.loss = loss
        self.columns = columns
        self.parts = [
            (Expectation.of(loss.ensemble, density, tol=None), part) for density, part in parts
        ]
        # Of each part: holes that rows had in calls before, and their losses then.
        self.known: list[list[tuple[Mask, Floats]]] = [[] for _ in parts]
        #: Nullable variables and the part of their entries that were NaN, the least first.
        self.variables = sorted(nullable(columns, matrix), key=lambda found: found[1])

    def choose(self) -> tuple[Mask, pd.DataFrame]:
        """Columns to integrate over (columns,), and what was found for each nullable variable."""
        import pandas as pd

        n = len(self.variables)
        sizes = np.unique(np.linspace(0, n, min(n + 1, STEPS)).round().astype(int))
        losses = [self.losses(np.arange(n) < size) for size in sizes]
        best = int(np.argmin([loss.mean() for loss in losses]))
        chosen, current = np.arange(n) < sizes[best], losses[best]
        rows = []
        for v, (variable, rate) in enumerate(self.variables):
            gain, error = np.nan, np.nan
            if v < SINGLE:
                other = chosen.copy()
                other[v] = ~other[v]
                flipped = self.losses(other)
                native, integrated = (flipped, current) if chosen[v] else (current, flipped)
                gain, error = _gain(native, integrated)
                if _gain(current, flipped)[0] > error:
                    chosen, current = other, flipped
            rows.append((variable.name, rate, bool(chosen[v]), gain, error))
        names = ["column", "nan_in_training", "integrate", "gain", "error"]
        return self.mask(chosen), pd.DataFrame(rows, columns=names)

    def losses(self, chosen: Mask) -> Floats:
        """Losses of all held-out rows where the chosen variables are integrated over.

        Only rows whose holes are those of no call before are predicted.
        """
        integrate, out = self.mask(chosen), []
        for (expectation, part), known in zip(self.parts, self.known, strict=True):
            own = holes_in(self.columns, part.matrix, integrate)
            losses, new = np.empty(len(own)), np.ones(len(own), dtype=np.bool_)
            for before, found in reversed(known):
                rows = np.flatnonzero(new)
                rows = rows[(own[rows] == before[rows]).all(axis=1)]
                losses[rows], new[rows] = found[rows], False
            rows = np.flatnonzero(new)
            losses[rows] = self.loss.under(expectation, part.some(rows), own[rows])
            known.append((own, losses))
            out.append(losses)
        return np.concatenate(out)

    def mask(self, chosen: Mask) -> Mask:
        """Columns of the chosen variables, (columns,)."""
        integrate = np.zeros(len(self.columns), dtype=np.bool_)
        for (variable, _), flag in zip(self.variables, chosen.tolist(), strict=True):
            integrate[list(variable.columns)] = flag
        return integrate


def _gain(before: Floats, after: Floats) -> tuple[float, float]:
    """How much smaller the mean loss is, and the standard error of that."""
    difference = before - after
    return float(difference.mean()), float(difference.std(ddof=1) / np.sqrt(len(difference)))


def nullable(columns: Columns, matrix: Floats) -> list[tuple[Variable, float]]:
    """Variables of which NaN can be a value, and the part of their entries that are NaN."""
    return [
        (variable, float(nowhere(variable, matrix).mean()))
        for variable in columns.variables
        if variable.nullable
    ]


def unmeasured(columns: Columns, matrix: Floats) -> pd.DataFrame:
    """What NaN means where nothing was measured."""
    import pandas as pd

    rows = [(variable.name, rate, False) for variable, rate in nullable(columns, matrix)]
    table = pd.DataFrame(rows, columns=["column", "nan_in_training", "integrate"])
    return table.assign(gain=np.nan, error=np.nan)
