"""A model and its targets, in the form in which leaves are solved for.

Trees are either *averaged* (forests, bags, single trees without a base score: every tree predicts y
by itself) or *added up* on top of a base. In formulas, theta is what a leaf adds to the margin: its
value times its tree's weight. The ridge shrinks theta towards the *start* of its tree. That is 0
where the model has a base score. Without one, the leaves include the mean of y, and shrinking them
to 0 would shrink every prediction. So averaged trees start from the mean (from class frequencies,
from the quantile that the model predicts), and so does the first tree of an output without a base.
The paper uses 0 for all of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.errors import InvalidInput, UnsupportedModel
from knothole.expectation.engine import weighted_values
from knothole.leaves.losses import Loss, Pinball, loss_of
from knothole.leaves.sums import ROUNDING, LeafSums
from knothole.trees.ensemble import Ensemble

# The most rows for estimating a learning rate.
RATE_ROWS = 20_000
# A smaller slope is not the result of boosting.
LEAST_RATE = 1e-4


@dataclass(frozen=True, eq=False)
class Problem:
    """The minimisation problem.

    Attributes
    ----------
    ensemble : Ensemble
        Trees with a weight other than 0.
    loss : Loss
        Of the margin; averaged trees have the squared error of each tree on its own.
    y : float64 (rows, outputs)
        Targets in units of the margin; 0 and 1 where the loss is a log loss or leaves are
        probabilities.
    row_weight : float64 (rows,)
    averaged : bool
        Whether each tree predicts y by itself.
    probabilities : bool
        Whether leaves are class probabilities.
    start : float64 (trees, width)
        What the ridge shrinks the theta of each tree towards.
    """

    ensemble: Ensemble
    loss: Loss
    y: Floats
    row_weight: Floats
    averaged: bool
    probabilities: bool
    start: Floats

    @classmethod
    def of(cls, ensemble: Ensemble, y: Any, row_weight: Floats) -> Problem:
        """The problem of an ensemble and targets, with one weight for each row."""
        loss = loss_of(ensemble)
        averaged = is_averaged(ensemble)
        encoded = margin_targets(ensemble, y, len(row_weight))
        probabilities = ensemble.link.linear and ensemble.classes is not None
        if probabilities and not averaged:
            raise UnsupportedModel(
                f"{ensemble.library}: a classifier that adds up margins without a link cannot be "
                f"refitted; its log loss is not known."
            )
        centre = margin_of(ensemble, loss.centre(encoded, row_weight))
        start = _start(ensemble, averaged, centre)
        return cls(ensemble, loss, encoded, row_weight, averaged, probabilities, start)

    @property
    def theta(self) -> Floats:
        """The model's own theta, (leaves, width)."""
        return weighted_values(self.ensemble)

    @property
    def leaf_start(self) -> Floats:
        """What the ridge shrinks each leaf's theta towards, (leaves, width)."""
        return np.asarray(self.start[self.ensemble.leaf_tree])

    @property
    def tree_unit(self) -> Floats:
        """Theta per unit of a tree's own prediction, (leaves, 1)."""
        ensemble = self.ensemble
        unit = ensemble.tree_weight if self.averaged else np.ones(ensemble.n_trees)
        return np.asarray(unit[ensemble.leaf_tree][:, None])

    def tree_loss(self, sums: LeafSums, change: Floats) -> float:
        """Expected loss of a row if trees predict by themselves, ``change`` above their start.

        The mean over averaged trees, the sum over trees of different outputs.
        """
        start = self.ensemble.leaf_start
        if self.probabilities:
            losses = sums.cross_entropy(change, self.offset, start) / sums.total
        else:
            losses = sums.tree_losses(change, start) / sums.total * self.loss.scale**2
        return float(self.combined(losses))

    def combined(self, losses: Floats) -> Floats:
        """Loss of a row, from those of the trees on their own (trees, ...)."""
        if self.averaged:
            return np.asarray(losses.mean(axis=0))
        return np.asarray(losses.sum(axis=0) + self.unserved_loss)

    @property
    def unserved_loss(self) -> float:
        """Loss of a row in outputs without trees, if outputs are independent."""
        width = self.ensemble.value.shape[1]
        served = np.zeros(self.ensemble.n_outputs, dtype=np.bool_)
        served[self.ensemble.tree_output[:, None] + np.arange(width)] = True
        margin = np.where(served, self.y, self.offset)
        loss = self.loss.value(margin, self.y)
        return float(self.row_weight @ loss / self.row_weight.sum()) * self.loss.factor

    @property
    def offset(self) -> Floats:
        """The margin if all leaves are at their start, (outputs,)."""
        offset = self.ensemble.base.copy()
        for output, start in zip(self.ensemble.tree_output, self.start, strict=True):
            offset[output : output + len(start)] += start
        return offset

    def values(self, theta: Floats) -> Floats:
        """Leaf values from theta."""
        weight = self.ensemble.tree_weight[self.ensemble.leaf_tree]
        value = theta / weight[:, None]
        # A class that never reaches a leaf has probability 0 there, without rounding errors.
        return np.asarray(np.where(value < ROUNDING, 0.0, value) if self.probabilities else value)

    def groups(self) -> list[NDArray[np.intp]]:
        """Trees grouped by the outputs that they serve; the squared loss is a sum over groups."""
        output = self.ensemble.tree_output
        return [np.flatnonzero(output == first) for first in np.unique(output)]


def is_averaged(ensemble: Ensemble) -> bool:
    """Whether the trees are averaged: equal weights that sum to 1, no base, no link."""
    return (
        ensemble.link.linear
        and not ensemble.base.any()
        and np.allclose(ensemble.tree_weight, 1 / max(ensemble.n_trees, 1), rtol=1e-12)
        and len(np.unique(ensemble.tree_output)) == 1
    )


def _start(ensemble: Ensemble, averaged: bool, mean: Floats) -> Floats:
    """What the ridge shrinks each tree's theta towards, (trees, width)."""
    width = ensemble.value.shape[1]
    outputs = ensemble.tree_output[:, None] + np.arange(width)
    if averaged:
        return np.asarray(mean[outputs] * ensemble.tree_weight[:, None])
    served = [np.arange(first, first + width) for first in np.unique(ensemble.tree_output)]
    if len(np.unique(np.concatenate(served))) < width * len(served):
        raise UnsupportedModel("trees that serve outputs which overlap in part cannot be refitted.")
    first_tree = np.zeros(ensemble.n_trees, dtype=np.bool_)
    first_tree[np.unique(ensemble.tree_output, return_index=True)[1]] = True
    without_base = first_tree[:, None] & (ensemble.base[outputs] == 0)
    return np.asarray(np.where(without_base, mean[outputs], 0.0))


def margin_of(ensemble: Ensemble, mean: Floats) -> Floats:
    """The constant margin that predicts the mean of the encoded targets.

    Class frequencies are kept away from 0 and 1, because their logarithm is taken.
    """
    if ensemble.link.linear:
        return mean
    mean = np.clip(mean, 1e-6, 1 - 1e-6)
    if ensemble.link.name == "sigmoid":
        return np.asarray(np.log(mean / (1 - mean)) / ensemble.link.scale)
    logs = np.log(mean)
    return np.asarray((logs - logs.mean()) / ensemble.link.scale)


def margin_targets(ensemble: Ensemble, y: Any, rows: int) -> Floats:
    """Numeric targets (rows, outputs) in units of the margin."""
    encoded = encode(ensemble, y, rows)
    return encoded / ensemble.link.scale if ensemble.link.linear else encoded


def encode(ensemble: Ensemble, y: Any, rows: int) -> Floats:
    """Targets as (rows, outputs): numbers, or 0 and 1 for classes."""
    table = in_rows(y, rows)
    if ensemble.classes is not None:
        return _one_hot(ensemble, table)
    if ensemble.link.name == "softmax" and table.shape[1] == 1:
        return _labels(table[:, 0], range(ensemble.n_outputs))
    table = numbers(table)
    if table.shape[1] == 1 and len(ensemble.recipe.levels) == ensemble.n_outputs:
        table = np.repeat(table, ensemble.n_outputs, axis=1)  # several quantiles of one target
    if table.shape[1] != ensemble.n_responses:
        raise InvalidInput(
            f"y must have {ensemble.n_responses} output(s), as the model has; got {table.shape[1]}."
        )
    if not ensemble.link.linear and not np.isin(table, (0.0, 1.0)).all():
        raise InvalidInput("y must be 0 or 1: the model predicts probabilities.")
    return table


def in_rows(y: Any, rows: int, name: str = "y") -> NDArray[Any]:
    """Targets (rows, targets), one row for each of the ``rows``."""
    values = np.asarray(y)
    if values.ndim not in (1, 2) or len(values) != rows:
        raise InvalidInput(
            f"{name} must have a target for each of the {rows} rows; got shape {values.shape}."
        )
    return values.reshape(rows, -1)


def numbers(y: NDArray[Any], name: str = "y") -> Floats:
    """Targets as finite numbers."""
    try:
        found = y.astype(np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} must hold numbers for this model; got {y.dtype}.") from None
    if not np.isfinite(found).all():
        raise InvalidInput(
            f"{name} must be finite everywhere; leave out rows whose target is not known."
        )
    return np.asarray(found)


def _one_hot(ensemble: Ensemble, table: NDArray[Any]) -> Floats:
    """1 for the classes of each row, 0 for others."""
    classes = ensemble.classes or ()
    lists = classes if isinstance(classes[0], tuple) else (classes,)
    if table.shape[1] != len(lists):
        raise InvalidInput(f"y must have {len(lists)} column(s) of labels; got {table.shape[1]}.")
    parts = [_labels(table[:, i], labels) for i, labels in enumerate(lists)]  # type: ignore[arg-type]
    hot = np.hstack(parts)
    if hot.shape[1] == ensemble.n_responses:
        return hot
    if ensemble.n_outputs == 1 and hot.shape[1] == 2 and not ensemble.link.linear:
        return hot[:, 1:]
    raise UnsupportedModel(
        f"{ensemble.library}: a classifier with {hot.shape[1]} classes, {ensemble.n_outputs} "
        f"output(s) and a {ensemble.link.name!r} link gives no probabilities to refit."
    )


def _labels(y: NDArray[Any], labels: Sequence[Hashable]) -> Floats:
    return np.asarray(np.eye(len(labels))[codes(y, labels)])


def codes(y: NDArray[Any], labels: Sequence[Hashable]) -> NDArray[np.intp]:
    """The position of each label in ``labels``."""
    code = {label: i for i, label in enumerate(labels)}
    try:
        return np.array([code[label] for label in y.tolist()], dtype=np.intp)
    except (KeyError, TypeError):
        unknown = next(label for label in y.tolist() if label not in code)
        raise InvalidInput(
            f"y: {unknown!r} is none of the model's classes, {list(labels)}."
        ) from None


def rate_of_leaves(problem: Problem, matrix: Floats, ridge: float) -> float | None:
    """The learning rate of a boosted model, estimated from its leaves, above 0 and at most 1.

    Boosting gives each tree only a part, the rate, of its best values. Small steps keep such models
    from overfitting, and trees that were grown for small steps are no good for large ones. Few
    formats store the rate, but the leaves reveal it. With g and h the first and second derivative
    of the loss at the margin of the trees before, the best step of leaf l is

        s_l = -sum_n g_n / (lambda + sum_n h_n)    over the rows n in the leaf,

    and the model has theta_l = rate * s_l. Rows that the model was not trained on, or that a tree
    did not see, blur this; so the rate is the slope of theta on s, by least squares with the
    curvature lambda + sum_n h_n as the weight of a leaf. For quantile models, s_l is the quantile
    of the residuals of the trees before, and the weight is the number of rows.

    The trees of the model must be added up. NaN in the rows goes where the model sends it. None if
    the leaves are unrelated to the targets.

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
        place, value = leaves[:, tree] - start, theta[start:stop]
        if isinstance(problem.loss, Pinball):
            loss, left = problem.loss.part(first, theta.shape[1]), (y - margin)[:, outputs]
            step = loss.by_leaf(place, left, weight, stop - start, ridge)
            total = _summed(weight[:, None], place, stop - start) + ridge
        else:
            derivatives = problem.loss.derivatives(margin, y)
            gradient, hessian = (
                _summed(weight[:, None] * part[:, outputs], place, stop - start)
                for part in derivatives
            )
            total = hessian + ridge
            step = -gradient / np.where(total > 0, total, 1.0)
        product += float((total * step * value).sum())
        square += float((total * step**2).sum())
        margin[:, outputs] += value[place]
    if product <= LEAST_RATE * square:
        return None
    return min(product / square, 1.0)


def _summed(values: Floats, leaf: NDArray[np.integer[Any]], n_leaves: int) -> Floats:
    """Sums of values (rows, width) by leaf, (leaves, width)."""
    return np.column_stack([np.bincount(leaf, column, n_leaves) for column in values.T])
