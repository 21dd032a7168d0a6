"""EM for mixtures of products, on the likelihood of what was observed.

Results have the same bits for any number of threads: blocks of rows are the same, and what they
found is merged in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from knothole.arrays import Floats
from knothole.compiled.threads import over_chunks, summed
from knothole.densities.mixture.kernels import expect, gather, join, normalise, room_for
from knothole.densities.rows import EncodedRows
from knothole.densities.univariate.base import Emission, Statistics, maximised
from knothole.densities.univariate.packed import Packed, Stacked
from knothole.densities.univariate.table import log_of

# Rows whose shares are in the cache together.
TILE = 128
# The least rows of a block, and the most blocks: each has statistics of its own.
BLOCKS = (4096, 64)
# Rows scored at once.
SCORED = 1024


@dataclass(frozen=True, eq=False)
class ProductMixture:
    """Weights (components,), and an emission for each variable, which are independent given one."""

    weight: Floats
    emissions: tuple[Emission, ...]

    def __len__(self) -> int:
        return len(self.weight)

    def maximised(self, expected: MixtureStatistics, strength: float) -> ProductMixture:
        """The next step of EM: maximum a posteriori given expected statistics.

        Weights have a Dirichlet prior of ``strength`` rows, the same for each component.
        """
        counts = expected.total + strength / len(self)
        emissions = maximised(self.emissions, expected.statistics, strength)
        return ProductMixture(counts / counts.sum(), emissions)

    def log_prior(self, strength: float) -> float:
        """Log prior density of all parameters, up to a constant."""
        if strength == 0:
            return 0.0
        of_weights = strength * float(np.log(self.weight).mean())
        return of_weights + sum(emission.log_prior(strength) for emission in self.emissions)


@dataclass(frozen=True, eq=False)
class MixtureStatistics:
    """What a pass over the rows finds: log likelihood, and statistics. Additive over rows."""

    log_likelihood: float
    total: Floats
    statistics: tuple[Statistics, ...]


def step(
    rows: EncodedRows, mixture: ProductMixture, strength: float
) -> tuple[float, ProductMixture]:
    """One step of EM: the objective before it, and the mixture after it."""
    return stepped(mixture, expected(rows, mixture), strength)


def stepped(
    mixture: ProductMixture, found: MixtureStatistics, strength: float
) -> tuple[float, ProductMixture]:
    """The objective, and the mixture after a step, from what a pass over all rows has found."""
    objective = found.log_likelihood + mixture.log_prior(strength)
    return objective, mixture.maximised(found, strength)


def expected(rows: EncodedRows, mixture: ProductMixture) -> MixtureStatistics:
    """A pass over some rows."""
    packed, weight = rows.packed, rows.weight
    form = packed.parameters(mixture.emissions)
    prior, log_prior = mixture.weight, log_of(mixture.weight)
    n_states = len(mixture)

    def work(start: int, stop: int) -> tuple[float, Floats, Stacked]:
        total, sums = np.zeros(n_states), packed.nothing(n_states)
        scratch = (room_for(np.empty((TILE, n_states))), np.empty(TILE))
        values = packed.values(start, stop)
        likelihood = expect(
            values, weight[start:stop], form, (log_prior, prior), scratch, total, sums
        )
        return likelihood, total, sums

    likelihood, total, sums = summed(work, len(packed), BLOCKS)
    statistics = tuple(packed.statistics(mixture.emissions, sums))
    return MixtureStatistics(likelihood, total, statistics)


def emission_statistics(
    packed: Packed, emissions: Sequence[Emission], share: Floats
) -> tuple[Statistics, ...]:
    """Statistics of each emission, from the rows' shares (rows, states)."""
    sums = packed.nothing(share.shape[1])
    gather(packed.values(), share, sums)
    return tuple(packed.statistics(emissions, sums))


def shares(packed: Packed, mixture: ProductMixture) -> tuple[Floats, Floats]:
    """Log p of each row, and its responsibilities (rows, components).

    A row that no component can have has log p = -inf and the components' weights for them.
    """
    joint = np.empty((len(packed), len(mixture)))
    return _score(packed, mixture, 0.0, joint), joint


def log_densities(
    packed: Packed, mixture: ProductMixture, log_region: Floats | float = 0.0
) -> Floats:
    """Log p of each row; ``log_region`` (components,) is added to the log density of every row."""
    return _score(packed, mixture, log_region, None)


def _score(
    packed: Packed, mixture: ProductMixture, log_region: Floats | float, joint: Floats | None
) -> Floats:
    """Log p of each row; responsibilities go to ``joint`` where it is given."""
    form = packed.parameters(mixture.emissions)
    log_prior = log_of(mixture.weight) + log_region
    log_p = np.empty(len(packed))

    def work(start: int, stop: int) -> None:
        part = np.empty((stop - start, len(mixture))) if joint is None else joint[start:stop]
        values = packed.values(start, stop)
        join(values, form, log_prior, part)
        normalise(values.base, mixture.weight, room_for(part), log_p[start:stop])

    over_chunks(work, len(packed), SCORED)
    return log_p
