"""Statistics of a row's draws, each with a standard error from independent groups.

Draws come as (rows, groups, draws of a group, outputs). Groups are independent, so the differences
between their results give the standard error of the common result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole._core import monte_carlo as kernels
from knothole.arrays import Floats
from knothole.sobol import GROUPS, SIZE
from knothole.trees.links import Blend, Link

# The spread of so few groups is itself uncertain. With this factor, 1.96 standard errors have the
# intended coverage: it is the 97.5 % quantile of Student's t with (number of groups - 1) degrees of
# freedom, over that of the normal.
FACTOR = 2.3646 / 1.9600

# Errors of standard deviations: the least fraction of the error of independent draws, and the
# number of draws up to which all of it is reported.
LEAST, FEW_DRAWS = 0.25, 48.0

# Relative squares of rounding errors are far below this.
ROUNDING = 1e-24

#: From margins of draws and their row numbers to answers and standard errors.
Statistic = Callable[[Floats, NDArray[np.intp]], tuple[Floats, Floats]]
Function = Callable[[Floats], Floats]
#: From the least and the largest margin of rows to the largest possible difference of answers.
Change = Callable[[Floats, Floats], Floats]


def mean_and_error(groups: Floats) -> tuple[Floats, Floats]:
    """Mean over independent groups (axis 1), and its standard error."""
    mean = groups.mean(axis=1, keepdims=True)
    return mean[:, 0], FACTOR * groups.std(axis=1, ddof=1, mean=mean) / np.sqrt(GROUPS)


def by_group(margins: Floats) -> Floats:
    """Margins of draws (rows, words, 64, outputs) as (rows, groups, draws of a group, outputs)."""
    rows, words, _, outputs = margins.shape
    groups = margins.reshape(rows, words, GROUPS, SIZE, outputs).swapaxes(1, 2)
    return groups.reshape(rows, GROUPS, words * SIZE, outputs)


def standard_error(groups: Floats) -> Floats:
    """Standard error of the mean over independent groups (axis 1)."""
    return mean_and_error(groups)[1]


def mean_and_std(margins: Floats, rows: NDArray[np.intp]) -> tuple[Floats, Floats]:
    """Means and standard deviations, concatenated: (rows, 2 outputs)."""
    mean, error = mean_and_error(margins.mean(axis=2))
    std, std_error = std_of(lambda values: values)(margins, rows)
    return np.hstack([mean, std]), np.hstack([error, std_error])


class MeanOf:
    """Means of predictions, from running summaries of the draws.

    Where the expected margin is known exactly, the error of the draws' mean margin corrects the
    answer (a control variate), which stays within the range of the draws.

    Parameters
    ----------
    link : callable
    expected_margin : callable, optional
        From row numbers to their expected margins (rows, outputs). Rows of later calls must be
        among those of the first call.
    """

    def __init__(
        self, link: Function, expected_margin: Callable[[NDArray[np.intp]], Floats] | None = None
    ) -> None:
        self.link, self.expected_margin = link, expected_margin
        self.after = 0  # number of draws after which means are corrected
        self._known: tuple[NDArray[np.intp], Floats] | None = None

    def of(self, some: NDArray[np.intp]) -> MeanOf:
        """The same for some of the rows."""
        expected = self.expected_margin
        other = MeanOf(self.link, None if expected is None else lambda rows: expected(some[rows]))
        other.after = self.after
        return other

    def summary(self, margins: Floats) -> Floats:
        """The summary of margins (rows, words, 64, outputs), as one part: (rows, 1, ...)."""
        values = np.ascontiguousarray(self.link(margins))
        corrects = self.expected_margin is not None
        out = np.empty((len(values), 1, values.shape[3], len(Summary._fields), GROUPS))
        of_margins = np.ascontiguousarray(margins) if corrects else values
        kernels.summarise(of_margins, values, corrects, out[:, 0])
        return out

    def group_means(self, summaries: Floats, rows: NDArray[np.intp]) -> Floats:
        """Means of groups of draws, (rows, groups, outputs), from summaries (rows, parts, ...)."""
        parts = Summary(*np.moveaxis(summaries, 3, 0))
        draws = parts.draws[:1, :, :1]
        part = draws / draws.sum(axis=1, keepdims=True)
        means = (part * parts.value).sum(axis=1)
        if self.expected_margin is not None and draws.sum() > self.after:
            means -= _slope(parts, part) * (
                (part * parts.margin).sum(axis=1) - self._expected(rows)[:, :, None]
            )
        return np.asarray(means.swapaxes(1, 2))

    def settle(self, summaries: Floats, rows: NDArray[np.intp]) -> tuple[Floats, Floats]:
        """Answers and standard errors, (rows, outputs) each."""
        mean, error = mean_and_error(self.group_means(summaries, rows))
        parts = Summary(*np.moveaxis(summaries, 3, 0))
        return np.clip(mean, parts.least.min(axis=(1, 3)), parts.most.max(axis=(1, 3))), error

    def _expected(self, rows: NDArray[np.intp]) -> Floats:
        if self._known is None:
            assert self.expected_margin is not None
            self._known = rows, self.expected_margin(rows)
        first, known = self._known
        return known[np.searchsorted(first, rows)]


class Summary(NamedTuple):
    """Summary of a row's draws for the mean of one output, (..., groups) each.

    Number of draws, means of values and margins, centred sums of squares and products of both, and
    the least and the largest value.
    """

    draws: Floats
    value: Floats
    margin: Floats
    square: Floats
    product: Floats
    least: Floats
    most: Floats


def _slope(parts: Summary, part: Floats) -> Floats:
    """Slope of values on margins, (rows, outputs, 1); each part has ``part`` of the draws."""
    draws = parts.draws.sum(axis=(1, 3))
    value, margin = parts.value.mean(axis=3), parts.margin.mean(axis=3)
    part = part[..., 0]
    centre, middle = ((part * means).sum(axis=1, keepdims=True) for means in (value, margin))
    square = parts.square.sum(axis=(1, 3)) + draws * (part * (margin - middle) ** 2).sum(axis=1)
    product = (part * (margin - middle) * (value - centre)).sum(axis=1)
    product = parts.product.sum(axis=(1, 3)) + draws * product
    # Margins that differ only by rounding errors have no slope.
    differ = square > ROUNDING * (square + draws * middle[:, 0] ** 2)
    slope = np.divide(product, square, out=np.zeros_like(square), where=differ)
    return np.asarray(slope[..., None])


def std_of(link: Function) -> Statistic:
    """Standard deviations of predictions."""

    def statistic(margins: Floats, rows: NDArray[np.intp]) -> tuple[Floats, Floats]:
        values = link(margins)
        values = values - values.mean(axis=(1, 2), keepdims=True)
        with np.errstate(over="ignore", invalid="ignore"):
            std, error = _std_and_error(values)
        if np.isfinite(error).all():
            return std, error
        # The error takes fourth powers, which are infinite from 1e77 on: the largest becomes 1.
        largest = np.abs(values).max(axis=(1, 2), keepdims=True)
        largest[largest == 0] = 1.0
        std, error = _std_and_error(values / largest)
        return std * largest[:, 0, 0], error * largest[:, 0, 0]

    return statistic


def _std_and_error(deviations: Floats) -> tuple[Floats, Floats]:
    """From deviations from the mean; each group's mean square is its estimate of the variance.

    Eight groups may agree by chance, so the error is at least ``LEAST`` of that of as many
    independent draws. Where few draws make up the variance, nets are no better than independent
    draws, and it is nearly all of that. The number of draws that make up the variance is
    n E[d^2]^2 / E[d^4].
    """
    square = deviations**2
    variance, error = mean_and_error(square.mean(axis=2))
    n, fourth = square.shape[1] * square.shape[2], (square**2).mean(axis=(1, 2))
    independent = np.sqrt(np.maximum(fourth - variance**2, 0.0) / n)
    number = np.full_like(variance, np.inf)
    np.divide(n * variance**2, fourth, out=number, where=fourth > 0)
    error = np.maximum(error, independent * np.clip(FEW_DRAWS / number, LEAST, 1.0))
    std = np.sqrt(variance)
    return std, np.divide(error, 2 * std, out=np.zeros_like(std), where=std > 0)


def change_of(link: Link | Blend) -> Change:
    """The most that missing values can change a prediction by.

    >>> change_of(Link("sigmoid"))(np.array([[-1.0]]), np.array([[1.0]])).round(3)
    array([[0.462]])
    >>> change_of(Link("softmax"))(np.array([[0.0, 1.0]]), np.array([[0.0, 1.0]]))
    array([[0., 0.]])
    """

    def change(low: Floats, high: Floats) -> Floats:
        if link.name == "softmax":  # largest at its own largest and the others' least margin
            own = np.eye(low.shape[1], dtype=np.bool_)
            most = link(np.where(own, high[:, None], low[:, None]))
            least = link(np.where(own, low[:, None], high[:, None]))
            return np.asarray(np.diagonal(most - least, axis1=1, axis2=2))
        if isinstance(link, Blend):
            return _anything(low, high, link.width)
        return np.abs(link(high) - link(low))

    return change


def _anything(low: Floats, high: Floats, n: int) -> Floats:
    """No change of the ``n`` answers where margins are fixed; otherwise any change."""
    fixed = (low == high).all(axis=1, keepdims=True)
    return np.where(fixed, 0.0, np.full((1, n), np.inf))


def change_of_std(link: Link | Blend) -> Change:
    """The largest standard deviation within a range."""
    change = change_of(link)
    return lambda low, high: change(low, high) / 2


def change_of_mean_and_std(low: Floats, high: Floats) -> Floats:
    """The largest changes of the mean and the standard deviation of margins, concatenated."""
    return np.hstack([high - low, (high - low) / 2])


def change_of_quantiles(answers: int) -> Change:
    """The largest changes of the levels of quantiles: none where missing values change nothing."""
    return lambda low, high: _anything(low, high, answers)


def quantiles_of(link: Function, levels: Floats) -> Statistic:
    """Quantiles of predictions, concatenated with their own standard errors.

    Predictions of trees are step functions, so a quantile at a step can be on either side, however
    many draws there are. So the standard error returned first is that of its *level*: the fraction
    of predictions below it.
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
