"""The learning rate of a boosted model, as its leaves tell it.

The learning rate that a boosted model was trained with is told by its own leaves. Boosting gives
each tree a part of its best values, the rate: small steps are how such models are kept from
overfitting, and trees that were grown for small steps are no good for large ones. Few formats keep
the rate, but leaves do. With g and h the first and second derivative of the loss at the margin of
the trees before, the step that suits leaf l best is

    s_l = -sum_n g_n / (lambda + sum_n h_n)    over the rows n in the leaf,

and what the model has there is theta_l = rate * s_l. Rows that a model was not trained on, or of
which each tree saw a sample, blur this, so the rate is the slope of theta on s, by least squares
with the curvature lambda + sum_n h_n as the weight of a leaf. For models of quantiles, s_l is the
quantile of what the trees before leave of y, and the rows are the weight.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.leaves.losses.pinball import Pinball
from knothole.leaves.problem import Problem

# A slope is known well enough from so many rows.
RATE_ROWS = 20_000
# A slope below this is not what boosting leaves behind.
LEAST_RATE = 1e-4


def rate_of_leaves(problem: Problem, matrix: Floats, ridge: float) -> float | None:
    """The part of its best values that each tree of a model has, above 0 and at most 1.

    The model adds its trees up. NaN in the rows goes where the model itself sends it. None where
    the leaves have nothing to do with the targets.

    Examples
    --------
    >>> from sklearn.ensemble import GradientBoostingRegressor
    >>> from knothole.trees.read import read
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2))
    >>> y = X.sum(axis=1)
    >>> model = GradientBoostingRegressor(n_estimators=5, learning_rate=0.2).fit(X, y)
    >>> problem = Problem.of(read(model), y, np.ones(300))
    >>> round(rate_of_leaves(problem, X, ridge=0.0), 6)
    0.2
    """
    rows = np.arange(len(matrix))
    if len(rows) > RATE_ROWS:
        rows = np.sort(np.random.default_rng(0).choice(len(rows), RATE_ROWS, replace=False))
    leaves = problem.ensemble.leaves(matrix[rows])
    y, weight = problem.y[rows], problem.row_weight[rows]
    theta = problem.theta - problem.leaf_start
    margin = np.tile(problem.offset, (len(rows), 1))
    product = square = 0.0
    bounds = pairwise(problem.ensemble.leaf_start.tolist())
    for tree, (start, stop) in enumerate(bounds):
        first = problem.ensemble.tree_output[tree]
        outputs = slice(first, first + theta.shape[1])
        place, own = leaves[:, tree] - start, theta[start:stop]
        if isinstance(problem.loss, Pinball):
            loss, left = problem.loss.part(first, theta.shape[1]), (y - margin)[:, outputs]
            step = loss.by_leaf(place, left, weight, stop - start, ridge)
            total = _summed(weight[:, None], place, stop - start) + ridge
        else:
            found = problem.loss.derivatives(margin[:, :, None], y[:, :, None])
            gradient, hessian = (
                _summed(weight[:, None] * part[:, outputs, 0], place, stop - start)
                for part in found
            )
            total = hessian + ridge
            step = -gradient / np.where(total > 0, total, 1.0)
        product += float((total * step * own).sum())
        square += float((total * step**2).sum())
        margin[:, outputs] += own[place]
    if product <= LEAST_RATE * square:
        return None
    return min(product / square, 1.0)


def _summed(values: Floats, leaf: NDArray[np.integer[Any]], n_leaves: int) -> Floats:
    """Sums of values (rows, width) by leaf, (leaves, width)."""
    return np.column_stack([np.bincount(leaf, column, n_leaves) for column in values.T])
