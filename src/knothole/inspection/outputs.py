"""What a model says of rows some of whose values are missing, at the cost of few draws.

Conformal prediction asks for many rows and needs little of each: whatever is said of a row, the
same is said of calibration rows, and that is all its promise rests on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from knothole.arrays import Floats
from knothole.columns.evidence import Evidence
from knothole.expectation.expectation import Expectation
from knothole.trees.classes import probabilities


class Outputs(NamedTuple):
    """Centre and half width of a model's own interval, and the spread that missing values cause."""

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
    """Probabilities of a classifier's classes (rows, classes), for points likewise."""
    mean, _ = expectation.rough.predict(evidence_of(expectation, points), threads=threads)
    (found,) = probabilities(expectation.original, mean)
    return found


def evidence_of(expectation: Expectation, points: Floats) -> Evidence:
    """What points of the columns' variables say, NaN where a value is missing."""
    density = expectation.density
    evidence = density.extended(Evidence(np.ascontiguousarray(points)), None)
    return expectation.reading.read(density, evidence, expectation.columns.variables)
