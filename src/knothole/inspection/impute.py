"""Plausible values for holes: draws from p(x_m | x_o), in a table like the one that was given."""

from __future__ import annotations

from typing import Any

import numpy as np

from knothole.arrays import Mask
from knothole.columns.columns import Columns
from knothole.columns.evidence import Evidence
from knothole.columns.fill import filled, long
from knothole.errors import InvalidInput
from knothole.expectation.registry import completer_of


def imputed(
    table: Any, density: Any, evidence: Evidence, holes: Mask, draws: int | None, seed: int
) -> Any:
    """A table with its holes drawn: once, or (``draws``) so many times, one under the other.

    Parameters
    ----------
    table : table
        With the density's columns.
    density : Density
    evidence : Evidence
        What its rows say.
    holes : bool (rows, columns)
        Which entries to fill.
    draws : int, optional
    seed : int
    """
    _check_draws(draws)
    points = completer_of(density).complete_points(evidence, draws or 1, seed)
    columns: Columns = density.columns_
    own = points[:, :, : len(columns.variables)]
    done = [filled(table, columns, columns.decode(own[:, k]), holes) for k in range(own.shape[1])]
    return done[0] if draws is None else long(done)


def _check_draws(draws: Any) -> None:
    whole = isinstance(draws, int | np.integer) and not isinstance(draws, bool)
    if draws is not None and not (whole and draws >= 1):
        raise InvalidInput(
            f"draws must be a whole number from 1, or None for one completion of each row; got "
            f"{draws!r}."
        )
