"""Where EM of Gaussian mixtures starts: from one component, which is split again and again.

Components around random rows end in as many maxima as there are starts, and rest on plateaus on
the way there. A single component has one maximum. What it fits badly shows in what two components
gain, one on either side of the mean of a variable: those that gain most are split, until there are
enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from knothole.arrays import Floats
from knothole.densities.gaussian.em import ANCHOR, GaussianComponents, Prior, ScoreRows

# Variables that a component may be cut across: of more, those whose values are the farthest from a
# single hill.
MOST_VARIABLES = 64
# Entries of covariances that are worked on at once.
AT_ONCE = 2**18
# A component's own rows are those it has this part of; one with fewer than two rows splits last.
OWN = 0.02
LEAST_ROWS = 2.0

#: What two components in the place of one gain on its rows, and they.
Split = tuple[float, GaussianComponents]


def grown(
    rows: ScoreRows, mixture: GaussianComponents, size: int, prior: Prior
) -> GaussianComponents:
    """So many components, from at least half as many: those that gain most are split."""
    share = mixture.responsibilities(rows)
    each = [mixture.take([c]) for c in range(len(mixture))]
    splits = [best_cut(rows, share[:, c], one, prior) for c, one in enumerate(each)]
    for c in sorted(range(len(each)), key=lambda c: -splits[c][0])[: size - len(mixture)]:
        each[c] = splits[c][1]
    return together(each, mixture.weight)


def best_cut(rows: ScoreRows, share: Floats, one: GaussianComponents, prior: Prior) -> Split:
    """The rows of a component cut in two at the mean of a variable, and a component for each side.

    Of all variables the one that leaves the least entropy,

        sum over the sides of -n (log n - log det(covariance) / 2),

    with a missing value at its mean.
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
        # Of each cut and both sides: weights (cuts, 2), sums (.., d), products (.., d, d).
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
    """All components of some mixtures, which have these weights."""
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
