"""The learner of mixtures of products, and the choice of families for continuous variables."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from knothole.arrays import Floats
from knothole.columns.columns import Kind
from knothole.densities.em import Run, Training
from knothole.densities.learner import (
    SHORT,
    STRENGTH,
    EmissionLearner,
    MixtureLearner,
    continuous_families,
)
from knothole.densities.mixture.em import ProductMixture, log_densities, step
from knothole.densities.mixture.start import assign, comparable, start
from knothole.densities.rows import FIRST_ROWS, EncodedRows, WeightedRows
from knothole.densities.search import split

# A component needs so many complete rows on average, or as many pairs of values, to be tried.
ROWS_PER_COMPONENT = 5
MAX_COMPONENTS = 128
# With more rows than this for each component, the strength makes no difference.
MANY_ROWS = 1000
# Families are compared with a component for so many rows, at most so many components, on this
# part of the rows, if there are enough; another than Gaussians must gain this much per column.
COMPARED_ROWS = 100
COMPARED_WITH = 32
COMPARED_ON = 0.25
TOO_FEW_TO_COMPARE = 300
COMPARED_GAIN = 0.01


class ProductLearner(EmissionLearner, MixtureLearner):
    """Trains mixtures of products."""

    look: Floats

    @classmethod
    def look_at(cls, rows: WeightedRows) -> Floats:
        """The first rows on one scale, to find starts that are apart."""
        return comparable(rows[:FIRST_ROWS].points(), rows.variables)

    def few_rows_for(self, size: int) -> bool:
        """Whether rows are so few that the strength of the prior makes a difference."""
        return len(self.rows) < MANY_ROWS * size

    def prior(self, strength: float) -> float:
        """The strength is all there is to say."""
        return strength

    def start(self, size: int, prior: float, number: int) -> ProductMixture:
        """Components around rows that are far from each other."""
        rng = np.random.default_rng([self.training.seed, size, number])
        category = [v.kind is Kind.CATEGORICAL for v in self.rows.variables]
        value, weight = self.look[: len(self.rows)], self.encoded.weight
        nearest = assign(value, np.array(category, dtype=np.bool_), weight, size, rng)
        return start(self.encoded, nearest, self.emissions, size, prior)

    def step(self, mixture: ProductMixture, prior: float) -> tuple[float, ProductMixture]:
        """The objective, and the mixture after a step."""
        return step(self.encoded, mixture, prior)

    def log_densities(self, parameters: ProductMixture, rows: EncodedRows) -> Floats:
        """Log p of encoded rows."""
        return log_densities(rows.packed, parameters)

    def fit(self, size: int, strength: float | None, held: Any = None) -> Run[ProductMixture]:
        """The best of several starts; a single component goes to its only maximum."""
        return self.fit_one(strength) if size == 1 else super().fit(size, strength, held)


def sizes_for(rows: WeightedRows) -> list[int]:
    """1, 2, 4, ... as far as there are rows and memory for them.

    Components are learned from what variables say together, so a row counts by the part of the
    pairs of its variables that it has.
    """
    points = rows.evidence.points
    known = points.shape[1] - np.isnan(points).sum(axis=1)[rows.order]
    pairs = max(1, points.shape[1] * (points.shape[1] - 1))
    worth = float((known * (known - 1)).sum()) / pairs
    sizes = [1]
    while 2 * sizes[-1] <= min(MAX_COMPONENTS, worth / ROWS_PER_COMPONENT):
        sizes.append(2 * sizes[-1])
    return rows.affordable(sizes)


def choose_families(
    rows: WeightedRows, training: Training, named: Mapping[str, str]
) -> dict[str, str]:
    """Families of the continuous variables, by held-out log p.

    A Gaussian follows neighbouring columns closely, a histogram follows the shape of its own:
    which one counts depends on all columns together. So a small mixture is trained with each,
    and with whichever fits each column alone. Densities that are compared with one another all
    learn from the same rows: the last choice is remembered.
    """
    rows = rows[:FIRST_ROWS]
    asked = _digest(rows, training, named)
    chosen = _last_choice.get(asked)
    if chosen is None:
        chosen = _compared(rows, training, named)
        _last_choice.clear()
        _last_choice[asked] = chosen
    return dict(chosen)


_last_choice: dict[bytes, dict[str, str]] = {}


def _digest(rows: WeightedRows, training: Training, named: Mapping[str, str]) -> bytes:
    """All that families are chosen by."""
    found = rows.evidence[rows.order]
    how = training.tol, training.fraction, training.may_mask, training.seed
    variables = [
        (v.name, v.kind.name, len(v.levels), v.columns, v.nullable) for v in rows.variables
    ]
    said = hashlib.sha256(repr((variables, how, sorted(named.items()))).encode())
    for array in (found.points, rows.own_weight(), found.allowed):
        said.update(b"" if array is None else array.tobytes())
    return said.digest()


def _compared(rows: WeightedRows, training: Training, named: Mapping[str, str]) -> dict[str, str]:
    options = [continuous_families(rows, family) for family in ("gaussian", "histogram", None)]
    options = [{n: family for n, family in option.items() if n not in named} for option in options]
    distinct = [option for i, option in enumerate(options) if option not in options[:i]]
    if len(distinct) == 1 or len(rows) < TOO_FEW_TO_COMPARE:
        return distinct[0]
    size = max(2, min(COMPARED_WITH, len(rows) // COMPARED_ROWS))
    size = rows.affordable([2, size])[-1]
    quick = replace(training, n_init=1, max_iter=SHORT)
    scores = []
    for option in distinct:
        learner = ProductLearner.of(rows, quick, named, option)
        run, _, _ = split(learner, COMPARED_ON).attempt(size, STRENGTH)
        scores.append(run.held_out)
        training.report(f"{sorted(set(option.values()))}: held-out log p {scores[-1]:.4f}")
    # More components, as there may be in the end, help Gaussians more: others must be better.
    for number in range(1, len(scores)):
        scores[number] -= COMPARED_GAIN * len(distinct[0])
    return distinct[int(np.argmax(scores))]
