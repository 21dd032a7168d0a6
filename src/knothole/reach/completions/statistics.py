"""Statistics of a row's draws, each with a standard error from independent groups of them.

Draws come as (rows, groups, draws of a group, outputs). Groups are independent, so that what they
say of the same thing, one by one, tells how far their common answer may be off.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.compiled.sobol import GROUPS

# The spread of so few groups is itself uncertain. With this factor, 1.96 standard errors cover the
# truth as often as they would if it were not: the 97.5 % quantile of Student's t with as many
# degrees of freedom as there are groups, less one, over that of the normal.
FACTOR = 2.3646 / 1.9600

# Squares of rounding errors, as a share of the squares of what was rounded, are far below this.
ROUNDING = 1e-24

#: From the margins of draws, and the numbers of their rows, to answers and standard errors.
Statistic = Callable[[Floats, NDArray[np.intp]], tuple[Floats, Floats]]
Link = Callable[[Floats], Floats]


def mean_and_error(groups: Floats) -> tuple[Floats, Floats]:
    """Mean over independent groups (axis 1), and its standard error."""
    mean = groups.mean(axis=1, keepdims=True)
    return mean[:, 0], FACTOR * groups.std(axis=1, ddof=1, mean=mean) / np.sqrt(GROUPS)


def standard_error(groups: Floats) -> Floats:
    """Of the mean over independent groups (axis 1)."""
    return mean_and_error(groups)[1]


def mean_and_std(margins: Floats, rows: NDArray[np.intp]) -> tuple[Floats, Floats]:
    """Means and standard deviations side by side, (rows, 2 outputs)."""
    mean, error = mean_and_error(margins.mean(axis=2))
    std, std_error = std_of(lambda values: values)(margins, rows)
    return np.hstack([mean, std]), np.hstack([error, std_error])


def mean_of(link: Link, expected_margin: Floats | None = None) -> Statistic:
    """Means of predictions.

    Where the expected margin (all rows, outputs) is known exactly, what the draws' own mean margin
    misses it by corrects the answer: a control variate. It never goes beyond what draws have.
    """

    def statistic(margins: Floats, rows: NDArray[np.intp]) -> tuple[Floats, Floats]:
        values = link(margins)
        known = None if expected_margin is None else expected_margin[rows]
        mean, error = mean_and_error(group_means(values, margins, known))
        return np.clip(mean, values.min(axis=(1, 2)), values.max(axis=(1, 2))), error

    return statistic


def group_means(values: Floats, margins: Floats, expected_margin: Floats | None) -> Floats:
    """Means of the predictions of each group, (rows, groups, outputs); see :func:`mean_of`."""
    means = np.asarray(values.mean(axis=2))
    if expected_margin is None:
        return means
    return np.asarray(means - _control(values, margins, expected_margin))


def _control(values: Floats, margins: Floats, expected: Floats) -> Floats:
    """What means of groups are off by, as far as margins tell, (rows, groups, outputs)."""
    about = margins - margins.mean(axis=(1, 2), keepdims=True)
    square = (about**2).sum(axis=(1, 2))
    product = (about * values).sum(axis=(1, 2))
    # Margins that differ by rounding alone have no slope.
    differ = square > ROUNDING * (margins**2).sum(axis=(1, 2))
    slope = np.divide(product, square, out=np.zeros_like(square), where=differ)
    return np.asarray(slope[:, None] * (margins.mean(axis=2) - expected[:, None]))


def std_of(link: Link) -> Statistic:
    """Standard deviations of predictions."""

    def statistic(margins: Floats, rows: NDArray[np.intp]) -> tuple[Floats, Floats]:
        values = link(margins)
        centre = values.mean(axis=(1, 2), keepdims=True)
        # Each group's mean square about the common mean: their mean is the variance.
        variance, error = mean_and_error(((values - centre) ** 2).mean(axis=2))
        std = np.sqrt(variance)
        return std, np.divide(error, 2 * std, out=np.zeros_like(std), where=std > 0)

    return statistic


def quantiles_of(link: Link, levels: Floats) -> Statistic:
    """Quantiles of predictions beside their own standard errors, (rows, 2 outputs x levels).

    Predictions of trees jump, and a quantile at a jump is on one side or the other, however many
    draws there are. So the standard error that comes with them is that of their *level*: of the
    part of predictions that lie below.
    """

    def statistic(margins: Floats, rows: NDArray[np.intp]) -> tuple[Floats, Floats]:
        values = link(margins)
        n, groups, draws, outputs = values.shape
        together = np.quantile(values.reshape(n, groups * draws, outputs), levels, axis=1)
        apart = np.quantile(values, levels, axis=2)
        below = [
            (values < found[:, None, None]).mean(axis=2)
            + 0.5 * (values == found[:, None, None]).mean(axis=2)
            for found in together
        ]
        error, of_level = (
            standard_error(np.moveaxis(each, 0, 3)) for each in (apart, np.stack(below))
        )
        parts = [np.moveaxis(together, 0, 2), error, of_level, of_level]
        quantile, error, *of_levels = (part.reshape(n, -1) for part in parts)
        return np.hstack([quantile, error]), np.hstack(of_levels)

    return statistic
