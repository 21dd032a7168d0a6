"""Where EM of Gaussian mixtures starts: from one component, which is split again and again.

Components around random rows end in as many maxima as there are starts, and rest on plateaus on
the way there. A single component has one maximum. What it fits badly shows in what two components
gain on its rows alone: those that gain most are split, until there are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from knothole.arrays import Floats
from knothole.densities.em import SHORT, Run
from knothole.densities.gaussian.em import ANCHOR, GaussianComponents, Prior, ScoreRows

# Of all cuts of a component across a variable, those that EM tries, and variables that may be cut:
# of more, those whose values are the farthest from a single hill.
CUTS = 3
MOST_VARIABLES = 64
# Entries of covariances that are worked on at once.
AT_ONCE = 2**18
# Two components in one place: their parts of its variances.
NARROW, WIDE = 0.3, 1.7
# A component's own rows are those it has this part of; one with fewer than two rows splits last.
OWN = 0.02
LEAST_ROWS = 2.0
# Steps of EM that show which of some pairs is the best.
FEW = 3

#: So many steps of EM on rows, from some components.
Train = Callable[[ScoreRows, GaussianComponents, int], Run[GaussianComponents]]
#: What two components in the place of one gain on its rows, and they.
Split = tuple[float, GaussianComponents]


def grown(
    rows: ScoreRows, mixture: GaussianComponents, size: int, prior: Prior, train: Train
) -> GaussianComponents:
    """So many components, from at least half as many: those that gain most are split."""
    share = mixture.responsibilities(rows)
    each = [mixture.take([c]) for c in range(len(mixture))]
    splits = [split(rows, share[:, c], one, prior, train) for c, one in enumerate(each)]
    for c in sorted(range(len(each)), key=lambda c: -splits[c][0])[: size - len(mixture)]:
        each[c] = splits[c][1]
    return train(rows, together(each, mixture.weight), SHORT).parameters


def split(
    rows: ScoreRows, share: Floats, one: GaussianComponents, prior: Prior, train: Train
) -> Split:
    """The best of some cuts, and of two components in one place, after a few steps of EM."""
    own = share > OWN * rows.weight
    rows = replace(rows[own], weight=share[own])
    covariance = one.covariance * np.array([NARROW, WIDE])[:, None, None]
    pairs = [replace(one.take([0, 0]), covariance=covariance)]
    if share.sum() < LEAST_ROWS:
        return -np.inf, pairs[0]
    pairs += [pair for _, pair in best_cuts(rows, one, prior)]
    before = train(rows, one, 1).objective[-1]
    first = max((train(rows, pair, FEW) for pair in pairs), key=lambda run: run.objective[-1])
    best = train(rows, first.parameters, SHORT - FEW)
    return float(best.objective[-1] - before), best.parameters


def best_cuts(rows: ScoreRows, one: GaussianComponents, prior: Prior) -> list[Split]:
    """The rows cut in two at the mean of a variable, and a component for either side.

    The cuts that leave the least entropy; holes are at the mean.
    """
    residual, two = np.nan_to_num(rows.z - one.mean), one.take([0, 0])
    own = np.diag(prior.strength * prior.variance)

    def sums(weight: Floats) -> tuple[Floats, Floats, Floats]:
        weighed = residual * weight[:, None]
        scatter = weighed.T @ residual + np.diag(rows.spread(weight))
        return weight.sum(), weighed.sum(axis=0), scatter

    whole = sums(rows.weight)
    spread = np.sqrt(np.maximum(np.diag(whole[2]) / whole[0], np.finfo(np.float64).tiny))
    two_hills = rows.weight @ np.abs(residual) / whole[0] / spread
    cut = np.sort(np.argsort(-two_hills, kind="stable")[:MOST_VARIABLES])
    best: list[Split] = []
    for some in np.array_split(cut, -(-cut.size * own.size // AT_ONCE)):
        parts = [sums(rows.weight * (residual[:, j] > 0)) for j in some]
        # Of each cut and both sides: weights (cuts, 2), sums (.., d), products (.., d, d).
        weight, total, scatter = (
            np.stack([above, everywhere - above], axis=1)
            for above, everywhere in zip(
                map(np.array, zip(*parts, strict=True)), whole, strict=True
            )
        )
        n = weight + ANCHOR
        mean = total / n[:, :, None]
        covariance = scatter - total[:, :, :, None] * mean[:, :, None, :] + own
        covariance /= (n + prior.strength)[:, :, None, None]
        gain = (n * (np.log(n) - 0.5 * np.linalg.slogdet(covariance)[1])).sum(axis=1)
        for c in range(len(some)):
            sides = {"weight": n[c] / n[c].sum(), "mean": one.mean + mean[c]}
            best.append((float(gain[c]), replace(two, covariance=covariance[c], **sides)))
        best = sorted(best, key=lambda cut: -cut[0])[:CUTS]
    return best


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
