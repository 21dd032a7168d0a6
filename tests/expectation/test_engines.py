"""Engines are found by the density's class, made when first used, and share tables."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from sklearn.tree import DecisionTreeRegressor
from tests.expectation.cases import EXACT, as_table, random_case

from knothole.columns.columns import Column, Columns
from knothole.densities.gaussian.density import GaussianMixture
from knothole.densities.mixture.density import Factorized, Mixture
from knothole.expectation.exact.mixture import MixtureEngine
from knothole.expectation.expectation import ENGINES, Expectation, by_class
from knothole.expectation.monte_carlo.engine import MonteCarloEngine
from knothole.trees.links import Link
from knothole.trees.read import read


def known(case, expectation):
    return expectation.density.evidence(
        as_table(case.density.columns_, case.rows), case.missing_mask
    )


@pytest.mark.parametrize("density", EXACT)
@pytest.mark.parametrize("link", ["identity", "sigmoid"])
def test_other_leaf_values_are_answered_as_by_a_fresh_expectation(density, link):
    """Whether the tables were there before or not, and also after one more change."""
    case = random_case(4, density, link=link)
    value = np.random.default_rng(0).normal(size=case.ensemble.value.shape)
    expectation = Expectation.of(case.ensemble, case.density)
    spread = expectation.spread  # the unit of tolerances remains
    fresh = Expectation.of(case.ensemble.with_values(value), case.density, spread=spread)
    evidence = known(case, expectation)
    early = expectation.with_values(value)
    old = expectation.margin(evidence)[0]
    late = expectation.with_values(2 * value).with_values(value)
    for found in (early, late):
        for one, other in zip(found.predict(evidence), fresh.predict(evidence), strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(found.margin(evidence)[0], fresh.margin(evidence)[0])
        np.testing.assert_array_equal(
            found.moments(evidence).variance, fresh.moments(evidence).variance
        )
        np.testing.assert_array_equal(found.original.value, value)
    np.testing.assert_array_equal(expectation.margin(evidence)[0], old)
    assert early.engine.nodes is expectation.engine.nodes


def test_other_leaf_values_of_trees_that_are_walked_node_by_node():
    """Those with more leaves than a word has bits; values of two leaves are kept together there."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    ensemble = read(DecisionTreeRegressor(max_leaf_nodes=100).fit(X, X @ [1.0, -2.0, 0.5]))
    expectation = Expectation.of(ensemble, Mixture(3, random_state=0).fit(X))
    X[rng.random(X.shape) < 0.4] = np.nan
    evidence = expectation.evidence(X)
    before = expectation.margin(evidence)[0]
    np.testing.assert_allclose(
        expectation.with_values(2 * ensemble.value).margin(evidence)[0], 2 * before
    )


def test_nothing_is_tabulated_that_is_not_asked_for(monkeypatch):
    case = random_case(0, "Mixture")

    def refuse(*_):
        raise AssertionError("not needed")

    monkeypatch.setattr(MonteCarloEngine, "__init__", refuse)
    expectation = Expectation.of(case.ensemble, case.density)
    evidence = known(case, expectation)
    assert "engine" not in expectation.__dict__
    expectation.margin(evidence)
    expectation.predict(evidence)
    expectation.std(evidence)
    monkeypatch.setattr(MixtureEngine, "__init__", refuse)
    assert Expectation.of(case.ensemble, case.density).exact
    expectation.with_values(case.ensemble.value).margin(evidence)


class Own(Mixture):
    """A mixture of somebody's own."""


class Drawn:
    """Not a density of ours, but it can draw."""

    def __init__(self, columns):
        self.columns_ = columns
        self.variables_ = columns.variables

    def extended(self, own, target):
        return own

    @property
    def coordinate_variables(self):
        return np.arange(len(self.variables_))

    def draw(self, evidence, uniform):
        return np.broadcast_to(uniform, (len(evidence.points), *uniform.shape[1:]))


def test_engines_are_found_by_class():
    assert by_class(ENGINES, Factorized()) is MixtureEngine
    assert by_class(ENGINES, Own()) is MixtureEngine
    assert by_class(ENGINES, GaussianMixture()) is None
    drawn = Drawn(Columns((Column("a"),)))
    assert by_class(ENGINES, drawn) is None


def test_anything_that_completes_rows_can_be_integrated_over():
    case = random_case(1, "Factorized", numeric=False)
    columns = case.ensemble.columns
    expectation = Expectation.of(case.ensemble, Drawn(columns))
    assert not expectation.exact
    complete = np.zeros((2, len(columns)))
    evidence = expectation.evidence(as_table(columns, complete))
    np.testing.assert_array_equal(
        expectation.margin(evidence)[0], case.ensemble.margin(complete, 1)
    )


def test_an_expectation_can_be_pickled_with_and_without_its_engines():
    case = random_case(2, "LatentTree")
    expectation = Expectation.of(case.ensemble, case.density)
    evidence = known(case, expectation)
    early = pickle.loads(pickle.dumps(expectation))
    margin = expectation.margin(evidence)[0]
    late = pickle.loads(pickle.dumps(expectation.with_values(case.ensemble.value)))
    for again in (early, late):
        np.testing.assert_array_equal(again.margin(evidence)[0], margin)


@pytest.mark.parametrize("density", EXACT)
def test_a_single_tree_of_three_classes_has_exact_probabilities(density):
    made = random_case(5, density, n_trees=1)
    link, value = Link("softmax"), np.random.default_rng(0).normal(size=(made.ensemble.n_leaves, 3))
    ensemble = replace(
        made.ensemble, link=link, value=value, base=np.zeros(3), tree_weight=np.ones(1)
    )
    expectation = Expectation.of(ensemble, made.density)
    evidence = expectation.density.evidence(
        as_table(made.density.columns_, made.rows), made.missing_mask
    )
    mean, error = expectation.predict(evidence)
    np.testing.assert_allclose(
        mean, expectation.leaf_probabilities(evidence) @ link(value), rtol=1e-10
    )
    assert (error == 0).all()
