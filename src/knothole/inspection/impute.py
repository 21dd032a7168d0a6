"""Plausible values for holes: draws from p(x_m | x_o), in a table like the one that was given."""

from __future__ import annotations

from typing import Any

from knothole.arrays import Mask
from knothole.checks import check_whole
from knothole.columns.columns import Columns
from knothole.columns.evidence import Evidence
from knothole.columns.outputs import filled, long
from knothole.densities.base import drawn_rows


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
    check_whole("draws", draws, also=[None], way_out="None completes each row once.")
    points = drawn_rows(density, evidence, draws or 1, seed)
    columns: Columns = density.columns_
    own = points[:, :, : len(columns.variables)]
    done = [filled(table, columns, columns.decode(own[:, k]), holes) for k in range(own.shape[1])]
    return done[0] if draws is None else long(done)
