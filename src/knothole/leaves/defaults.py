"""What the "auto" of :class:`~knothole.leaves.options.TuningOptions` stands for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.densities.base import Density
from knothole.errors import InvalidInput
from knothole.expectation.expectation import Expectation
from knothole.leaves.losses.base import Location
from knothole.leaves.losses.pinball import Pinball
from knothole.leaves.options import TuningOptions
from knothole.leaves.problem import Problem
from knothole.leaves.rates import rate_of_leaves
from knothole.trees.ensemble import Ensemble

# Trees with more leaves do not move: their matrices would take too long to take apart.
MOST_LEAVES = 1024
# A learning rate that leaves the expected loss above the old leaves' is raised by this factor.
RAISE = 1.25


@dataclass(frozen=True, eq=False)
class Settings:
    """How to solve: options, and what was chosen where they leave a choice.

    ``rates`` are learning rates to boost with, one after the other until the loss does not rise;
    none, where neither the model nor its leaves tell the first.
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
    None for quantiles either: no library has one for the quantiles of its leaves.
    """
    if options.ridge != "auto":
        return float(options.ridge)
    alone = problem.probabilities and problem.ensemble.n_trees == 1
    averaged = problem.averaged and not alone
    return 0.0 if averaged or isinstance(problem.loss, Pinball) else 1.0


def choose_method(options: TuningOptions, problem: Problem) -> str:
    """Each tree by itself where that is possible, otherwise in turn."""
    closed = problem.loss.name == "squared error" or isinstance(problem.loss, Location)
    alone = problem.averaged or (closed and all(len(trees) == 1 for trees in problem.groups()))
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
    if options.method == "forest" and isinstance(problem.loss, Pinball):
        raise InvalidInput(
            "method='forest': the leaves of all trees at once have no closed form under the loss "
            "of quantiles; use method='boosting', or 'tree' for averaged trees."
        )
    return options.method


def choose_objective(options: TuningOptions, problem: Problem, method: str) -> str:
    """Deployed, where leaves can move; without conditioning on the target, the paper's."""
    obstacle = None
    if problem.probabilities or not problem.ensemble.link.linear:
        obstacle = "the model predicts probabilities, whose leaves do not move this way"
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
    """The rate that is given, or the model's own and larger ones; others take whole steps.

    The model's own is what its library tells, else what its leaves tell.
    """
    if method != "boosting":
        return (1.0,)
    if options.learning_rate != "auto":
        return (float(options.learning_rate),)
    told = problem.ensemble.recipe.learning_rate
    own = rate_of_leaves(problem, matrix, ridge) if told is None else told
    if own is None:
        return ()
    rates = [own]
    while rates[-1] < 1:
        rates.append(min(1.0, RAISE * rates[-1]))
    return tuple(rates)
