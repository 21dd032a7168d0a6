"""EM for mixtures of products, on the likelihood of what was observed: kernels, steps, starts.

The component is the innermost index of all arrays: it vectorises. Results have the same bits for
any number of threads: blocks of rows are the same, and their sums are added in their order. See
:mod:`knothole.densities.univariate.packed` for the arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Integers, Ints
from knothole.columns.columns import Kind, Variable
from knothole.compiled.exp import exponentials
from knothole.compiled.policy import njit
from knothole.compiled.threads import over_chunks, summed
from knothole.densities.em import EncodedRows, Expected
from knothole.densities.univariate.base import Univariate, log_of, log_prior_of, maximised
from knothole.densities.univariate.packed import Packed, Stacked, Values


def room_for(joint: Floats) -> tuple[Floats, Ints, Floats, Integers]:
    """Joint densities (rows, components), as they are and seen as int64, and scratch of a row."""
    n_states = joint.shape[1]
    return joint, joint.view(np.int64), np.empty(n_states), np.empty(n_states, np.int32)


@njit
def join(values, form, log_weight, out):  # type: ignore[no-untyped-def]
    """Log of weight times density, (rows, components), but for the base measure."""
    code, z, _, slot = values
    table, linear, square = form
    n_states = table.shape[1]
    for i in range(len(code)):
        joint = out[i]
        for k in range(n_states):
            joint[k] = log_weight[k]
        for v in range(code.shape[1]):
            c = code[i, v]
            if c < 0:
                continue
            row = table[c]
            s = slot[v]
            if s < 0:
                for k in range(n_states):
                    joint[k] += row[k]
            else:
                x = z[i, s]
                by_x = linear[s]
                by_square = square[s]
                for k in range(n_states):
                    joint[k] += row[k] + x * (by_x[k] + x * by_square[k])


@njit
def normalise(base, weight, room, log_p):  # type: ignore[no-untyped-def]
    """Turn log joint densities into shares, in place; ``log_p`` becomes log p of each row.

    There are as many rows as in ``base``. A row that no component can have (log p = -inf) has the
    components' own ``weight`` as shares.
    """
    joint, bits, peak, shift = room
    n_states = joint.shape[1]
    for i in range(len(base)):
        share = joint[i]
        largest = share[0]
        for k in range(n_states):
            largest = max(largest, share[k])
        if largest == -np.inf:
            log_p[i] = -np.inf
            for k in range(n_states):
                share[k] = weight[k]
            continue
        for k in range(n_states):
            peak[k] = largest
        exponentials(share, peak, shift, bits[i], n_states)
        total = 0.0
        for k in range(n_states):
            total += share[k]
        log_p[i] = largest + np.log(total) + base[i]
        for k in range(n_states):
            share[k] /= total


@njit
def gather(values, share, sums):  # type: ignore[no-untyped-def]
    """Add the rows' shares to the statistics: per code, and times z and z**2."""
    code, z, _, slot = values
    count, first, second = sums
    n_states = share.shape[1]
    for v in range(code.shape[1]):
        s = slot[v]
        for i in range(len(code)):
            c = code[i, v]
            if c < 0:
                continue
            of_row = share[i]
            of_code = count[c]
            if s < 0:
                for k in range(n_states):
                    of_code[k] += of_row[k]
            else:
                x = z[i, s]
                square = x * x
                sum_x = first[s]
                sum_square = second[s]
                for k in range(n_states):
                    of_code[k] += of_row[k]
                    sum_x[k] += x * of_row[k]
                    sum_square[k] += square * of_row[k]


@njit
def expect(values, weight, form, priors, scratch, total, sums):  # type: ignore[no-untyped-def]
    """One pass of EM over some rows, as many at a time as there is room for.

    Adds to the shares' totals, and to the statistics of :func:`gather`, all weighted; ``priors``
    are the components' weights, their logarithms first. Returns the weighted sum of log p.
    """
    code, z, base, slot = values
    log_prior, prior = priors
    room, log_p = scratch
    joint, tile = room[0], len(log_p)
    n_states = len(prior)
    log_likelihood = 0.0
    for start in range(0, len(code), tile):
        stop = min(start + tile, len(code))
        width = stop - start
        share = joint[:width]
        part = Values(code[start:stop], z[start:stop], base[start:stop], slot)
        join(part, form, log_prior, share)
        normalise(part.base, prior, room, log_p)
        for i in range(width):
            w = weight[start + i]
            log_likelihood += w * log_p[i]
            for k in range(n_states):
                share[i, k] *= w
                total[k] += share[i, k]
        gather(part, share, sums)
    return log_likelihood


@njit
def pick(share, uniform, out):  # type: ignore[no-untyped-def]
    """Draw components: ``out`` (rows, draws) from shares and uniform numbers.

    The first whose sum with those before it is larger, or the last that is possible at all.
    """
    for i in range(len(share)):
        reached, last = 0.0, 0
        for d in range(uniform.shape[1]):
            out[i, d] = 0
        for k in range(share.shape[1]):
            reached += share[i, k]
            if share[i, k] > 0:
                last = k
            for d in range(uniform.shape[1]):
                out[i, d] += reached <= uniform[i, d]
        for d in range(uniform.shape[1]):
            out[i, d] = min(out[i, d], last)


# Rows whose shares are in the cache together.
TILE = 128
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
        priors = log_of(self.weight), self.weight

        def work(start: int, stop: int) -> tuple[float, Floats, Stacked]:
            total, sums = np.zeros(len(self)), packed.nothing(len(self))
            scratch = (room_for(np.empty((TILE, len(self)))), np.empty(TILE))
            values = packed.values(start, stop)
            likelihood = expect(values, weight[start:stop], form, priors, scratch, total, sums)
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
            join(values, form, log_prior, part)
            normalise(values.base, self.weight, room_for(part), log_p[start:stop])

        over_chunks(work, len(packed), SCORED)
        return log_p


# The squared distance of two different categories, and of two rows that share no variable: what
# two independent standardised numbers have in the mean.
APART = 2.0
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
    gather(rows.packed.values(), share, sums)
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
        nearer(value, category, value[seed], k, distance, nearest)
        chance = weight * distance
    return nearest


@njit
def nearer(value, category, seed, k, distance, nearest):  # type: ignore[no-untyped-def]
    """Assign the rows that are nearer to a new seed than to those before."""
    for i in range(len(value)):
        total, shared = 0.0, 0
        for v in range(len(seed)):
            difference = value[i, v] - seed[v]
            if np.isnan(difference):
                continue
            shared += 1
            if category[v]:
                total += APART if difference != 0 else 0.0
            else:
                total += difference * difference
        mean = total / shared if shared > 0 else APART
        if mean < distance[i]:
            distance[i] = mean
            nearest[i] = k
