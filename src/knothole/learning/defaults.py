"""What the "auto" of :func:`knothole.learning.tune.tune` stands for, and what it refuses."""

from __future__ import annotations

from numbers import Real
from typing import Any, Literal

from knothole.arrays import Floats
from knothole.errors import InvalidInput
from knothole.learning import deployed
from knothole.learning.problem import Problem
from knothole.learning.rates import own_rate
from knothole.learning.sums import check_ridge

Method = Literal["auto", "tree", "forest", "boosting"]
METHODS = ("auto", "tree", "forest", "boosting")
Objective = Literal["auto", "expected", "deployed"]
OBJECTIVES = ("auto", "expected", "deployed")


def choose_ridge(problem: Problem, ridge: Any) -> float:
    """A number. By default none for trees that are averaged, whose leaves may hold a single row.

    A single classification tree is the exception: nothing else keeps its probabilities from 0.
    """
    if ridge == "auto":
        alone = problem.probabilities and problem.ensemble.n_trees == 1
        return 0.0 if problem.averaged and not alone else 1.0
    if not isinstance(ridge, Real):
        raise InvalidInput(f"ridge must be 'auto' or a number, at least 0; got {ridge!r}.")
    check_ridge(float(ridge))
    return float(ridge)


def choose_method(problem: Problem, method: str) -> str:
    """Each tree by itself where that is possible, otherwise in turn."""
    if method not in METHODS:
        raise InvalidInput(f"method must be one of {METHODS}; got {method!r}.")
    squared = problem.loss.name == "squared error"
    alone = problem.averaged or (squared and all(len(trees) == 1 for trees in problem.groups()))
    if method == "auto":
        return "tree" if alone else "boosting"
    if method == "tree" and not alone:
        raise InvalidInput(
            "method='tree': the model adds its trees up, so that none of them predicts y by "
            "itself; use method='boosting' or 'forest'."
        )
    if method != "tree" and problem.probabilities:
        raise InvalidInput(
            f"method={method!r}: the model averages class probabilities, which stay probabilities "
            f"only if each tree is tuned by itself; use method='tree'."
        )
    return method


def choose_objective(
    problem: Problem, method: str, objective: str, condition_on_target: bool
) -> str:
    """Deployed, where leaves can move; without conditioning on the target, the paper's."""
    if objective not in OBJECTIVES:
        raise InvalidInput(f"objective must be one of {OBJECTIVES}; got {objective!r}.")
    obstacle = None
    if problem.loss.name != "squared error" or problem.probabilities:
        obstacle = "the model predicts probabilities, and only squared errors are lowered this way"
    elif method == "forest":
        obstacle = "leaves move tree by tree, but method='forest' takes all trees at once"
    elif not deployed.can_move(problem.ensemble).any():
        obstacle = f"every tree has more than {deployed.MOST_LEAVES:,} leaves"
    if objective == "deployed" and obstacle is not None:
        raise InvalidInput(f"objective='deployed': {obstacle}; use objective='expected'.")
    if objective == "auto":
        return "deployed" if obstacle is None and condition_on_target else "expected"
    return objective


def choose_rate(
    problem: Problem, method: str, learning_rate: Any, matrix: Floats, ridge: float
) -> float:
    """The rate to boost with, by default the model's own; other methods take whole steps."""
    if learning_rate != "auto" and not (
        isinstance(learning_rate, Real) and 0 < float(learning_rate) <= 1
    ):
        raise InvalidInput(
            f"learning_rate must be 'auto', or above 0 and at most 1; got {learning_rate!r}."
        )
    if method != "boosting":
        return 1.0
    if learning_rate == "auto":
        return own_rate(problem, matrix, ridge)
    return float(learning_rate)
