"""``refit``: new leaf values for a model, from rows with missing values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.columns.evidence import mark_missing
from knothole.columns.read import row_weights
from knothole.densities.base import Density
from knothole.densities.held_out import folds, sample_rows
from knothole.errors import InvalidInput
from knothole.expectation.expectation import Expectation
from knothole.leaves import deployed
from knothole.leaves.conditioning import Conditioned, TrainingTable
from knothole.leaves.losses import Location, Pinball
from knothole.leaves.options import RefitOptions, RefitSummary
from knothole.leaves.problem import Problem, margin_targets, rate_of_leaves
from knothole.leaves.solve import solve
from knothole.leaves.sums import Summands
from knothole.missingness.inference import NATIVE
from knothole.out_of_core.partitions import Partition, Sample, weights_of
from knothole.trees.ensemble import Ensemble, some_trees

# The most leaves of trees with common outputs that are solved for at once: 3 GB.
FOREST_LEAVES = 20_000
# Factor by which a learning rate is raised if the expected loss is above that of the old leaves.
RAISE = 1.25
# Learning rates to choose from on held-out rows, if the model's own is unknown.
RATES = (0.03, 0.1, 0.3, 1.0)


@dataclass(frozen=True, eq=False)
class Refitted:
    """A refitted model.

    Attributes
    ----------
    ensemble : Ensemble
        The same trees with new leaf values; :func:`knothole.trees.read.write` puts them into
        the user's own model.
    density : Density
        For predictions: the given one, over X alone unless it was given with a target. If it has
        the state "not recorded" but every NaN is integrated over, one that was learned without it.
    joint : Density
        The density under which missing training values were integrated: over (X, y) if conditioned
        on the target.
    summary : RefitSummary
    """

    ensemble: Ensemble
    density: Density
    joint: Density
    summary: RefitSummary


def refit(
    ensemble: Ensemble,
    density: Density,
    matrix: Floats,
    y: Any,
    options: RefitOptions = RefitOptions(),  # noqa: B008 (frozen)
    *,
    sample_weight: Any = None,
    integration: Literal["auto", "exact", "monte-carlo"] = "auto",
    drawn: Sample | None = None,
) -> Refitted:
    """Leaf values for rows with missing values (Props. 2 to 4, and a move beyond them).

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
    options : RefitOptions
    sample_weight : array (rows,), optional
    integration : {"auto", "exact", "monte-carlo"}
        How missing values are integrated. "auto" is exact where the density allows.
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
    >>> new = refit(tree, Mixture(4, random_state=0).fit(X), X, y)
    >>> new.summary.method, new.summary.exact, new.summary.after < new.summary.before
    ('tree', True, True)
    """
    used = np.flatnonzero(ensemble.tree_weight)
    if not len(used):
        raise InvalidInput("ensemble has no tree with a weight other than 0: nothing to refit.")
    part, leaves = some_trees(ensemble, used)
    problem = Problem.of(part, y, row_weights(sample_weight, len(matrix)))
    given, options = options, resolved(options, problem)
    rates = choose_rates(options, problem, matrix)
    if not rates:
        rate = _cross_validated_rate(
            ensemble, density, matrix, np.asarray(y), given, problem.row_weight
        )
        rates = (rate,)

    values, missing = mark_missing(matrix, ensemble.sentinel, density.columns_, native=True)
    training = TrainingTable(values, missing, problem.row_weight)
    if options.nan_policy == "lost":
        training = replace(training, missing_mask=None)
        density = training.without_unrecorded(density)
    known = Conditioned(density, None, "none")
    if options.condition_on_target:
        labels = ensemble.classes is not None or not ensemble.link.linear
        known = Conditioned.of(density, training, np.asarray(y), labels)

    expectation = Expectation.of(part, known.density, integration, reading=NATIVE)
    evidence = expectation.evidence_of(matrix, None, known.target)
    if isinstance(problem.loss, Pinball) and not np.isnan(evidence.points).any():
        options = options.changed(objective="expected")  # see knothole.leaves.deployed
    everything = None
    if drawn is not None and not drawn.whole:
        numbers = len(expectation.columns.variables) + 2 * part.n_outputs
        everything = drawn.parts.made(
            _summands, expectation, known, np.asarray(y), problem.offset,
            size=8.0 * numbers * drawn.total,
        )  # fmt: skip
    solution = solve(problem, expectation, evidence, options, rates, everything)
    if options.objective == "deployed":
        without_y = Expectation.of(part, density, integration, reading=NATIVE)
        evidence = without_y.evidence_of(matrix)
        solution = deployed.move(solution, problem, without_y, evidence, options)

    value, new = ensemble.value.copy(), problem.values(solution.theta)
    unreached = solution.summary.unreached
    if options.ridge == 0:  # leaves without evidence keep their values
        new[unreached] = part.value[unreached]
    value[leaves] = new
    summary = replace(solution.summary, unreached=leaves[unreached], conditioned=known.form)
    return Refitted(ensemble.with_values(value), density, known.density, summary)


def _summands(
    part: Partition,
    expectation: Expectation,
    known: Conditioned,
    y: NDArray[Any],
    offset: Floats,
) -> Summands | None:
    """The rows of a partition to sum over; None if there are none.

    ``y`` are the targets in memory, which the ``known`` density was fitted with; ``offset`` is
    subtracted from targets.
    """
    _, table, part_y, _ = part
    if not len(table):
        return None
    targets, matrix = np.asarray(part_y), expectation.columns.matrix(table)
    evidence = expectation.evidence_of(matrix, None, known.given(y, targets))
    encoded = margin_targets(expectation.original, targets, len(matrix))
    return Summands(evidence, encoded - offset, weights_of(part))


# ---- what "auto" stands for ------------------------------------------------------------------


def resolved(options: RefitOptions, problem: Problem) -> RefitOptions:
    """The options with a ridge, a method and an objective in place of "auto"."""
    method = choose_method(options, problem)
    return options.changed(
        ridge=choose_ridge(options, problem),
        method=method,
        objective=choose_objective(options, problem, method),
    )


def choose_ridge(options: RefitOptions, problem: Problem) -> float:
    """The ridge. By default 0 for averaged trees, whose leaves may hold a single row.

    A single classification tree is the exception: nothing else keeps its probabilities from 0.
    It is 0 for quantiles too: no library has a ridge for quantiles in leaves.
    """
    if options.ridge != "auto":
        return float(options.ridge)
    alone = problem.probabilities and problem.ensemble.n_trees == 1
    averaged = problem.averaged and not alone
    return 0.0 if averaged or isinstance(problem.loss, Pinball) else 1.0


def choose_method(options: RefitOptions, problem: Problem) -> Literal["tree", "forest", "boosting"]:
    """Each tree on its own if that is possible, otherwise in turn."""
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
            f"probabilities only if each tree is refitted by itself; use method='tree'."
        )
    if options.method == "forest" and isinstance(problem.loss, Pinball):
        raise InvalidInput(
            "method='forest': the leaves of all trees at once have no closed form under the loss "
            "of quantiles; use method='boosting', or 'tree' for averaged trees."
        )
    counts = np.diff(problem.ensemble.leaf_start)
    leaves = max(int(counts[trees].sum()) for trees in problem.groups())
    if options.method == "forest" and leaves > FOREST_LEAVES:
        raise InvalidInput(
            f"method='forest': a matrix of {leaves:,} leaves squared is too large, at most "
            f"{FOREST_LEAVES:,} can be solved for at once; use method='boosting'."
        )
    return options.method


def choose_objective(
    options: RefitOptions, problem: Problem, method: str
) -> Literal["expected", "deployed"]:
    """Deployed if leaves can move; without conditioning on the target, the paper's objective."""
    obstacle = None
    if problem.probabilities or not problem.ensemble.link.linear:
        obstacle = "the model predicts probabilities, whose leaves do not move this way"
    elif method == "forest":
        obstacle = "leaves move tree by tree, but method='forest' takes all trees at once"
    elif not deployed.can_move(problem.ensemble).any():
        obstacle = f"every tree has more than {deployed.MOST_LEAVES:,} leaves"
    if options.objective == "deployed" and obstacle is not None:
        raise InvalidInput(f"objective='deployed': {obstacle}; use objective='expected'.")
    if options.objective == "auto":
        return "deployed" if obstacle is None and options.condition_on_target else "expected"
    return options.objective


def choose_rates(options: RefitOptions, problem: Problem, matrix: Floats) -> tuple[float, ...]:
    """Learning rates for boosting, to try until the loss does not increase.

    The given rate, or the model's own and larger ones; 1 for other methods. The model's own rate
    is from its library or estimated from its leaves; without either the result is empty.
    """
    if options.method != "boosting":
        return (1.0,)
    if options.learning_rate != "auto":
        return (float(options.learning_rate),)
    told = problem.ensemble.recipe.learning_rate
    own = rate_of_leaves(problem, matrix, float(options.ridge)) if told is None else told
    if own is None:
        return ()
    rates = [own]
    while rates[-1] < 1:
        rates.append(min(1.0, RAISE * rates[-1]))
    return tuple(rates)


def _cross_validated_rate(
    ensemble: Ensemble,
    density: Density,
    matrix: Floats,
    y: NDArray[Any],
    options: RefitOptions,
    weight: Floats,
) -> float:
    """The learning rate whose leaves have the least loss on held-out rows.

    To compare rates, the density need not be the one over (X, y).
    """
    chosen = sample_rows(len(matrix))
    plain = options.changed(condition_on_target=False, verbose=False)
    losses = dict.fromkeys(RATES, 0.0)
    for rate, parts in product(RATES, folds(len(chosen))):
        train, held = (chosen[part] for part in parts)
        how = plain.changed(learning_rate=rate)
        refitted = refit(
            ensemble, density, matrix[train], y[train], how, sample_weight=weight[train]
        )
        expectation = Expectation.of(refitted.ensemble, refitted.density, tol=None, reading=NATIVE)
        margin, _ = expectation.margin(expectation.evidence_of(matrix[held]))
        problem = Problem.of(refitted.ensemble, y[held], weight[held])
        losses[rate] += float(weight[held] @ problem.loss.value(margin, problem.y))
    return min(losses, key=losses.__getitem__)
