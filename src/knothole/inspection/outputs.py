"""A model's outputs for incomplete rows, from few draws, for conformal prediction.

Conformal prediction needs outputs of many rows and little precision for each: calibration rows are
treated like the new row, and that is all its guarantee rests on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from knothole.arrays import Floats
from knothole.columns.evidence import Evidence
from knothole.expectation.expectation import Expectation
from knothole.trees.classes import probabilities


class Outputs(NamedTuple):
    """Centre and half width of the model's own interval, and the spread due to missing values."""

    centre: Floats
    half: Floats
    spread: Floats

    @classmethod
    def of(cls, expectation: Expectation, points: Floats, threads: int | None) -> Outputs:
        """Outputs for points of the columns' variables.

        Several outputs are quantiles: the lowest and the highest are the model's own interval.
        """
        evidence = evidence_of(expectation, points)
        mean, _ = expectation.rough.predict(evidence, threads=threads)
        spread = expectation.rough.std(evidence, threads=threads)[0].mean(axis=1)
        low, high = mean.min(axis=1), mean.max(axis=1)
        return cls((low + high) / 2, (high - low) / 2, spread)


def chances(expectation: Expectation, points: Floats, threads: int | None) -> Floats:
    """Probabilities of a classifier's classes (rows, classes), for points as above."""
    mean, _ = expectation.rough.predict(evidence_of(expectation, points), threads=threads)
    (found,) = probabilities(expectation.original, mean)
    return found


def evidence_of(expectation: Expectation, points: Floats) -> Evidence:
    """Evidence for points of the columns' variables, NaN where a value is missing."""
    density = expectation.density
    evidence = density.extended(Evidence(np.ascontiguousarray(points)), None)
    return expectation.reading.read(density, evidence, expectation.columns.variables)
