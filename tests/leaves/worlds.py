"""Small refitting problems, with their expected loss by enumeration of every completion."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from unittest import mock

import numpy as np
from tests.expectation.cases import Case, as_table, random_case
from tests.expectation.naive import enumerate_row

from knothole.columns.evidence import missing_in
from knothole.leaves import draws, solve
from knothole.leaves.options import RefitOptions
from knothole.leaves.problem import Problem
from knothole.leaves.refit import refit as refit_matrix


@dataclass(frozen=True)
class World:
    """A case with targets and weights, and all completions of its rows.

    ``density`` and ``target`` are what completions come from: the case's density and no target,
    unless others are given.
    """

    case: Case
    y: np.ndarray
    weight: np.ndarray
    density: Any = None
    target: Any = None

    @cached_property
    def answers(self):
        density = self.case.density if self.density is None else self.density
        evidence = density.evidence(self.table, self.case.missing_mask, self.target)
        return [
            enumerate_row(self.case.ensemble, density, evidence, row) for row in range(len(self.y))
        ]

    @property
    def table(self):
        return as_table(self.case.density.columns_, self.case.rows)

    @property
    def arguments(self):
        return (self.case.ensemble, self.case.density, self.table, self.y)

    @property
    def options(self):
        return {
            "nan_policy": "native",
            "sample_weight": self.weight,
            "condition_on_target": False,
        }

    def margins(self, theta, trees=None):
        """Margins of every completion of every row, from what each leaf adds to them."""
        ensemble = self.case.ensemble
        width = theta.shape[1]
        for answer in self.answers:
            margin = np.tile(ensemble.base, (len(answer.probability), 1))
            for tree in range(ensemble.n_trees) if trees is None else trees:
                first = ensemble.tree_output[tree]
                margin[:, first : first + width] += theta[answer.leaves[:, tree]]
            yield margin

    def loss(self, theta, trees=None):
        """Expected squared error, summed over rows."""
        total = 0.0
        for y, w, answer, margin in zip(
            self.y, self.weight, self.answers, self.margins(theta, trees), strict=True
        ):
            total += w * answer.probability @ ((y - margin) ** 2).sum(axis=1)
        return total

    def gradient(self, theta, trees=None):
        """The derivative of ``loss`` in every leaf."""
        ensemble = self.case.ensemble
        out = np.zeros_like(theta)
        for y, w, answer, margin in zip(
            self.y, self.weight, self.answers, self.margins(theta, trees), strict=True
        ):
            rest = -2 * w * answer.probability[:, None] * (y - margin)
            for tree in range(ensemble.n_trees):
                first = ensemble.tree_output[tree]
                part = rest[:, first : first + theta.shape[1]]
                np.add.at(out, answer.leaves[:, tree], part)
        return out

    def theta(self, ensemble):
        """What each leaf of an ensemble adds to the margin."""
        return ensemble.value * ensemble.tree_weight[ensemble.leaf_tree][:, None]


def random_world(seed, density="Mixture", n_rows=5, averaged=False, **shape):
    """Targets and weights for a random case; ``averaged`` makes a forest of its trees."""
    case = random_case(seed, density, n_rows=n_rows, **shape)
    # Every NaN of a nullable column is "not recorded".
    case = replace(case, missing_mask=missing_in(case.density.columns_, case.rows))
    rng = np.random.default_rng(seed)
    if averaged:
        ensemble = case.ensemble
        n = ensemble.n_trees
        ensemble = replace(
            ensemble, base=np.zeros_like(ensemble.base), tree_weight=np.full(n, 1 / n)
        )
        case = replace(case, ensemble=ensemble)
    y = rng.normal(size=(n_rows, case.ensemble.n_outputs))
    weight = rng.uniform(0.5, 2.0, n_rows)
    return World(case, y, weight)


def problem_of(world):
    return Problem.of(world.case.ensemble, world.y, world.weight)


def refit(ensemble, density, X, y, *, sample_weight=None, integration="auto", words=1, **options):
    """Refit on a table, with options by name.

    Pairs of trees are integrated exactly however many they are if ``integration`` says so;
    ``words`` of 64 draws have incomplete rows otherwise.
    """
    work = np.inf if integration == "exact" else solve.EXACT_WORK
    with mock.patch.object(solve, "EXACT_WORK", work), mock.patch.object(draws, "WORDS", words):
        return refit_matrix(
            ensemble, density, density.columns_.matrix(X), y, RefitOptions(**options),
            sample_weight=sample_weight, integration=integration,
        )  # fmt: skip
