"""The same bits for any number of threads, ours or the caller's; forests and tables of size."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.expectation.cases import EXACT
from tests.trees.generate import random_ensemble

from knothole.densities.gaussian.density import GaussianMixture
from knothole.expectation.expectation import Expectation

DENSITIES = {**EXACT, "GaussianMixture": lambda seed: GaussianMixture(2, random_state=seed)}
# Several blocks of every engine.
ROWS = 1100


@pytest.fixture(scope="module", params=DENSITIES)
def expectation(request):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 4)) + rng.integers(0, 3, (150, 1))
    ensemble = random_ensemble(seed=3, levels=(0,) * 4, n_trees=6, depth=4)
    columns = ensemble.columns.describe(X)
    return Expectation.of(ensemble, DENSITIES[request.param](0).fit(X, columns=columns))


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(ROWS, 4))
    X[rng.random(X.shape) < 0.4] = np.nan
    return X


def answers(expectation, X, threads):
    rough = Expectation.of(expectation.original, expectation.density, tol=None)
    probabilities = expectation.leaf_probabilities(expectation.evidence(X), threads=threads)
    moments = expectation.moments(expectation.evidence(X[:300]), threads=threads)
    return [
        *expectation.margin(expectation.evidence(X), threads=threads),
        probabilities.indptr, probabilities.indices, probabilities.data,
        moments.mean, moments.variance,
        *rough.quantiles(expectation.evidence(X[:300]), [0.1, 0.9], threads=threads),
    ]  # fmt: skip


def test_the_number_of_threads_does_not_matter(expectation, rows):
    alone = answers(expectation, rows, 1)
    for threads in (2, 5):
        for one, other in zip(alone, answers(expectation, rows, threads), strict=True):
            np.testing.assert_array_equal(one, other)


def test_variance_is_never_negative_and_zero_for_complete_rows(expectation, rows):
    """One leaf of 1e6 beside others of 1e-3: what cancels must not show."""
    value = expectation.original.value.copy()
    value[::3] = 1e6
    value[1::3] *= 1e-3
    large = Expectation.of(expectation.original.with_values(value), expectation.density)
    complete = np.where(np.isnan(rows[:100]), 0.5, rows[:100])
    for method in ("auto", "monte-carlo", "exact") if large.exact else ("auto",):
        assert (large.moments(large.evidence(rows[:100]), method=method).variance >= 0).all()
        whole = large.moments(large.evidence(complete), method=method)
        assert not whole.variance.any() and not whole.std_error.any()
        np.testing.assert_array_equal(whole.mean, large.original.margin(complete, 1))


def test_many_python_threads_at_once(expectation, rows):
    evidence = expectation.evidence(rows)
    expected, _ = expectation.margin(evidence, threads=1)
    with ThreadPoolExecutor(8) as pool:
        tasks = [pool.submit(expectation.margin, evidence, threads=2) for _ in range(16)]
    for task in tasks:
        np.testing.assert_array_equal(task.result()[0], expected)


def test_rows_do_not_depend_on_their_neighbours(expectation, rows):
    some = np.array([3, 700, 40])
    whole, _ = expectation.margin(expectation.evidence(rows))
    part, _ = expectation.margin(expectation.evidence(rows[some]))
    np.testing.assert_array_equal(part, whole[some])


@pytest.mark.slow
@pytest.mark.parametrize("density", ["Mixture", "LatentTree", "GaussianMixture"])
def test_a_forest_of_a_thousand_trees_over_200_columns(density):
    assert_forest_works(density, n_trees=1000)


@pytest.mark.parametrize("density", DENSITIES)
def test_a_forest_over_200_columns(density):
    """The same in small form."""
    assert_forest_works(density, n_trees=60)


def assert_forest_works(density, n_trees):
    """Depth 8, 200 columns."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 5)) @ rng.normal(size=(5, 200)) + rng.normal(size=(300, 200))
    ensemble = random_ensemble(seed=0, levels=(0,) * 200, n_trees=n_trees, depth=8)
    columns = ensemble.columns.describe(X)
    expectation = Expectation.of(ensemble, DENSITIES[density](0).fit(X, columns=columns))
    rows = X[:40].copy()
    rows[rng.random(rows.shape) < 0.3] = np.nan
    margin, error = expectation.margin(expectation.evidence(rows), threads=1)
    assert np.isfinite(margin).all() and np.isfinite(error).all()
    probabilities = expectation.leaf_probabilities(expectation.evidence(rows[:5]), threads=1)
    np.testing.assert_allclose(probabilities.sum(axis=1), n_trees, rtol=1e-9)
    if expectation.exact:
        weighted = ensemble.value[:, 0] * ensemble.tree_weight[ensemble.leaf_tree]
        np.testing.assert_allclose(
            probabilities @ weighted + ensemble.base[0], margin[:5, 0], rtol=1e-9
        )
    np.testing.assert_array_equal(
        expectation.margin(expectation.evidence(X[:5]))[0], ensemble.margin(X[:5], 1)
    )
