"""EM for mixtures of products, on the likelihood of what was observed: steps and starts.

The component is the innermost index of all arrays: it vectorises. Results have the same bits for
any number of threads: blocks of rows are the same, and their sums are added in their order. See
:mod:`knothole.densities.univariate.packed` for the arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from knothole._core import mixture as kernels
from knothole.arrays import Floats
from knothole.columns.columns import Kind, Variable
from knothole.densities.em import EncodedRows, Expected
from knothole.densities.univariate.base import Univariate, log_of, log_prior_of, maximised
from knothole.densities.univariate.packed import Packed, Stacked
from knothole.threads import over_chunks, summed

# The least rows of a block, and the most blocks: each has statistics of its own.
BLOCKS = (4096, 64)
# Rows scored at once.
SCORED = 1024


@dataclass(frozen=True, eq=False)
class ProductMixture:
    """Weights (components,), and a distribution for each variable given a component."""

    weight: Floats
    distributions: tuple[Univariate, ...]

    def __len__(self) -> int:
        return len(self.weight)

    def expect(self, rows: EncodedRows) -> Expected:
        """The E step; ``latents`` are the components' total shares."""
        packed, weight = rows.packed, rows.weight
        form = packed.parameters(self.distributions)
        prior = log_of(self.weight), self.weight

        def work(start: int, stop: int) -> tuple[float, Floats, Stacked]:
            total, sums = np.zeros(len(self)), packed.nothing(len(self))
            values = packed.values(start, stop)
            likelihood = kernels.expect(values, weight[start:stop], form, *prior, total, sums)
            return likelihood, total, sums

        likelihood, total, sums = summed(work, len(packed), BLOCKS)
        statistics = tuple(packed.statistics(self.distributions, sums))
        return Expected(likelihood, (total,), statistics)

    def stepped(self, expected: Expected, strength: float) -> tuple[float, ProductMixture]:
        """The objective, and the mixture after the M step."""
        objective = expected.log_likelihood + self.log_prior(strength)
        return objective, self.maximised(expected, strength)

    def maximised(self, expected: Expected, strength: float) -> ProductMixture:
        """The M step: maximum a posteriori given expected statistics.

        Weights have a Dirichlet prior of ``strength`` rows, the same for each component.
        """
        counts = expected.latents[0] + strength / len(self)
        distributions = maximised(self.distributions, expected.distributions, strength)
        return ProductMixture(counts / counts.sum(), distributions)

    def log_prior(self, strength: float) -> float:
        """Log prior density of all parameters, up to a constant."""
        if strength == 0:
            return 0.0
        of_weights = strength * float(np.log(self.weight).mean())
        return of_weights + log_prior_of(self.distributions, strength)

    def log_density(self, rows: EncodedRows) -> Floats:
        """Log p of each row."""
        return self.score(rows.packed)

    def responsibilities(self, packed: Packed) -> tuple[Floats, Floats]:
        """Log p of each row, and its responsibilities (rows, components).

        A row that no component can have has log p = -inf and the components' weights for them.
        """
        joint = np.empty((len(packed), len(self)))
        return self.score(packed, joint=joint), joint

    def score(
        self, packed: Packed, log_region: Floats | float = 0.0, joint: Floats | None = None
    ) -> Floats:
        """Log p of each row; responsibilities go to ``joint`` where it is given.

        ``log_region`` (components,) is added to the log density of every row.
        """
        form = packed.parameters(self.distributions)
        log_prior = log_of(self.weight) + log_region
        log_p = np.empty(len(packed))

        def work(start: int, stop: int) -> None:
            part = np.empty((stop - start, len(self))) if joint is None else joint[start:stop]
            values = packed.values(start, stop)
            kernels.score(values, form, log_prior, self.weight, part, log_p[start:stop])

        over_chunks(work, len(packed), SCORED)
        return log_p


# Bound of a standardised value, so that one outlier does not decide.
CLIP = 3.0


def comparable(points: Floats, variables: Sequence[Variable]) -> Floats:
    """Values on one scale: numbers standardised and clipped, categories as they are.

    "Not recorded" becomes a number outside of the clipped range.
    """
    out = points.copy()
    for v, variable in enumerate(variables):
        if variable.kind is Kind.CATEGORICAL:
            continue
        finite = np.isfinite(out[:, v])
        x = out[finite, v]
        if len(x):
            unit = np.abs(x).max() or 1.0
            x = x / unit
            sd = x.std()
            x = (x - x.mean()) / (sd if sd > 0 else 1.0)
        out[finite, v] = np.clip(x, -CLIP, CLIP)
        out[np.isposinf(out[:, v]), v] = 2 * CLIP
    return out


def start(
    rows: EncodedRows,
    nearest: NDArray[np.int64],
    distributions: Sequence[Univariate],
    n_components: int,
    strength: float,
) -> ProductMixture:
    """Components fitted to the rows ``nearest`` to each of so many seeds.

    ``distributions`` have one state.
    """
    alike = tuple(one.take(np.zeros(n_components, dtype=np.int64)) for one in distributions)
    even = ProductMixture(np.full(n_components, 1 / n_components), alike)
    share = np.zeros((len(rows), n_components))
    share[np.arange(len(rows)), nearest] = rows.weight
    sums = rows.packed.nothing(n_components)
    kernels.gather(rows.packed.values(), share, sums)
    statistics = tuple(rows.packed.statistics(alike, sums))
    # A seed has few rows: half a row of prior at the least.
    return even.maximised(Expected(np.nan, (share.sum(axis=0),), statistics), max(strength, 0.5))


def assign(
    value: Floats,
    category: NDArray[np.bool_],
    weight: Floats,
    n_components: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Number of the nearest seed of each row; a seed is drawn by squared distance to the others."""
    rows = len(value)
    distance = np.full(rows, np.inf)
    nearest = np.zeros(rows, dtype=np.int64)
    chance = weight
    for k in range(n_components):
        total = chance.sum()
        seed = rng.choice(rows, p=chance / total) if total > 0 else rng.integers(rows)
        kernels.nearer(value, category, value[seed], k, distance, nearest)
        chance = weight * distance
    return nearest
