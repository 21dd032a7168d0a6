"""Training that rows held out stop in time, and the parameters that were best for them."""

import numpy as np
import pytest

from knothole.densities.em import PATIENCE, Training, train
from knothole.densities.gaussian.learner import Covariances, GaussianLearner
from knothole.densities.mixture.learner import ProductLearner
from knothole.densities.rows import WeightedRows
from knothole.densities.search import split
from knothole.tables.columns import Columns

TRAINING = Training(60, tol=0, n_init=1, fraction=0.3, may_mask=False, seed=0, report=print)


def product_learner(rows):
    names = [variable.name for variable in rows.variables]
    return ProductLearner.of(rows, TRAINING, {}, dict.fromkeys(names, "gaussian"))


def gaussian_learner(rows):
    by_rank = np.zeros(len(rows.variables), dtype=np.bool_)
    return GaussianLearner.of(rows, TRAINING, Covariances(), by_rank)


@pytest.mark.parametrize("learner_of", [product_learner, gaussian_learner])
def test_rows_held_out_stop_a_mixture_that_has_too_many_components(learner_of):
    X = np.random.default_rng(0).normal(size=(150, 3))
    columns = Columns.infer(X)
    evidence = columns.evidence(columns.matrix(X))
    rows = WeightedRows(columns.variables, evidence, np.ones(len(X)), np.arange(len(X)))
    fold = split(learner_of(rows), TRAINING.fraction)
    learner, held = fold.usual
    run, log_p, _ = fold.attempt(12, 0.01)
    assert run.converged and run.steps == len(run.objective) - PATIENCE
    assert run.held_out == learner.score(run.parameters, held) == pytest.approx(log_p.mean())
    free = learner.fit(12, 0.01)
    assert len(free.objective) > len(run.objective)
    assert run.held_out > learner.score(free.parameters, held)


def test_what_had_the_best_score_is_kept_and_misses_in_a_row_stop():
    """Steps count up; scores rise, miss twice, rise once more, and then only miss."""
    scores = dict(enumerate([-np.inf, 1.0, 2.0, 1.5, 1.9, 3.0, 2.5, 3.0, 2.9, 9.0]))
    run = train(lambda x: (10.0 * x, x + 1), 0, 0.0, 1.0, TRAINING, scores.__getitem__)
    assert (run.parameters, run.steps, run.held_out) == (5, 5, 3.0)
    assert run.converged and len(run.objective) == 8
