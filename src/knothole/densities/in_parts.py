"""Learning from a table in parts: the size and the prior from a sample, then EM on all rows.

Each step asks every part for the statistics that EM needs, which are additive, and adds them up in
a tree of fixed order. Rows stay where they are.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from knothole.arrays import Floats
from knothole.columns.columns import Columns, Evidence
from knothole.columns.evidence import with_nan
from knothole.densities.em import train
from knothole.errors import InvalidInput
from knothole.out_of_core.partitions import Partition, Partitions, Sample, sample, weights_of

if TYPE_CHECKING:
    from knothole.densities.base import Density

D = TypeVar("D", bound="Density")

# Rows that are encoded to see how large they are.
WEIGHED = 1000


def refuse_beside_parts(**given: Any) -> None:
    """Refuse what is known of tables in memory only."""
    for name, value in given.items():
        if value is not None:
            raise InvalidInput(
                f"{name} must be None for a table in parts; got {type(value).__name__}. Leave it "
                f"out, or pass a sample of the rows in memory."
            )


def fit_parts(density: D, parts: Partitions, columns: Columns | None) -> D:
    """Fit a density to all rows of a table in parts."""
    drawn = sample(parts, int(density._rng().integers(2**31)))
    drawn.tell(bool(density.verbose))
    described = Columns.infer(drawn.shown) if columns is None else columns
    density.fit_matrix(described.matrix(drawn.table), described, sample_weight=drawn.weight)
    return density if drawn.whole else go_on(density, drawn)


def go_on(density: D, drawn: Sample, sentinel: Floats | None = None) -> D:
    """EM goes on with all rows of a table in parts; ``sentinel`` is what a model takes for NaN."""
    parts = drawn.parts
    holes = Evidence(np.full((WEIGHED, len(density.columns_.variables)), np.nan))
    some = density.encoded(density.extended(holes, None), np.ones(WEIGHED))
    size = drawn.total * len(pickle.dumps(some)) / WEIGHED
    rows = parts.made(encode, density, sentinel, size=size)
    training = density._training(density._rng())
    parameters, step = density.going_on(rows)
    with threadpool_limits(1, "blas"):  # ours are around it
        run = train(step, parameters, density.strength_, drawn.total_weight, training)
    density._adopt(run)
    density._warn_of_early_stop()
    return density


def encode(part: Partition, density: Density, sentinel: Floats | None) -> Any:
    """The rows of a part as EM takes them; None where there are none."""
    table = part[1]
    if not len(table):
        return None
    columns = density.columns_
    matrix = columns.matrix(table)
    if sentinel is not None:
        matrix = with_nan(matrix, sentinel, columns)
    return density.encoded(density.extended(columns.evidence(matrix), None), weights_of(part))
