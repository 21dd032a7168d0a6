"""What the "auto" of :class:`~knothole.learning.options.TuningOptions` stands for.

The learning rate that a boosted model was trained with is told by its own leaves. Boosting gives
each tree a part of its best values, the rate: small steps are how such models are kept from
overfitting, and trees that were grown for small steps are no good for large ones. Few formats keep
the rate, but leaves do. With g and h the first and second derivative of the loss at the margin of
the trees before, the step that suits leaf l best is

    s_l = -sum_n g_n / (lambda + sum_n h_n)    over the rows n in the leaf,

and what the model has there is theta_l = rate * s_l. Rows that a model was not trained on, or of
which each tree saw a sample, blur this, so the rate is the slope of theta on s, by least squares
with the curvature lambda + sum_n h_n as the weight of a leaf.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.densities.base import Density
from knothole.errors import InvalidInput
from knothole.learning.options import TuningOptions
from knothole.learning.problem import Problem
from knothole.reach.expectation import Expectation
from knothole.trees.ensemble import Ensemble

# Trees with more leaves do not move: their matrices would take too long to take apart.
MOST_LEAVES = 1024
# A learning rate that leaves the expected loss above the old leaves' is raised by this factor.
RAISE = 1.25
# A slope is known well enough from so many rows.
RATE_ROWS = 20_000
# A slope below this is not what boosting leaves behind.
LEAST_RATE = 1e-4


@dataclass(frozen=True, eq=False)
class Settings:
    """How to solve: options, and what was chosen where they leave a choice.

    ``rates`` are learning rates to boost with, one after the other until the loss does not rise.
    """

    options: TuningOptions
    ridge: float
    method: str
    objective: str
    rates: tuple[float, ...]

    @classmethod
    def of(cls, options: TuningOptions, problem: Problem, matrix: Floats) -> Settings:
        """The settings for a problem whose rows are ``matrix``."""
        ridge = choose_ridge(options, problem)
        method = choose_method(options, problem)
        objective = choose_objective(options, problem, method)
        rates = choose_rates(options, problem, method, matrix, ridge)
        return cls(options, ridge, method, objective, rates)

    @property
    def in_turn(self) -> bool:
        """Whether each tree is given the ones before it."""
        return self.method == "boosting"

    def expectation(self, ensemble: Ensemble, density: Density) -> Expectation:
        """A model under a density."""
        given = self.options
        return Expectation.of(
            ensemble, density, given.reach, seed=given.seed, integrate=given.integrate
        )


def choose_ridge(options: TuningOptions, problem: Problem) -> float:
    """A number. By default none for trees that are averaged, whose leaves may hold a single row.

    A single classification tree is the exception: nothing else keeps its probabilities from 0.
    """
    if options.ridge != "auto":
        return float(options.ridge)
    alone = problem.probabilities and problem.ensemble.n_trees == 1
    return 0.0 if problem.averaged and not alone else 1.0


def choose_method(options: TuningOptions, problem: Problem) -> str:
    """Each tree by itself where that is possible, otherwise in turn."""
    squared = problem.loss.name == "squared error"
    alone = problem.averaged or (squared and all(len(trees) == 1 for trees in problem.groups()))
    if options.method == "auto":
        return "tree" if alone else "boosting"
    if options.method == "tree" and not alone:
        raise InvalidInput(
            "method='tree': the model adds its trees up, so that none of them predicts y by "
            "itself; use method='boosting' or 'forest'."
        )
    if options.method != "tree" and problem.probabilities:
        raise InvalidInput(
            f"method={options.method!r}: the model averages class probabilities, which stay "
            f"probabilities only if each tree is tuned by itself; use method='tree'."
        )
    return options.method


def choose_objective(options: TuningOptions, problem: Problem, method: str) -> str:
    """Deployed, where leaves can move; without conditioning on the target, the paper's."""
    obstacle = None
    if problem.loss.name != "squared error" or problem.probabilities:
        obstacle = "the model predicts probabilities, and only squared errors are lowered this way"
    elif method == "forest":
        obstacle = "leaves move tree by tree, but method='forest' takes all trees at once"
    elif not can_move(problem.ensemble).any():
        obstacle = f"every tree has more than {MOST_LEAVES:,} leaves"
    if options.objective == "deployed" and obstacle is not None:
        raise InvalidInput(f"objective='deployed': {obstacle}; use objective='expected'.")
    if options.objective == "auto":
        return "deployed" if obstacle is None and options.condition_on_target else "expected"
    return options.objective


def can_move(ensemble: Ensemble) -> NDArray[np.bool_]:
    """The trees that do not have too many leaves, (trees,)."""
    return np.asarray(np.diff(ensemble.leaf_start) <= MOST_LEAVES)


def choose_rates(
    options: TuningOptions, problem: Problem, method: str, matrix: Floats, ridge: float
) -> tuple[float, ...]:
    """The rate that is given, or the model's own and larger ones; others take whole steps."""
    if method != "boosting":
        return (1.0,)
    if options.learning_rate != "auto":
        return (float(options.learning_rate),)
    rates = [own_rate(problem, matrix, ridge)]
    while rates[-1] < 1:
        rates.append(min(1.0, RAISE * rates[-1]))
    return tuple(rates)


def own_rate(problem: Problem, matrix: Floats, ridge: float) -> float:
    """The part of its best values that each tree of a model has, above 0 and at most 1.

    The model adds its trees up. NaN in the rows goes where the model itself sends it. Refused
    where the leaves have nothing to do with the targets.

    Examples
    --------
    >>> from sklearn.ensemble import GradientBoostingRegressor
    >>> from knothole.trees.read import read
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2))
    >>> y = X.sum(axis=1)
    >>> model = GradientBoostingRegressor(n_estimators=5, learning_rate=0.2).fit(X, y)
    >>> problem = Problem.of(read(model), y, np.ones(300))
    >>> round(own_rate(problem, X, ridge=0.0), 6)
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
        found = problem.loss.derivatives(margin[:, :, None], y[:, :, None])
        gradient, hessian = (
            _summed(weight[:, None] * part[:, outputs, 0], place, stop - start) for part in found
        )
        total = hessian + ridge
        step = -gradient / np.where(total > 0, total, 1.0)
        product += float((total * step * own).sum())
        square += float((total * step**2).sum())
        margin[:, outputs] += own[place]
    if product <= LEAST_RATE * square:
        raise InvalidInput(
            "learning_rate='auto': the model's leaves are not what boosting would give them on "
            "these rows, so its rate cannot be told. Pass learning_rate, or method='forest'."
        )
    return min(product / square, 1.0)


def _summed(values: Floats, leaf: NDArray[np.integer[Any]], n_leaves: int) -> Floats:
    """Sums of values (rows, width) by leaf, (leaves, width)."""
    return np.column_stack([np.bincount(leaf, column, n_leaves) for column in values.T])
