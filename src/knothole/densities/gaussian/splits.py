"""Starting points of EM for Gaussian mixtures: a single component that is split repeatedly.

Components started at random rows end in as many maxima as there are starts, and rest on plateaus on
the way. A single component has one maximum. Where it fits badly, two components, one on either side
of the mean of a variable, gain much: the components with the largest gains are split, until there
are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from knothole.arrays import Floats
from knothole.densities.gaussian.em import ANCHOR, GaussianComponents, Prior, ScoreRows

# The most variables to split a component across: those whose values look least like one Gaussian.
MOST_VARIABLES = 64
# The most entries of covariances in memory at once.
AT_ONCE = 2**18
# A component's own rows are those of which it has this share; with fewer than two it splits last.
OWN = 0.02
LEAST_ROWS = 2.0

#: The gain of two components over one on its rows, and the two components.
Split = tuple[float, GaussianComponents]


def grown(
    rows: ScoreRows, mixture: GaussianComponents, size: int, prior: Prior
) -> GaussianComponents:
    """A mixture of this size, from one of at least half the size, by splitting components."""
    share = mixture.responsibilities(rows)
    each = [mixture.take([c]) for c in range(len(mixture))]
    splits = [best_cut(rows, share[:, c], one, prior) for c, one in enumerate(each)]
    for c in sorted(range(len(each)), key=lambda c: -splits[c][0])[: size - len(mixture)]:
        each[c] = splits[c][1]
    return together(each, mixture.weight)


def best_cut(rows: ScoreRows, share: Floats, one: GaussianComponents, prior: Prior) -> Split:
    """The best split of a component at the mean of a variable: its gain and both components.

    It minimises the entropy over all variables,

        sum over the sides of -n (log n - log det(covariance) / 2),

    where missing values count as the mean.
    """
    own_rows = share > OWN * rows.weight
    rows, two = replace(rows[own_rows], weight=share[own_rows]), one.take([0, 0])
    if share.sum() < LEAST_ROWS:
        return -np.inf, two
    residual, own = np.nan_to_num(rows.z - one.mean), prior.strength * prior.covariance

    def sums(weight: Floats) -> tuple[Floats, Floats, Floats]:
        weighed = residual * weight[:, None]
        scatter = weighed.T @ residual + np.diag(rows.spread(weight))
        return weight.sum(), weighed.sum(axis=0), scatter

    def fitted(
        weight: Floats, total: Floats, scatter: Floats
    ) -> tuple[Floats, Floats, Floats, Floats]:
        n = weight + ANCHOR
        mean = total / n[..., None]
        covariance = scatter - total[..., :, None] * mean[..., None, :] + own
        covariance /= (n + prior.strength)[..., None, None]
        gain = n * (np.log(n) - 0.5 * np.linalg.slogdet(covariance)[1])
        return n, mean, covariance, gain

    whole = sums(rows.weight)
    spread = np.sqrt(np.maximum(np.diag(whole[2]) / whole[0], np.finfo(np.float64).tiny))
    two_hills = rows.weight @ np.abs(residual) / whole[0] / spread
    cut = np.sort(np.argsort(-two_hills, kind="stable")[:MOST_VARIABLES])
    best: Split = -np.inf, two
    for some in np.array_split(cut, -(-cut.size * own.size // AT_ONCE)):
        parts = [sums(rows.weight * (residual[:, j] > 0)) for j in some]
        # For each split and both sides: weights (splits, 2), sums (.., d), products (.., d, d).
        sides = (
            np.stack([above, everywhere - above], axis=1)
            for above, everywhere in zip(
                map(np.array, zip(*parts, strict=True)), whole, strict=True
            )
        )
        n, mean, covariance, gains = fitted(*sides)
        gain = gains.sum(axis=1)
        c = int(gain.argmax())
        if gain[c] > best[0]:
            weight, middle = n[c] / n[c].sum(), one.mean + mean[c]
            best = (
                float(gain[c]),
                replace(two, weight=weight, mean=middle, covariance=covariance[c]),
            )
    before = fitted(*(np.asarray(each) for each in whole))[3]
    return best[0] - float(before), best[1]


def together(parts: Sequence[GaussianComponents], weight: Floats) -> GaussianComponents:
    """All components of several mixtures, whose weights are given."""
    weights = [w * part.weight for w, part in zip(weight, parts, strict=True)]
    discrete = zip(*(part.discrete for part in parts), strict=True)
    loadings = [part.loading for part in parts if part.loading is not None]
    return GaussianComponents(
        np.concatenate(weights),
        np.concatenate([part.mean for part in parts]),
        np.concatenate([part.covariance for part in parts]),
        tuple(
            replace(alike[0], table=np.hstack([one.table for one in alike])) for alike in discrete
        ),
        np.concatenate(loadings) if loadings else None,
    )
