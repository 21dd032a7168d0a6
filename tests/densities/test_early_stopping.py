"""Training that rows held out stop in time, and the parameters that were best for them."""

from dataclasses import replace

import numpy as np
import pytest

from knothole.columns.columns import Columns
from knothole.densities.em import PATIENCE, Training, WeightedRows, train
from knothole.densities.gaussian.learner import ROWS_TO_GROW, GaussianLearner
from knothole.densities.mixture.density import ProductLearner
from knothole.densities.search import learn, split

TRAINING = Training(60, tol=0, n_init=1, fraction=0.3, may_mask=False, seed=0, report=print)


def weighted_rows(n, d):
    X = np.random.default_rng(0).normal(size=(n, d))
    columns = Columns.infer(X)
    evidence = columns.evidence(columns.matrix(X))
    return WeightedRows(columns.variables, evidence, np.linspace(0.2, 3, n), np.arange(n))


def product_learner(rows):
    names = [variable.name for variable in rows.variables]
    return ProductLearner.of(rows, TRAINING, {}, dict.fromkeys(names, "gaussian"))


def gaussian_learner(rows):
    by_rank = np.zeros(len(rows.variables), dtype=np.bool_)
    return GaussianLearner.of(rows, TRAINING, by_rank)


@pytest.mark.parametrize("learner_of", [product_learner, gaussian_learner])
def test_rows_held_out_stop_a_mixture_that_has_too_many_components(learner_of):
    learner, rows = split(learner_of(weighted_rows(150, 3)), TRAINING.fraction)
    held = learner.encode(rows)
    run = learner.fit(12, 0.01, held)
    log_p, weight = learner.log_densities(run.parameters, held), held.weight
    assert run.converged and run.steps == len(run.objective) - PATIENCE
    assert run.held_out == learner.score(run.parameters, held)
    assert run.held_out == pytest.approx(np.average(log_p, weights=weight))
    assert abs(run.held_out - log_p.mean()) > 1e-3
    free = learner.fit(12, 0.01)
    assert len(free.objective) > len(run.objective)
    assert run.held_out > learner.score(free.parameters, held)


@pytest.mark.parametrize("learner_of", [product_learner, gaussian_learner])
def test_learning_holds_rows_out_and_ends_on_all_of_them(learner_of):
    learner = learner_of(weighted_rows(150, 3))
    _, run = learn([learner], [12], 0.01)
    some, rows = split(learner, TRAINING.fraction)
    stopped = some.fit(12, 0.01, some.encode(rows))
    assert run.held_out == stopped.held_out and run.steps == stopped.steps
    assert learner.score(run.parameters, learner.encoded) > learner.score(
        stopped.parameters, learner.encoded
    )


def test_what_had_the_best_score_is_kept_and_misses_in_a_row_stop():
    """Steps count up; scores rise, miss twice, rise once more, and then only miss."""
    scores = dict(enumerate([-np.inf, 1.0, 2.0, 1.5, 1.9, 3.0, 2.5, 3.0, 2.9, 9.0]))
    run = train(lambda x: (10.0 * x, x + 1), 0, 0.0, 1.0, TRAINING, scores.__getitem__)
    assert (run.parameters, run.steps, run.held_out) == (5, 5, 3.0)
    assert run.converged and len(run.objective) == 8


def test_training_stops_when_a_step_gains_too_little_per_row():
    """Steps gain 8, 4, 2 and so on: 2 is less than 0.03 for each of 100 rows."""
    training = replace(TRAINING, tol=0.03)
    run = train(lambda x: (16 - 2.0 ** (4 - x), x + 1), 0, 0.0, 100.0, training)
    assert run.objective.tolist() == [0, 8, 12, 14]
    assert (run.parameters, run.steps, run.converged) == (3, 3, True)


def test_training_looks_through_a_plateau():
    """Small gains that hardly shrink promise more of them."""
    gains = [1.0, 0.031, 0.029, 0.03, 0.5, 0.1, 0.01, 0.001]
    objective = np.concatenate([[0.0], np.cumsum(gains)])
    run = train(lambda x: (objective[x], x + 1), 0, 0.0, 1.0, replace(TRAINING, tol=0.03))
    assert len(run.objective) == 8 and run.converged


def test_components_are_grown_once():
    """Of more rows than say which components to split, too: larger sizes go on from smaller."""
    learner = gaussian_learner(weighted_rows(ROWS_TO_GROW + 100, 2))
    small, large = (learner.start(size, learner.prior(1.0), 0) for size in (2, 4))
    assert set(learner.growing.sizes_grown) == {1, 2, 4}
    assert learner.growing.sizes_grown[2] is small and learner.growing.sizes_grown[4] is large
    assert learner.start(4, learner.prior(10.0), 0) is large
