"""``tune``: new leaf values for a model, from rows with holes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.columns.evidence import mark_holes
from knothole.columns.read import row_weights
from knothole.densities.base import Density
from knothole.densities.held_out import folds, sample_rows
from knothole.errors import InvalidInput
from knothole.expectation.expectation import Expectation
from knothole.leaves import solvers
from knothole.leaves.conditioning import Conditioned, TrainingTable
from knothole.leaves.defaults import Settings
from knothole.leaves.deployed import Deployed
from knothole.leaves.in_parts import Reader
from knothole.leaves.losses.pinball import Pinball
from knothole.leaves.options import TuningOptions
from knothole.leaves.problem import Problem
from knothole.leaves.solvers import TuningSummary
from knothole.out_of_core.partitions import Sample
from knothole.trees.ensemble import Ensemble, some_trees

# Learning rates to choose from where nothing tells the model's own, by held-out rows.
RATES = (0.03, 0.1, 0.3, 1.0)


@dataclass(frozen=True, eq=False)
class Tuned:
    """A tuned model.

    Attributes
    ----------
    ensemble : Ensemble
        The same trees with new leaf values; :func:`knothole.trees.read.write` puts them into
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
    matrix: Floats,
    y: Any,
    options: TuningOptions = TuningOptions(),  # noqa: B008 (frozen)
    drawn: Sample | None = None,
) -> Tuned:
    """Leaf values that suit rows with holes (Props. 2 to 4, and a step past them).

    Regressions (identity link) minimise the expected loss that they were trained on: squared error,
    the pinball loss of quantiles and absolute errors, Huber losses. Averaged classifiers have the
    expected cross-entropy of each tree, boosted ones the expected log loss; models of other losses
    are refused. The leaves of regressions then move on towards the least loss of the predictions
    that are deployed.

    Parameters
    ----------
    ensemble : Ensemble
        What a reader made of the model.
    density : Density
        Fitted on the model's columns; see :meth:`knothole.expectation.expectation.Expectation.of`.
    matrix : float64 (rows, columns)
        Training rows, encoded by ``density.columns_.matrix``.
    y : array (rows,) or (rows, outputs)
        Their targets, or labels of classes.
    options : TuningOptions
        All the rest. Its ``counts`` are for "tree" only: each tree is then tuned on its sample,
        against a density learned on it; on the whole table if all counts are 1.
    drawn : Sample, optional
        Where the rows come from, if they are a sample of a table in parts. Leaves are then solved
        for with sums over all its rows; all choices, the density that knows y and the move to
        what is deployed go by the sample.

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
    used = np.flatnonzero(ensemble.tree_weight)
    if not len(used):
        raise InvalidInput("ensemble has no tree with a weight other than 0: nothing to tune.")
    part, leaves = some_trees(ensemble, used)
    weight = row_weights(options.sample_weight, len(matrix))
    problem = Problem.of(part, y, weight, options.ridge_to == "zero")
    settings = Settings.of(options, problem, matrix)
    if not settings.rates:
        rate = _cross_validated_rate(ensemble, density, matrix, np.asarray(y), options)
        return tune(ensemble, density, matrix, y, options.changed(learning_rate=rate), drawn)
    counts = _checked_counts(options.counts, settings.method, ensemble, len(matrix))
    if counts is not None:
        counts = counts[used]

    holes, values = options.holes, mark_holes(matrix, ensemble.sentinel, density.columns_)[0]
    training = TrainingTable(values, None, problem.row_weight)
    if isinstance(holes, str) and holes == "all":
        density = training.without_unrecorded(density)
    own = mark_holes(matrix, ensemble.sentinel, density.columns_, holes)[1]
    training = replace(training, holes=own)
    known = Conditioned(density, None, "none")
    if options.condition_on_target:
        labels = ensemble.classes is not None or not ensemble.link.linear
        known = Conditioned.of(density, training, np.asarray(y), labels, options.target_form)

    deployed = None
    if settings.objective == "deployed":
        expectation = settings.expectation(part, density)
        evidence = expectation.evidence_of(matrix, holes)
        if np.isnan(evidence.points).any() or not isinstance(problem.loss, Pinball):
            deployed = Deployed(problem, expectation, evidence, settings)
        else:
            settings = replace(settings, objective="expected")
    if counts is not None:
        solution = solvers.by_sample(problem, known, training, matrix, counts, settings)
    else:
        expectation = settings.expectation(part, known.density)
        evidence = expectation.evidence_of(matrix, holes, known.target)
        everything = None
        if drawn is not None and not drawn.whole:
            reader = Reader(expectation, known, np.asarray(y), problem.offset, options)
            everything = reader.parts(drawn.parts, drawn.total)
        solution = solvers.solve(problem, expectation, evidence, settings, everything)
    if deployed is not None:
        solution = deployed.moved(solution, counts)

    value, new = ensemble.value.copy(), problem.values(solution.theta)
    unreached = solution.summary.unreached
    if settings.ridge == 0:  # leaves that nothing was learned about keep their values
        new[unreached] = part.value[unreached]
    value[leaves] = new
    samples = "whole table" if counts is None else "bootstrap samples"
    summary = replace(
        solution.summary, unreached=leaves[unreached], conditioned=known.form, samples=samples
    )
    return Tuned(ensemble.with_values(value), density, known.density, summary)


def _cross_validated_rate(
    ensemble: Ensemble, density: Density, matrix: Floats, y: NDArray[Any], options: TuningOptions
) -> float:
    """The learning rate whose leaves are best for rows that they were not learned from.

    For a comparison of rates it need not be the density over (X, y).
    """
    weight = row_weights(options.sample_weight, len(matrix))
    chosen = sample_rows(len(matrix), options.seed)
    plain = options.changed(condition_on_target=False, verbose=False)
    losses = dict.fromkeys(RATES, 0.0)
    for rate, parts in product(RATES, folds(len(chosen))):
        train, held = (chosen[part] for part in parts)
        hide, hidden = (
            options.holes if isinstance(options.holes, str) else options.holes[rows]
            for rows in (train, held)
        )
        how = plain.changed(learning_rate=rate, sample_weight=weight[train], holes=hide)
        tuned = tune(ensemble, density, matrix[train], y[train], how)
        expectation = Expectation.of(tuned.ensemble, tuned.density, tol=None)
        margin, _ = expectation.margin(expectation.evidence_of(matrix[held], hidden))
        problem = Problem.of(tuned.ensemble, y[held], weight[held])
        loss = problem.loss.value(margin[:, :, None], problem.y[:, :, None])[:, 0]
        losses[rate] += float(weight[held] @ loss)
    return min(losses, key=losses.__getitem__)


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
