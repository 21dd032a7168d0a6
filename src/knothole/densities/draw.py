"""Values for latents' states: the last step of every draw."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.densities.emissions.base import Emission
from knothole.densities.emissions.table import draw_allowed
from knothole.errors import InvalidInput
from knothole.tables.columns import Evidence


def fill_holes(
    emissions: Sequence[Emission],
    evidence: Evidence,
    states: NDArray[np.int64],
    uniform: Floats,
) -> Floats:
    """Points with holes drawn given their latents: (rows, draws, variables).

    ``states`` has the state of every variable's emission, and ``uniform`` the number that becomes
    its value, (rows, draws, variables) each. A variable that is known to lie in a set of categories
    is drawn within it.
    """
    draws = states.shape[1]
    points = np.repeat(evidence.points[:, None, :], draws, axis=1)
    for v, emission in enumerate(emissions):
        rows = np.flatnonzero(np.isnan(evidence.points[:, v]))
        drawn = emission.invert(states[rows, :, v].reshape(-1), uniform[rows, :, v].reshape(-1))
        points[rows, :, v] = drawn.reshape(len(rows), draws)
    for v, rows, allowed in evidence.restricted():
        table = emissions[v].natural().table
        sets = np.repeat(allowed, draws, axis=0)
        own = uniform[rows, :, v].reshape(-1)
        codes = draw_allowed(table, states[rows, :, v].reshape(-1), sets, own)
        points[rows, :, v] = codes.reshape(len(rows), draws)
    return points


def check_possible(impossible: NDArray[np.bool_]) -> None:
    """Refuse rows that have no probability: nothing can be said about their holes."""
    if impossible.any():
        raise InvalidInput(
            f"X: row {int(np.argmax(impossible))} has probability 0 under this "
            f"density, so its holes have no distribution."
        )
