"""EM for mixtures of Gaussians and discrete distributions, straight on rows with missing values.

The objective is the log likelihood of what was observed (where values repeat, its lower bound:
see :mod:`~knothole.densities.gaussian.normal_scores`) plus a log prior: normal-inverse-Wishart
components and Dirichlet weights, in the form of ``strength`` rows a component that have the mean
and the variances of the whole table and no correlation. It never falls from one step to the next
(Ghahramani and Jordan, 1994). Results have the same bits for any number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole._core import gaussian_em as core
from knothole._core import mixture as mixture_core
from knothole.arrays import Floats, aligned
from knothole.cached import cached_property
from knothole.densities.em import Expected
from knothole.densities.gaussian.kernels import PackedComponents, invert, pack
from knothole.densities.univariate import packed
from knothole.densities.univariate.base import (
    Statistics,
    Univariate,
    log_prior_of,
    log_sum_exp,
    maximised,
)
from knothole.densities.univariate.packed import Stacked
from knothole.threads import over_chunks, summed

# The least variance of the prior's rows, for columns that do not vary.
LEAST_VARIANCE = 1e-3
# The least weight of the prior, in rows: keeps EM away from singular solutions.
LEAST_STRENGTH = 1e-4
# Rows' worth of prior on each mean (at 0, the mean of all scores) and each weight.
ANCHOR = 1e-2
# The part of the table's correlations that the prior of a component has.
CORRELATED = 0.9
# Steps of factor analysis in a step of EM, and its least noise, as a part of the variance.
FACTOR_STEPS = 3
LEAST_NOISE = 1e-6
# The least rows of a block, and the most blocks: each has sums of its own.
BLOCKS = (1024, 16)
# Numbers of residuals that are worked on at once: few enough to stay near the processor.
AT_ONCE = 2**17
# A single component with more variables is evaluated by LAPACK, in chunks of so many rows. Where
# 30 % of the values are missing, that takes 0.27 of the kernel's time with 500 variables, 0.76 with
# 200 and 2.1 with 100.
MANY_VARIABLES, CHUNK = 200, 32


@dataclass(frozen=True, eq=False)
class ScoreRows:
    """Normal scores of rows, and their discrete variables.

    Attributes
    ----------
    z : float64 (rows, d)
        Scores of the numeric variables, NaN at missing values.
    variance : float64 (rows, d), or (rows, 0)
        Their own variances, 0 at missing values; nothing where no score has one.
    base : float64 (rows,)
        Log base measures of the scores of a row, together.
    repeats : bool (d,)
        Columns whose scores have variances at all.
    discrete : packed.Packed or None
        The discrete variables, where there are any.
    weight : float64 (rows,)
    """

    z: Floats
    variance: Floats
    base: Floats
    repeats: NDArray[np.bool_]
    discrete: packed.Packed | None
    weight: Floats

    def __len__(self) -> int:
        return len(self.z)

    def __getitem__(self, rows: Any) -> ScoreRows:
        return replace(
            self,
            z=self.z[rows],
            variance=self.variance[rows],
            base=self.base[rows],
            discrete=None if self.discrete is None else self.discrete[rows],
            weight=self.weight[rows],
        )

    def by_pattern(self) -> ScoreRows:
        """The same rows, equal patterns of missing values side by side."""
        missing = np.packbits(np.isnan(self.z), axis=1)
        side_by_side = (missing == missing[:1]).all()
        return self if side_by_side else self[np.lexsort(missing.T)]

    def spread(self, weight: Floats) -> Floats:
        """Sums of the scores' own variances, times some weights of the rows, (d,)."""
        if not self.variance.shape[1]:
            return np.zeros(self.z.shape[1])
        return np.asarray(weight @ self.variance)


@dataclass(frozen=True, eq=False)
class GaussianComponents:
    """Parameters of the mixture.

    Attributes
    ----------
    weight : float64 (k,)
    mean : float64 (k, d)
    covariance : float64 (k, d, d)
    discrete : tuple of Univariate
        Distributions of the discrete variables.
    loading : float64 (k, d, rank) or None
        Of a low-rank covariance: ``loading @ loading.T`` plus a diagonal.
    """

    weight: Floats
    mean: Floats
    covariance: Floats
    discrete: tuple[Univariate, ...] = ()
    loading: Floats | None = None

    def __len__(self) -> int:
        return len(self.weight)

    def take(self, which: Sequence[int]) -> GaussianComponents:
        """Some of the components, with weights that sum to 1."""
        at = np.asarray(which)
        return GaussianComponents(
            self.weight[at] / self.weight[at].sum(),
            self.mean[at],
            self.covariance[at],
            tuple(one.take(at) for one in self.discrete),
            None if self.loading is None else self.loading[at],
        )

    @cached_property
    def inverse(self) -> tuple[Floats, Floats]:
        """Inverses (k, d, d) and log determinants (k,) of the covariances."""
        return invert(self.covariance)

    def packed(self) -> PackedComponents:
        """The Gaussian part as kernels take it."""
        return pack(self.weight, self.mean, *self.inverse)

    def discrete_terms(self, rows: ScoreRows) -> Floats:
        """Log p of the discrete variables in each component, (rows, k)."""
        out = np.zeros((len(rows), len(self)))
        packed = rows.discrete
        if packed is not None and self.discrete:
            form = packed.parameters(self.discrete)
            mixture_core.join(packed.values(), form, np.zeros(len(self)), out)
        return out

    def sharpness(self, repeats: NDArray[np.bool_]) -> Floats:
        """1 / variance of each variable given the others that repeat values, (d, k).

        0 for variables that do not.
        """
        at = np.flatnonzero(repeats)
        out = np.zeros((self.mean.shape[1], len(self)))
        block, _ = invert(self.covariance[:, at[:, None], at])
        out[at] = np.einsum("kii->ik", block)
        return out

    def log_joint(self, rows: ScoreRows) -> Floats:
        """Log (weight p) of what is known of each row, in each component, (rows, k)."""
        packed = self.packed()
        sharpness = self.sharpness(rows.repeats)
        out = self.discrete_terms(rows)

        def work(start: int, stop: int) -> None:
            part = slice(start, stop)
            core.log_joint(rows.z[part], rows.variance[part], packed, sharpness, out[part])

        over_chunks(work, len(rows), BLOCKS[0])
        out += rows.base[:, None]
        return out

    def expect(self, rows: ScoreRows) -> Expected:
        """The E step; ``latents`` are responsibilities, residuals and their products."""
        return self.pass_over(rows)

    def responsibilities(self, rows: ScoreRows) -> Floats:
        """The share of each row, times its weight, that components have, (rows, k)."""
        kept = np.empty(len(rows)), np.empty((len(rows), len(self)))
        self.pass_over(rows, kept)
        return kept[1]

    def pass_over(self, rows: ScoreRows, kept: tuple[Floats, Floats] | None = None) -> Expected:
        """A pass over rows, a few at once; log p and shares of each go to ``kept``."""
        packed, discrete = self.packed(), rows.discrete if self.discrete else None
        k, d = self.mean.shape
        size = max(1, min(len(rows), AT_ONCE // max(1, k * d)))
        repeats = np.flatnonzero(rows.repeats)

        def work(start: int, stop: int) -> tuple[float, tuple[Floats, ...], tuple[Floats, ...]]:
            total, spread = 0.0, aligned(*packed.blocks.shape)
            count, first, second = np.zeros(k), np.zeros((k, d)), np.zeros((k, d, d))
            of_codes = () if discrete is None else discrete.nothing(k)
            memory, log_density = np.empty((2, size, k, d)), np.empty(size)
            filled = np.empty(k, dtype=np.int64)
            for begin in range(start, stop, size):
                part = slice(begin, min(begin + size, stop))
                some = rows[part]
                joint, log_p = self.discrete_terms(some), log_density[: len(some)]
                residual, product = memory[:, : len(some)]
                core.residuals(some.z, self.mean, residual)
                # Of each component; products by BLAS, which has one thread to itself.
                of_each, times = residual.transpose(1, 0, 2), product.transpose(1, 0, 2)
                np.matmul(of_each, self.inverse[0], out=times)
                core.expectations(
                    some.z, some.variance, some.weight, repeats, packed,
                    residual, product, joint, log_p, first, spread, filled,
                )  # fmt: skip
                count += joint.sum(axis=0)
                for c, n in enumerate(filled.tolist()):
                    second[c] += times[c, :n].T @ of_each[c, :n]
                log_p += some.base
                total += float((some.weight * log_p).sum())
                if some.discrete is not None and discrete is not None:
                    mixture_core.gather(some.discrete.values(), joint, of_codes)
                if kept is not None:
                    kept[0][part], kept[1][part] = log_p, joint
            own = np.moveaxis(spread[..., :k], -1, 0)
            second += own + np.tril(own, -1).transpose(0, 2, 1)
            return total, (count, first, second), of_codes

        total, sums, of_codes = summed(work, len(rows), BLOCKS)
        statistics: tuple[Statistics, ...] = ()
        if discrete is not None:
            statistics = tuple(discrete.statistics(self.discrete, Stacked(*of_codes)))
        return Expected(total, sums, statistics)

    def stepped(self, expected: Expected, prior: Prior) -> tuple[float, GaussianComponents]:
        """The objective, and the components after the M step."""
        objective = expected.log_likelihood + prior.log_density(self)
        return objective, self.maximised(expected, prior)

    def maximised(self, expected: Expected, prior: Prior) -> GaussianComponents:
        """The M step: maximum a posteriori given expected statistics."""
        counts, first, second = expected.latents
        count = counts[:, None, None]
        weight = counts + ANCHOR
        mean = (counts[:, None] * self.mean + first) / weight[:, None]
        moved = mean - self.mean
        cross = first[:, :, None] * moved[:, None, :]
        scatter = second - cross - cross.transpose(0, 2, 1)
        scatter = scatter + count * moved[:, :, None] * moved[:, None, :]
        scatter += ANCHOR * mean[:, :, None] * mean[:, None, :]
        if prior.tied:
            pooled = scatter.sum(axis=0) + prior.strength * prior.covariance
            covariance = np.broadcast_to(pooled / (counts.sum() + prior.strength), scatter.shape)
        else:
            scatter += prior.strength * prior.covariance
            covariance = scatter / (count + prior.strength)
        covariance = (covariance + covariance.transpose(0, 2, 1)) / 2
        loading = self.loading
        if loading is not None:
            covariance, loading = low_rank(covariance, self.covariance, loading)
        return replace(
            self,
            weight=weight / weight.sum(),
            mean=mean,
            covariance=covariance,
            loading=loading,
            discrete=maximised(self.discrete, expected.distributions, prior.strength),
        )

    def log_density(self, rows: ScoreRows) -> Floats:
        """Log p of what is known of each row."""
        if len(self) == 1 and self.mean.shape[1] > MANY_VARIABLES:
            return self._log_density_of_one(rows)
        return np.asarray(log_sum_exp(self.log_joint(rows), axis=1))

    def _log_density_of_one(self, rows: ScoreRows) -> Floats:
        """The same for a single component, by LAPACK."""
        from scipy.linalg import solve_triangular

        (precision,), log_det = self.inverse
        missing = np.isnan(rows.z)
        residual = np.where(missing, 0.0, rows.z - self.mean)
        product = residual @ precision
        distance = (product * residual).sum(axis=1) + log_det[0]
        distance += (~missing).sum(axis=1) * np.log(2 * np.pi)
        if rows.variance.shape[1]:
            distance += rows.variance @ self.sharpness(rows.repeats)[:, 0]

        def work(start: int, stop: int) -> None:
            for n in range(start, stop):
                at = np.flatnonzero(missing[n])
                root = np.linalg.cholesky(precision[at[:, None], at])
                solved = solve_triangular(root, product[n, at], lower=True, check_finite=False)
                distance[n] += 2 * np.log(np.diag(root)).sum() - solved @ solved

        over_chunks(work, len(rows), CHUNK)
        return np.asarray(rows.base + self.discrete_terms(rows)[:, 0] - 0.5 * distance)


@dataclass(frozen=True, eq=False)
class Prior:
    """What components are drawn towards.

    Attributes
    ----------
    strength : float
        Rows a component.
    covariance : float64 (d, d)
        Of those rows: the table's own, with its correlations shrunk to :data:`CORRELATED` of them.
    tied : bool
        Whether all components share one covariance.
    """

    strength: float
    covariance: Floats
    tied: bool = False

    @classmethod
    def of(cls, rows: ScoreRows, strength: float, tied: bool = False) -> Prior:
        """Centred on the covariance of a table's scores."""
        return cls.from_moments(moments(rows), strength, tied)

    @classmethod
    def from_moments(
        cls, sums: tuple[Floats, Floats, Floats], strength: float, tied: bool = False
    ) -> Prior:
        """The same, from :func:`moments` of all rows.

        Each covariance is that of the rows that know both variables. Together these need not be a
        covariance matrix: where they are not, the correlations are shrunk further.
        """
        weight, first, second = sums
        some = np.maximum(weight, np.finfo(np.float64).tiny)
        covariance = second / some - (first / some) * (first / some).T
        variance = np.diag(covariance)
        known = np.diag(weight) > 0
        sd = np.sqrt(np.where(known, np.maximum(variance, LEAST_VARIANCE), 1.0))
        correlation = CORRELATED * covariance / np.outer(sd, sd)
        np.fill_diagonal(correlation, 0.0)
        least = np.linalg.eigvalsh(correlation)[0] if len(sd) else 0.0
        correlation *= min(1.0, CORRELATED / max(-least, np.finfo(np.float64).tiny))
        np.fill_diagonal(correlation, 1.0)
        return cls(max(strength, LEAST_STRENGTH), correlation * np.outer(sd, sd), tied)

    def log_density(self, components: GaussianComponents) -> float:
        """Log prior of the parameters, up to a constant."""
        total = ANCHOR * float(np.log(components.weight).sum())
        total += log_prior_of(components.discrete, self.strength)
        precision, log_det = components.inverse
        size = log_det + np.einsum("kij,ij->k", precision, self.covariance)
        # GaussianComponents that share a covariance share the prior's rows for it, too.
        total -= 0.5 * self.strength * float(size[0] if self.tied else size.sum())
        mean = components.mean
        return total - 0.5 * ANCHOR * float(np.einsum("ki,kij,kj->", mean, precision, mean))


def moments(rows: ScoreRows) -> tuple[Floats, Floats, Floats]:
    """Weights, sums and products of the scores of each pair of variables, (d, d) each. Additive.

    Of the rows that know both; ``sums[i, j]`` is that of variable i.
    """

    def work(start: int, stop: int) -> tuple[Floats, Floats, Floats]:
        part = rows[start:stop]
        known = (~np.isnan(part.z)).astype(np.float64)
        z = np.where(known > 0, part.z, 0.0)
        weighed = z * part.weight[:, None]
        spread = np.diag(part.spread(part.weight))
        return (known * part.weight[:, None]).T @ known, weighed.T @ known, weighed.T @ z + spread

    return summed(work, len(rows), BLOCKS)


def low_rank(scatter: Floats, before: Floats, loading: Floats) -> tuple[Floats, Floats]:
    """Covariances F F' + diagonal nearer to ``scatter``, and F, from those before.

    Steps of factor analysis, each of which raises the expected log likelihood, which is all that
    EM needs: the best F for the diagonal, by eigenvectors (Lawley), then a step of EM for both.
    """
    d, rank = loading.shape[1:]
    variance = np.einsum("kii->ki", scatter)
    least = LEAST_NOISE * variance
    noise = np.maximum(np.einsum("kii->ki", before) - (loading**2).sum(axis=2), least)
    for _ in range(FACTOR_STEPS):
        sd = np.sqrt(noise)
        size, vector = np.linalg.eigh(scatter / (sd[:, :, None] * sd[:, None, :]))
        stretch = np.sqrt(np.maximum(size[:, -rank:] - 1, 0.0))
        loading = sd[:, :, None] * vector[:, :, -rank:] * stretch[:, None, :]
        scaled = (loading / noise[:, :, None]).transpose(0, 2, 1)
        inner = np.linalg.inv(np.eye(rank) + scaled @ loading)
        gain = inner @ scaled
        crossed = scatter @ gain.transpose(0, 2, 1)
        moment = inner + gain @ crossed
        loading = np.linalg.solve(moment, crossed.transpose(0, 2, 1)).transpose(0, 2, 1)
        noise = np.maximum(variance - (loading * crossed).sum(axis=2), least)
    return loading @ loading.transpose(0, 2, 1) + noise[:, :, None] * np.eye(d), loading
