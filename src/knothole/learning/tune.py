"""``tune``: new leaf values for a model, from rows with holes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.densities.base import Density
from knothole.errors import InvalidInput
from knothole.learning import deployed, solvers
from knothole.learning.conditioning import Conditioned, Form, without_unrecorded
from knothole.learning.defaults import (
    Method,
    Objective,
    choose_method,
    choose_objective,
    choose_rate,
    choose_ridge,
)
from knothole.learning.draw_matrix import DRAWS
from knothole.learning.problem import Problem
from knothole.learning.solvers import Settings, Solution
from knothole.tables.encoding import row_weights
from knothole.tables.holes import HoleRule, Holes
from knothole.trees.ensemble import Ensemble
from knothole.trees.subset import some_trees


@dataclass(frozen=True, eq=False)
class TuningSummary:
    """What tuning did.

    Attributes
    ----------
    method : {"tree", "forest", "boosting"}
    loss : {"squared error", "cross-entropy", "log loss"}
    before, after : float
        The loss of a row, of the old and the new leaves, without the ridge: the squared error of
        expected predictions where the ``objective`` is "deployed"; otherwise the expected loss
        under the density, of the whole model or (mean over trees) of each by itself. The deployed
        error of old leaves on the rows that they were trained on may be the lower one. Without a
        ridge "tree" and "forest" never raise the expected loss (a ridge may: what they minimise
        is the loss and the ridge together). "boosting" may, above all at a learning rate that was
        given, because it does not go on from the old leaves: each tree is fitted anew, given only
        those before it, and is not looked at again.
    error : float
        Standard error of ``after``, 0 where it is exact: from draws that took no part, or from
        the standard errors of the deployed predictions.
    exact : bool
        Whether holes were integrated exactly all the way, not by completions.
    unreached : int array
        Leaves that no row reaches. They keep their value if the ridge is 0.
    conditioned : {"none", "given", "labels", "values", "scores"}
        How the density knew y: not at all; the density passed in had a target; as classes; as
        values; as normal scores.
    samples : {"whole table", "bootstrap samples"}
        Rows that trees and their densities were given.
    solver : str
        How systems of equations were solved.
    steps : int
        Steps of the solver that each lower the expected loss (1 for closed forms).
    learning_rate : float
        Part of its best values that each tree took on, the largest if outputs differ; 1 but for
        "boosting".
    objective : {"expected", "deployed"}
        Which loss was lowered in the end.
    moved : int
        Trees whose leaves have moved on from the least expected loss.
    """

    method: str
    loss: str
    before: float
    after: float
    error: float
    exact: bool
    unreached: NDArray[np.intp] = field(repr=False)
    conditioned: str
    samples: str
    solver: str
    steps: int
    learning_rate: float = 1.0
    objective: str = "expected"
    moved: int = 0


@dataclass(frozen=True, eq=False)
class Tuned:
    """A tuned model.

    Attributes
    ----------
    ensemble : Ensemble
        The same trees with new leaf values; :func:`knothole.trees.write.write` puts them into
        the user's own model.
    density : Density
        For predictions: the one given, over X alone unless it was given with a target. Where that
        has "not recorded" as a state and every NaN is a hole, one that was learned without it.
    joint : Density
        What training holes were filled from: over (X, y) if conditioned on the target.
    summary : TuningSummary
    """

    ensemble: Ensemble
    density: Density
    joint: Density
    summary: TuningSummary


def tune(
    ensemble: Ensemble,
    density: Density,
    X: Any,
    y: Any,
    *,
    ridge: float | Literal["auto"] = "auto",
    sample_weight: Any = None,
    method: Method = "auto",
    objective: Objective = "auto",
    condition_on_target: bool = True,
    target_form: Form = "auto",
    holes: Holes = "all",
    integrate: NDArray[np.bool_] | None = None,
    counts: NDArray[np.integer[Any]] | None = None,
    learning_rate: float | Literal["auto"] = "auto",
    reach: Literal["auto", "exact", "completions"] = "auto",
    draws: int = 64,
    seed: int = 0,
    verbose: bool = False,
    threads: int | None = None,
) -> Tuned:
    """Leaf values that suit rows with holes (Props. 2 to 4, and a step past them).

    Regressions (identity link) minimise the expected squared error, averaged classifiers the
    expected cross-entropy of each tree, boosted classifiers the expected log loss. The leaves of
    regressions then move on towards the least error of the predictions that are deployed.

    Parameters
    ----------
    ensemble : Ensemble
        What a reader made of the model.
    density : Density
        Fitted on the model's columns; see :meth:`knothole.reach.expectation.Expectation.of`.
    X : table
        Training rows.
    y : array (rows,) or (rows, outputs)
        Their targets, or labels of classes.
    ridge : float or "auto"
        Lambda, in rows: what a leaf adds to the margin is drawn to 0, and the leaves of models
        without a base score to the mean (:mod:`knothole.learning.problem`). "auto" is 0 for
        trees that are averaged (but for a single classification tree), whose leaves may hold one
        row, and otherwise 1.
    sample_weight : array (rows,), optional
    method : {"auto", "tree", "forest", "boosting"}
        "tree": each tree predicts y by itself (Prop. 2); for averaged forests, and for a single
        tree. "forest": all leaves at once (Prop. 3). "boosting": each tree given the ones before
        it (Prop. 4), at the model's own learning rate. "auto": "tree" where that is possible,
        "boosting" for trees that are added up. "forest" has the least expected loss on the
        training rows, but of many trees that were grown for small steps it keeps no trace of
        them: it overfits.
    objective : {"auto", "expected", "deployed"}
        "expected" is the paper's: the expected loss. "deployed" goes on from there towards the
        least squared error of expected predictions (:mod:`knothole.learning.deployed`), for
        "tree" and "boosting" of regressions; trees with more than 1,024 leaves stay behind.
        "auto" is "deployed" where that is possible and ``condition_on_target`` is True.
    condition_on_target : bool
        Whether holes are filled from p(x_m | x_o, y), with a density over (X, y): ``density``
        itself if it was fitted with a target, otherwise one like it that is fitted here. False
        is the paper's p(x_m | x_o).
    target_form : {"auto", "values", "scores"}
        How a numeric target is given to that density; "auto" goes by held-out log p(x_o | y).
    holes : {"all", "auto"} or bool array
        Which NaN are integrated over; see :mod:`knothole.tables.holes`.
    integrate : bool (columns,), optional
        What ``holes="auto"`` stands for; see :meth:`knothole.reach.expectation.Expectation.of`.
    counts : int array (trees, rows), optional
        How often each row is in each tree's own sample
        (:func:`knothole.trees.libraries.sklearn.bootstrap.bootstrap_counts`). Each tree is then
        tuned on its sample, against a density learned on it; on the whole table if all counts are
        1. For "tree" only.
    learning_rate : float or "auto"
        Part of its best values that each tree takes on, for "boosting". "auto" is the rate that
        the model was trained with, as its leaves tell it (:mod:`knothole.learning.rates`): from
        complete training rows the leaves that come out are then those of the model itself. It is
        raised, up to 1, where the expected loss would otherwise rise: with few trees, small steps
        do not get as far on rows with holes. The paper has 1.
    reach : {"auto", "exact", "completions"}
        How holes are integrated. "auto" is exact where the density allows and pairs of trees
        are few; log losses always need completions.
    draws : int
        Completions of each row, a multiple of 64, for the expected loss. Deployed predictions
        have as many as :meth:`knothole.reach.expectation.Expectation.of` gives them.
    seed : int
        Of completions.
    verbose : bool
        Whether to show progress on the error stream.
    threads : int, optional
        See :func:`knothole.compiled.threads.thread_count`. The result does not depend on it.

    Examples
    --------
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> from knothole.densities.mixture.density import Mixture
    >>> from knothole.trees.read import read
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2))
    >>> y = X[:, 0] + X[:, 1]
    >>> X[rng.random(X.shape) < 0.3] = np.nan
    >>> tree = read(DecisionTreeRegressor(max_depth=3, random_state=0).fit(X, y))
    >>> tuned = tune(tree, Mixture(4, random_state=0).fit(X), X, y)
    >>> tuned.summary.method, tuned.summary.exact, tuned.summary.after < tuned.summary.before
    ('tree', True, True)
    """
    words = _words(draws)
    used = np.flatnonzero(ensemble.tree_weight)
    if not len(used):
        raise InvalidInput("ensemble has no tree with a weight other than 0: nothing to tune.")
    part, leaves = some_trees(ensemble, used)
    matrix = density.columns_.matrix(X)
    problem = Problem.of(part, y, row_weights(sample_weight, len(matrix)))
    ridge = choose_ridge(problem, ridge)
    chosen = choose_method(problem, method)
    aim = choose_objective(problem, chosen, objective, condition_on_target)
    rate = choose_rate(problem, chosen, learning_rate, matrix, ridge)
    settings = Settings(
        ridge, rate, learning_rate == "auto", reach, words, seed, threads, verbose, integrate
    )
    table = _as_read(HoleRule.of(density.columns_, ensemble.sentinel), X, matrix)
    if isinstance(holes, str) and holes == "all":
        density = without_unrecorded(density, table, problem.row_weight)
    own_holes = HoleRule.of(density.columns_, ensemble.sentinel).read(matrix, holes)[1]
    known = Conditioned.of(
        density,
        table,
        own_holes,
        y=np.asarray(y),
        row_weight=problem.row_weight,
        condition=condition_on_target,
        labels=ensemble.classes is not None or not ensemble.link.linear,
        form=target_form,
    )
    counts = _checked_counts(counts, chosen, ensemble, len(matrix))
    if counts is not None:
        solution = solvers.by_sample(problem, known, matrix, holes, counts[used], settings)
    else:
        expectation = settings.expectation(part, known.density)
        evidence = expectation.evidence_of(matrix, holes, known.target)
        solve = {"tree": solvers.by_tree, "forest": solvers.forest, "boosting": solvers.boosting}
        solution = solve[chosen](problem, expectation, evidence, settings)
    if aim == "deployed":
        rows = settings.expectation(part, density).evidence_of(matrix, holes)
        solution = deployed.moved(
            problem, density, rows, solution, settings,
            in_turn=chosen == "boosting", counts=None if counts is None else counts[used],
        )  # fmt: skip
    summary = TuningSummary(
        method=chosen,
        loss=solution.loss,
        before=solution.before,
        after=solution.after,
        error=solution.error,
        exact=solution.exact,
        unreached=leaves[solution.unreached],
        conditioned=known.form,
        samples="whole table" if counts is None else "bootstrap samples",
        solver=solution.solver,
        steps=solution.steps,
        learning_rate=float(solution.rates.max()),
        objective=aim,
        moved=solution.moved,
    )
    value = ensemble.value.copy()
    value[leaves] = _values(problem, solution, ridge)
    return Tuned(ensemble.with_values(value), density, known.density, summary)


def _values(problem: Problem, solution: Solution, ridge: float) -> Floats:
    """Leaf values; leaves that nothing was learned about keep theirs."""
    value = problem.values(solution.theta)
    if ridge == 0:
        value[solution.unreached] = problem.ensemble.value[solution.unreached]
    return value


def _as_read(rule: HoleRule, X: Any, matrix: Floats) -> Any:
    """The table as a density is to learn it, with NaN where the model takes a value for it."""
    values, _ = rule.read(matrix)
    if values is matrix or np.array_equal(values, matrix, equal_nan=True):
        return X
    if any(column.levels for column in rule.columns):
        raise InvalidInput(
            "X holds values that the model takes for NaN, beside categories; replace them by "
            "NaN before tuning."
        )
    return values


def _checked_counts(
    given: Any, method: str, ensemble: Ensemble, n_rows: int
) -> NDArray[np.integer[Any]] | None:
    if given is None:
        return None
    counts: NDArray[np.integer[Any]] = np.asarray(given)
    if counts.shape != (ensemble.n_trees, n_rows) or counts.dtype.kind not in "iu":
        raise InvalidInput(
            f"counts must be whole numbers of shape {(ensemble.n_trees, n_rows)}, one for each "
            f"tree and row; got {counts.dtype} of shape {counts.shape}."
        )
    if (counts < 0).any() or not counts.any(axis=1).all():
        raise InvalidInput("counts must not be negative, and every tree needs a row.")
    if method != "tree":
        raise InvalidInput(
            f"counts: only trees that are tuned by themselves have samples of their "
            f"own, but the method is {method!r}."
        )
    return None if (counts == 1).all() else counts


def _words(draws: int) -> int:
    if draws < DRAWS or draws % DRAWS:
        raise InvalidInput(f"draws must be a multiple of {DRAWS}; got {draws!r}.")
    return int(draws) // DRAWS
