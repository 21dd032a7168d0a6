"""Leaf probabilities and all that follows from them against enumeration, for exact densities."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expectation.cases import EXACT, as_table, random_case
from tests.expectation.naive import enumerate_row

from knothole.expectation.expectation import Expectation
from knothole.expectation.tolerance import SHARE

TOLERANCE = 1e-10
seeds = st.integers(0, 2**31 - 1)


def answers(case, expectation):
    evidence = expectation.density.evidence(table_of(case), case.missing_mask)
    return [
        enumerate_row(case.ensemble, case.density, evidence, row) for row in range(len(case.rows))
    ]


def table_of(case):
    return as_table(case.density.columns_, case.rows)


@pytest.mark.parametrize("density", EXACT)
@settings(max_examples=8, deadline=None)
@given(seed=seeds, shape=st.sampled_from([(1, 1), (1, 2), (2, 2)]))
def test_margin_leaf_probabilities_and_moments_equal_enumeration(density, seed, shape):
    case = random_case(seed, density, n_rows=3, width=shape[0], n_outputs=shape[1])
    expectation = Expectation.of(case.ensemble, case.density)
    table = table_of(case)
    expected = answers(case, expectation)

    margin, error = expectation.margin(expectation.density.evidence(table, case.missing_mask))
    np.testing.assert_allclose(margin, [a.mean for a in expected], atol=TOLERANCE)
    assert not error.any()

    probabilities = expectation.leaf_probabilities(
        expectation.density.evidence(table, case.missing_mask)
    ).toarray()
    np.testing.assert_allclose(
        probabilities, [a.leaf_probabilities for a in expected], atol=TOLERANCE
    )

    moments = expectation.moments(
        expectation.density.evidence(table, case.missing_mask), method="exact"
    )
    np.testing.assert_allclose(moments.mean, margin, atol=TOLERANCE)
    np.testing.assert_allclose(moments.variance, [a.variance for a in expected], atol=1e-10)
    assert (moments.variance >= 0).all()


@pytest.mark.parametrize("density", EXACT)
@settings(max_examples=5, deadline=None)
@given(seed=seeds)
def test_probabilities_of_pairs_equal_enumeration(density, seed):
    """Lemma 2, for trees that share variables."""
    case = random_case(seed, density, n_rows=3)
    expectation = Expectation.of(case.ensemble, case.density)
    evidence = expectation.density.evidence(table_of(case), case.missing_mask)
    weight = np.array([1.0, 2.0, 0.5])
    found = np.zeros((case.ensemble.n_leaves,) * 2)
    expectation.engine.add_pairs(evidence, weight, found)
    found = np.triu(found) + np.triu(found, 1).T
    expected = sum(
        w * answer.pairs for w, answer in zip(weight, answers(case, expectation), strict=True)
    )
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


@pytest.mark.parametrize("density", EXACT)
@settings(max_examples=5, deadline=None)
@given(seed=seeds)
def test_completions_agree_with_exact(density, seed):
    """Each engine checks the other: z-scores of the difference behave like z-scores."""
    case = random_case(seed, density, n_rows=8, n_trees=5, depth=4)
    exact = Expectation.of(case.ensemble, case.density)
    table = table_of(case)
    margin, _ = exact.margin(exact.density.evidence(table, case.missing_mask))
    spread = exact.moments(
        exact.density.evidence(table, case.missing_mask), method="exact"
    ).variance
    drawn = Expectation.of(case.ensemble, case.density, method="monte-carlo", seed=seed)
    mean, _ = drawn.margin(drawn.density.evidence(table, case.missing_mask))
    # As far off as 64 independent draws of a margin with this variance, at most.
    assert (np.abs(mean - margin) <= 6 * np.sqrt(spread / 64) + 1e-9).all()


def test_rows_of_one_tree_sum_to_one_and_complete_rows_have_a_single_one():
    case = random_case(3, rate=0.4, n_rows=40, n_trees=4)
    expectation = Expectation.of(case.ensemble, case.density)
    probabilities = expectation.leaf_probabilities(
        expectation.density.evidence(table_of(case), case.missing_mask)
    ).toarray()
    sums = np.add.reduceat(probabilities, case.ensemble.leaf_start[:-1], axis=1)
    np.testing.assert_allclose(sums, 1.0, atol=1e-12)

    case = random_case(4, rate=0.0, n_rows=40, n_trees=4)
    expectation = Expectation.of(case.ensemble, case.density)
    probabilities = expectation.leaf_probabilities(
        expectation.density.evidence(table_of(case), case.missing_mask)
    )
    assert (probabilities.getnnz(axis=1) == 4).all()
    np.testing.assert_allclose(probabilities.data, 1.0, atol=1e-12)


@pytest.mark.parametrize("tol", [SHARE, SHARE / 3])  # the first words, and many more of them
@pytest.mark.parametrize("link", ["sigmoid", "exp", "softmax"])
def test_expected_link_agrees_with_enumeration(link, tol):
    outputs = 3 if link == "softmax" else 1
    case = random_case(11, n_rows=12, n_outputs=outputs, link=link, n_trees=4)
    expectation = Expectation.of(case.ensemble, case.density, seed=5, tol=tol)
    mean, error = expectation.predict(
        expectation.density.evidence(table_of(case), case.missing_mask)
    )
    expected = np.array([a.mean_of(case.ensemble.link) for a in answers(case, expectation)])
    # The reported error comes from 8 groups, so allow for its own noise.
    assert (np.abs(mean - expected) <= 5 * error + 1e-9).all()
    assert np.isfinite(mean).all()
