"""EM for mixtures of products, on the likelihood of what was observed.

The objective is the weighted log likelihood plus the log prior of all parameters. A step never
lowers it. Results have the same bits for any number of threads: blocks of rows are the same, and
what they found is merged in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from knothole.arrays import Floats
from knothole.compiled.threads import over_chunks
from knothole.densities.emissions.base import Emission, Statistics
from knothole.densities.emissions.packed import Packed
from knothole.densities.emissions.table import log_of
from knothole.densities.mixture.kernels import expect, join, normalise

# Rows whose shares are in the cache together.
TILE = 128
# Rows of a block, and the most blocks: each has statistics of its own.
BLOCK = 4096
MAX_BLOCKS = 64
# Rows scored at once.
SCORED = 1024
# Steps without a better held-out score before training stops.
PATIENCE = 3


@dataclass(frozen=True, eq=False)
class Components:
    """A mixture of products: weights (components,), and an emission for each variable."""

    weight: Floats
    emissions: tuple[Emission, ...]

    def __len__(self) -> int:
        return len(self.weight)

    def maximised(self, expected: Expected, strength: float) -> Components:
        """The next step of EM: maximum a posteriori given expected statistics.

        Weights have a Dirichlet prior of ``strength`` rows, the same for each component.
        """
        counts = expected.total + strength / len(self)
        emissions = zip(self.emissions, expected.statistics, strict=True)
        return Components(
            counts / counts.sum(),
            tuple(emission.maximise(statistics, strength) for emission, statistics in emissions),
        )

    def log_prior(self, strength: float) -> float:
        """Log prior density of all parameters, up to a constant."""
        if strength == 0:
            return 0.0
        of_weights = strength * float(np.log(self.weight).mean())
        return of_weights + sum(emission.log_prior(strength) for emission in self.emissions)


@dataclass(frozen=True, eq=False)
class Expected:
    """What a pass over the rows finds: log likelihood, and statistics."""

    log_likelihood: float
    total: Floats
    statistics: list[Statistics]


def expected(packed: Packed, weight: Floats, components: Components) -> Expected:
    """A pass over all rows."""
    table, linear, square = packed.parameters(components.emissions)
    prior, log_prior = components.weight, log_of(components.weight)
    n_states = len(components)

    def work(start: int, stop: int) -> tuple[float, tuple[Floats, ...]]:
        joint = np.empty((TILE, n_states))
        found = (np.zeros(n_states), *(np.zeros_like(a) for a in (table, linear, square)))
        scratch = (joint, joint.view(np.int64), np.empty(TILE))
        likelihood = expect(
            packed.code[start:stop], packed.z[start:stop], packed.base[start:stop], packed.slot,
            weight[start:stop], table, linear, square, log_prior, prior, scratch, found,
        )  # fmt: skip
        return likelihood, found

    block = max(BLOCK, -(-len(packed) // MAX_BLOCKS))
    parts = over_chunks(work, len(packed), block)
    total, count, first, second = (sum(part[1][i] for part in parts) for i in range(4))
    statistics = packed.statistics(components.emissions, count, first, second)
    return Expected(sum(part[0] for part in parts), total, statistics)


def shares(
    packed: Packed, components: Components, log_region: Floats | float = 0.0
) -> tuple[Floats, Floats]:
    """Log p of each row, and its responsibilities (rows, components).

    ``log_region`` (components,) is added to the log density of every row. A row that no component
    can have has log p = -inf and the components' weights for responsibilities.
    """
    joint = np.empty((len(packed), len(components)))
    return _score(packed, components, log_region, joint), joint


def log_densities(
    packed: Packed, components: Components, log_region: Floats | float = 0.0
) -> Floats:
    """Log p of each row; see :func:`shares`."""
    return _score(packed, components, log_region, None)


def _score(
    packed: Packed, components: Components, log_region: Floats | float, joint: Floats | None
) -> Floats:
    """Log p of each row; responsibilities go to ``joint`` where it is given."""
    table, linear, square = packed.parameters(components.emissions)
    log_prior = log_of(components.weight) + log_region
    log_p = np.empty(len(packed))

    def work(start: int, stop: int) -> None:
        part = np.empty((stop - start, len(components))) if joint is None else joint[start:stop]
        join(packed.code[start:stop], packed.z[start:stop], packed.slot, table, linear, square,
             log_prior, part)  # fmt: skip
        normalise(packed.base[start:stop], components.weight, part, part.view(np.int64),
                  log_p[start:stop])  # fmt: skip

    over_chunks(work, len(packed), SCORED)
    return log_p


@dataclass(frozen=True, eq=False)
class Run:
    """What training came to.

    ``objective`` has the objective before each step; ``steps`` is how many of them the components
    have behind them (fewer, where later ones had a worse held-out score).
    """

    components: Components
    objective: Floats
    steps: int
    converged: bool


def train(
    packed: Packed,
    weight: Floats,
    components: Components,
    strength: float,
    max_iter: int,
    tol: float,
    score: Callable[[Components], float] | None = None,
) -> Run:
    """EM until a step gains less than ``tol`` per row, or ``score`` has stopped rising.

    With ``score`` (a held-out one), the components that had the best are kept.
    """
    trace: list[float] = []
    kept, steps, best, worse = components, 0, -np.inf, 0
    rows = float(weight.sum())
    converged = False
    for step in range(1, max_iter + 1):
        found = expected(packed, weight, components)
        trace.append(found.log_likelihood + components.log_prior(strength))
        if len(trace) > 1 and trace[-1] - trace[-2] < tol * rows:
            converged = True
            break
        components = components.maximised(found, strength)
        now = np.inf if score is None else score(components)
        if now > best or score is None:
            kept, steps, best, worse = components, step, now, 0
        else:
            worse += 1
            if worse == PATIENCE:
                converged = True
                break
    return Run(kept, np.array(trace), steps, converged)
