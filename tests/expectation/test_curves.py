"""Isolation forests, quantile forests, survival curves and tables of scores against enumeration."""

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.ensemble import IsolationForest
from tests.expectation.cases import EXACT
from tests.expectation.naive import enumerate_row
from xgboost import DMatrix, XGBRegressor, train

from knothole.densities.gaussian.density import GaussianMixture
from knothole.expectation.expectation import Expectation
from knothole.sobol import GROUPS
from knothole.trees.curves import Curves, reached, sample_quantiles
from knothole.trees.read import name_levels, read

LEVELS = np.array([0.0, 0.1, 0.5, 0.77, 1.0])
TOLERANCE = 1e-10


def table(n=80, seed=0):
    """Few values, so that rows with missing values have few completions."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 3, n)
    return np.column_stack([group, group + rng.integers(0, 2, n), rng.integers(0, 3, n)]).astype(
        float
    )


def incomplete(X, rate=0.5, seed=1):
    return np.where(np.random.default_rng(seed).random(X.shape) < rate, np.nan, X)


def quantile_forest(X, **settings):
    forests = pytest.importorskip("quantile_forest")
    y = X.sum(axis=1) + np.random.default_rng(2).normal(size=len(X)).round(1)
    return forests.RandomForestQuantileRegressor(6, random_state=0, **settings).fit(X, y)


def asked(model, X, density, seed=0, **options):
    """A model under an exact density, rows with missing values, and all their completions."""
    ensemble = name_levels(read(model), X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = EXACT[density](seed).fit(X, columns=ensemble.columns.describe(X))
    expectation = Expectation.of(ensemble, fitted, **options)
    evidence = expectation.evidence(incomplete(X[:12]))
    rows = [enumerate_row(ensemble, fitted, evidence, row) for row in range(12)]
    return expectation, evidence, rows


def slow_quantiles(values, weights, levels):
    """The step function of weighted samples, averaged over its window piece by piece."""
    order = np.argsort(values)
    values, ends = np.asarray(values)[order], np.cumsum(np.asarray(weights)[order])
    answers = []
    for level in levels:
        low = level * (ends[-1] - 1)
        total, begin = 0.0, 0.0
        for value, end in zip(values, ends, strict=True):
            total += value * max(0.0, min(end, low + 1) - max(begin, low))
            begin = end
        answers.append(total)
    return np.array(answers)


@pytest.mark.parametrize("settings", [{}, {"max_samples_leaf": None, "min_samples_leaf": 5}],
                         ids=["one sample", "all samples"])  # fmt: skip
@pytest.mark.parametrize("density", EXACT)
def test_quantiles_weight_leaf_samples_by_leaf_probabilities(density, settings):
    X = table()
    expectation, evidence, rows = asked(quantile_forest(X, **settings), X, density)
    curves = expectation.original.curves
    found, error = expectation.quantiles_of_samples(evidence, LEVELS)
    assert not error.any() and found.shape == (12, 1, len(LEVELS))
    (samples,) = curves.values()
    for row, answer in enumerate(rows):
        values, weights = [], []
        for probability, leaves in zip(answer.probability, answer.leaves, strict=True):
            for leaf in leaves:
                _, points = samples.jumps[[leaf]].nonzero()
                counts = samples.jumps[[leaf]].toarray()[0, points]
                values += samples.grid[points].tolist()
                weights += (probability * counts).tolist()
        expected = slow_quantiles(values, weights, LEVELS)
        np.testing.assert_allclose(found[row, 0], expected, atol=1e-9)


@pytest.mark.parametrize("density", EXACT)
def test_curves_are_averaged_over_completions(density):
    """Survival curves, as a forest of any library may have them."""
    X = table()
    expectation, evidence, rows = asked(quantile_forest(X), X, density)
    ensemble = expectation.original
    rng = np.random.default_rng(3)
    values = np.sort(rng.random((ensemble.n_leaves, 4)), axis=1)[:, ::-1] / ensemble.n_trees
    jumps = np.diff(values, axis=1, prepend=1 / ensemble.n_trees)
    curves = Curves(np.arange(4.0), sparse.csr_matrix(jumps), 1.0)
    places = np.array([-1, 0, 2, 3])

    def at(probabilities):
        return curves.at(sparse.csr_matrix(probabilities @ curves.jumps), places)

    found, error = expectation.of_curves(evidence, at)
    expected = [
        answer.probability @ values[answer.leaves].sum(axis=1)[:, np.maximum(places, 0)]
        for answer in rows
    ]
    expected = np.where(places < 0, 1.0, expected)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    assert not error.any()


@pytest.mark.parametrize("density", EXACT)
@pytest.mark.parametrize("kind", ["isolation", "cox", "aft"])
def test_expected_scores_times_and_hazard_ratios(kind, density):
    X = table()
    if kind == "isolation":
        model = IsolationForest(n_estimators=6, max_samples=16, random_state=0).fit(X)
    elif kind == "cox":
        model = XGBRegressor(objective="survival:cox", n_estimators=6, max_depth=2, n_jobs=1)
        model.fit(X, 1 + X.sum(axis=1))
    else:
        data = DMatrix(X)
        data.set_float_info("label_lower_bound", 1 + X.sum(axis=1))
        data.set_float_info("label_upper_bound", np.where(X[:, 2] > 0, 1 + X.sum(axis=1), np.inf))
        model = train({"objective": "survival:aft", "max_depth": 2, "nthread": 1}, data, 6)
    expectation, evidence, rows = asked(model, X, density, tol=0.003)
    link = expectation.original.link
    mean, error = expectation.predict(evidence)
    expected = np.array([answer.mean_of(link) for answer in rows])
    assert (np.abs(mean - expected) <= 5 * error + 1e-9).all()
    margin, no_error = expectation.margin(evidence)
    np.testing.assert_allclose(margin, [answer.mean for answer in rows], atol=TOLERANCE)
    assert not no_error.any()


@pytest.mark.parametrize("density", EXACT)
@pytest.mark.parametrize("kind", ["numbers", "categories", "classes"])
def test_tables_of_scores(kind, density):
    """Of numbers and of categories; of three classes the scores, which are linear in the cells."""
    glassbox = pytest.importorskip("interpret.glassbox")
    X = table()
    types = ["continuous" if kind == "numbers" else "nominal"] * 3
    settings = {"outer_bags": 1, "max_rounds": 20, "n_jobs": 1, "feature_types": types}
    if kind == "classes":
        model = glassbox.ExplainableBoostingClassifier(**settings, interactions=0)
        model.fit(X, X[:, 2])
    else:
        model = glassbox.ExplainableBoostingRegressor(**settings, interactions=2)
        model.fit(X, X[:, 0] * X[:, 1] - X[:, 2])
    expectation, evidence, rows = asked(model, X, density)
    margin, error = expectation.margin(evidence)
    np.testing.assert_allclose(margin, [answer.mean for answer in rows], atol=TOLERANCE)
    assert not error.any() and np.ptp(margin) > 0.1


@pytest.mark.parametrize("density", EXACT)
def test_survival_forests(density):
    """Risks and curves of scikit-survival, where it is installed."""
    ensembles = pytest.importorskip("sksurv.ensemble")
    from sksurv.util import Surv

    X = table()
    time = 1 + X.sum(axis=1)
    model = ensembles.RandomSurvivalForest(6, min_samples_leaf=4, random_state=0)
    model.fit(X, Surv.from_arrays(X[:, 2] > 0, time))
    expectation, evidence, rows = asked(model, X, density)
    risk, error = expectation.predict(evidence)
    np.testing.assert_allclose(
        risk.reshape(12), [answer.mean[0] for answer in rows], rtol=TOLERANCE
    )
    assert not error.any()
    for curves in expectation.original.curves.values():
        places = np.arange(len(curves.grid))
        values = np.cumsum(curves.jumps.toarray(), axis=1)

        def at(probabilities, curves=curves, places=places):
            return curves.at(sparse.csr_matrix(probabilities @ curves.jumps), places)

        found, error = expectation.of_curves(evidence, at)
        expected = [
            curves.start + answer.probability @ values[answer.leaves].sum(axis=1) for answer in rows
        ]
        np.testing.assert_allclose(found, expected, atol=TOLERANCE)
        assert not error.any() and np.ptp(found, axis=0).max() > 0.05


# ---- by draws ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn():
    """A quantile forest under a Gaussian mixture, and rows of which some have exact answers."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 1)) + 0.7 * rng.normal(size=(300, 4))
    model = quantile_forest(X, max_depth=4, max_samples_leaf=None)
    ensemble = read(model)
    density = GaussianMixture(2, random_state=0).fit(X, columns=ensemble.columns.describe(X))
    return ensemble, density, incomplete(X[:60], 0.45)


def test_groups_of_draws_are_those_of_margins(drawn):
    ensemble, density, rows = drawn
    expectation = Expectation.of(ensemble, density, tol=None)
    evidence = expectation.evidence(rows)
    engine = expectation.monte_carlo
    groups = engine.leaf_probabilities_by_group(evidence)
    together = groups.toarray().reshape(len(rows), GROUPS, -1).mean(axis=1)
    np.testing.assert_allclose(together, engine.leaf_probabilities(evidence).toarray(), atol=1e-12)
    margins = (groups @ engine.value).reshape(len(rows), GROUPS, -1) + ensemble.base
    np.testing.assert_allclose(margins, engine.group_margins(evidence, range(1)), atol=1e-10)


def test_errors_of_drawn_quantiles_hold(drawn):
    """Against many times as many draws; exact where a single number is missing."""
    ensemble, density, rows = drawn

    def quantiles(tol, seed):
        expectation = Expectation.of(ensemble, density, tol=tol, seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # not every row can be so exact
            return expectation.quantiles_of_samples(
                expectation.evidence(rows), np.array([0.1, 0.5, 0.9])
            )

    truth, small = quantiles(0.0005, 1)
    found, error = quantiles(None, 2)
    n_missing = np.isnan(rows).sum(axis=1)
    assert not error[n_missing <= 1].any() and (error[n_missing >= 2] > 0).any()
    np.testing.assert_allclose(found[n_missing <= 1], truth[n_missing <= 1], atol=1e-9)
    several = n_missing >= 2
    score = (np.abs(found - truth) / np.maximum(np.hypot(error, small), 1e-12))[several]
    assert np.mean(score < 2) > 0.9 and np.mean(score < 4) > 0.98


def test_complete_rows_have_no_error_and_no_rows_have_none(drawn):
    ensemble, density, rows = drawn
    expectation = Expectation.of(ensemble, density)
    complete = np.nan_to_num(rows)

    def answer(probabilities):
        return sample_quantiles(ensemble.curves, probabilities, LEVELS)

    found, error = expectation.of_curves(expectation.evidence(complete), answer)
    leaves = reached(ensemble.leaves(complete), ensemble.n_leaves)
    assert np.array_equal(found, answer(leaves)) and not error.any()
    nothing, _ = expectation.of_curves(expectation.evidence(complete[:0]), answer)
    assert nothing.shape == (0, 1, len(LEVELS))
