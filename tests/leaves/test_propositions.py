"""Props. 2, 3 and 4 against the expected loss over every completion, by enumeration."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from tests.expectation.cases import EXACT, random_case
from tests.leaves.worlds import problem_of, random_world, refit

from knothole.densities.latent_tree.density import LatentTree
from knothole.densities.mixture.density import Factorized, Mixture
from knothole.leaves import conditioning
from knothole.leaves.conditioning import Conditioned, TrainingTable, choose_form, in_form

seeds = st.integers(0, 2**31 - 1)
ridges = st.sampled_from([0.0, 0.7])
shapes = st.sampled_from([(1, 1), (1, 2), (2, 2)])


def refitted_theta(world, **options):
    result = refit(*world.arguments, **(world.options | options))
    return world.theta(result.ensemble), result


def finite_differences(function, at, step=1e-4):
    out = np.empty_like(at)
    for index in np.ndindex(at.shape):
        shift = np.zeros_like(at)
        shift[index] = step
        out[index] = (function(at + shift) - function(at - shift)) / (2 * step)
    return out


def none_better(objective, at, leaves, seed):
    """No other values of some leaves have a smaller objective."""
    rng = np.random.default_rng(seed)
    least = objective(at)
    for size in (1e-3, 1e-1, 1.0):
        for _ in range(5):
            other = at.copy()
            other[leaves] += size * rng.normal(size=at[leaves].shape)
            assert objective(other) >= least - 1e-9


@pytest.mark.parametrize("density", EXACT)
@settings(max_examples=6, deadline=None)
@given(seed=seeds, ridge=ridges, shape=shapes)
def test_forest_has_no_gradient_and_no_better_leaves(density, seed, ridge, shape):
    world = random_world(seed, density, width=shape[0], n_outputs=shape[1])
    theta, result = refitted_theta(world, ridge=ridge, method="forest")
    assert result.summary.exact
    start = problem_of(world).leaf_start
    reached = np.setdiff1d(np.arange(len(theta)), result.summary.unreached)

    def objective(theta):
        return world.loss(theta) + ridge * ((theta - start) ** 2)[reached].sum()

    gradient = world.gradient(theta)
    gradient[reached] += 2 * ridge * (theta - start)[reached]
    np.testing.assert_allclose(gradient, 0.0, atol=1e-8)
    np.testing.assert_allclose(finite_differences(objective, theta), 0.0, atol=1e-6)
    np.testing.assert_allclose(
        result.summary.after, world.loss(theta) / world.weight.sum(), atol=1e-9
    )
    np.testing.assert_allclose(
        result.summary.before,
        world.loss(world.theta(world.case.ensemble)) / world.weight.sum(),
        atol=1e-9,
    )
    none_better(objective, theta, slice(None), seed)


@pytest.mark.parametrize("density", EXACT)
@settings(max_examples=5, deadline=None)
@given(seed=seeds, ridge=ridges, shape=shapes)
def test_boosting_leaves_each_tree_without_gradient_when_its_turn_comes(
    density, seed, ridge, shape
):
    world = random_world(seed, density, width=shape[0], n_outputs=shape[1])
    theta, result = refitted_theta(world, ridge=ridge, method="boosting", learning_rate=1.0)
    assert result.summary.exact
    ensemble = world.case.ensemble
    start = problem_of(world).leaf_start
    for tree in range(ensemble.n_trees):
        later = ensemble.leaf_tree > tree
        so_far = np.where(later[:, None], start, theta)
        leaves = slice(*ensemble.leaf_start[tree : tree + 2])
        gradient = world.gradient(so_far)[leaves] + 2 * ridge * (so_far - start)[leaves]
        reached = np.setdiff1d(np.arange(len(theta)), result.summary.unreached)
        here = np.intersect1d(np.arange(len(theta))[leaves], reached) - leaves.start
        np.testing.assert_allclose(gradient[here], 0.0, atol=1e-8)
        found = (
            finite_differences(world.loss, so_far)[leaves] + 2 * ridge * (so_far - start)[leaves]
        )
        np.testing.assert_allclose(found[here], 0.0, atol=1e-6)
        none_better(
            lambda at: world.loss(at) + ridge * ((at - start) ** 2)[leaves].sum(),  # noqa: B023
            so_far, leaves, seed,
        )  # fmt: skip


@pytest.mark.parametrize("density", EXACT)
@settings(max_examples=5, deadline=None)
@given(seed=seeds, ridge=ridges)
def test_each_tree_of_an_average_is_best_by_itself(density, seed, ridge):
    world = random_world(seed, density, averaged=True, n_outputs=2, width=2)
    _, result = refitted_theta(world, ridge=ridge)
    assert result.summary.method == "tree"
    ensemble = result.ensemble
    mean = np.average(world.y, weights=world.weight, axis=0)
    losses = []
    for tree in range(ensemble.n_trees):
        leaves = slice(*ensemble.leaf_start[tree : tree + 2])
        alone = world.loss(ensemble.value, trees=[tree])
        losses.append(alone / world.weight.sum())
        objective = lambda value, tree=tree: world.loss(value, trees=[tree])  # noqa: E731
        gradient = finite_differences(objective, ensemble.value)[leaves]
        reached = np.setdiff1d(np.arange(ensemble.n_leaves)[leaves], result.summary.unreached)
        gradient += 2 * ridge * (ensemble.value[leaves] - mean)
        np.testing.assert_allclose(gradient[reached - leaves.start], 0.0, atol=1e-6)
        exact = world.gradient(ensemble.value, trees=[tree])[leaves]
        exact += 2 * ridge * (ensemble.value[leaves] - mean)
        np.testing.assert_allclose(exact[reached - leaves.start], 0.0, atol=1e-8)
        none_better(
            lambda at: objective(at) + ridge * ((at - mean) ** 2)[leaves].sum(),  # noqa: B023
            ensemble.value, leaves, seed,
        )  # fmt: skip
    np.testing.assert_allclose(result.summary.after, np.mean(losses), atol=1e-9)


def test_prop_2_is_the_formula():
    world = random_world(5, n_trees=1, n_rows=6)
    theta, result = refitted_theta(world, ridge=0.5)
    probabilities = np.array([answer.leaf_probabilities for answer in world.answers])
    rest = (world.y - world.case.ensemble.base)[:, 0] * world.weight
    expected = (rest @ probabilities) / (0.5 + world.weight @ probabilities)
    np.testing.assert_allclose(theta[:, 0], expected, atol=1e-12)
    assert result.summary.method == "tree"


@settings(max_examples=8, deadline=None)
@given(seed=seeds, shape=shapes)
def test_forest_is_at_least_as_good_as_boosting_and_trees(seed, shape):
    """With no ridge, on the same structures, by the enumerated loss."""
    world = random_world(seed, averaged=True, width=shape[1], n_outputs=shape[1], n_trees=4)
    loss = {
        method: world.loss(refitted_theta(world, ridge=0.0, method=method, learning_rate=1.0)[0])
        for method in ("tree", "boosting", "forest")
    }
    assert loss["forest"] <= loss["boosting"] + 1e-9
    assert loss["forest"] <= loss["tree"] + 1e-9


@pytest.mark.parametrize("integration", ["exact", "monte-carlo"])
@settings(max_examples=8, deadline=None)
@given(seed=seeds, shape=shapes)
def test_the_reported_loss_of_all_leaves_never_rises_without_a_ridge(integration, seed, shape):
    world = random_world(seed, width=shape[0], n_outputs=shape[1], n_trees=4)
    _, result = refitted_theta(world, ridge=0.0, method="forest", integration=integration)
    summary = result.summary
    # Completions are judged by draws that took no part.
    assert summary.after <= summary.before + 1e-9 + 4 * summary.error


@pytest.mark.parametrize("density", ["Mixture", "LatentTree"])
@pytest.mark.parametrize("form", ["values", "scores"])
def test_conditioned_on_the_target(density, form, monkeypatch):
    """The same optimality, under p(x_m | x_o, y) of the density that was learned beside y."""
    world = random_world(7, density, n_rows=30, rate=0.4)
    of_form = form, conditioning.with_target(world.case.density)
    monkeypatch.setattr(conditioning, "choose_form", lambda *_: of_form)
    options = world.options | {"condition_on_target": True}
    result = refit(*world.arguments, **options, ridge=0.3, method="forest")
    assert result.summary.conditioned == form
    assert result.joint.target_
    target = in_form(world.y[:, 0], form)
    given = replace(world, density=result.joint, target=target)
    assert not np.allclose(
        [answer.leaf_probabilities for answer in given.answers],
        [answer.leaf_probabilities for answer in world.answers],
    )
    world = given
    theta = world.theta(result.ensemble)
    gradient = world.gradient(theta) + 2 * 0.3 * theta
    np.testing.assert_allclose(gradient, 0.0, atol=1e-8)


def test_the_choice_of_the_form_goes_by_held_out_rows():
    """A target with a wild tail is taken by rank."""
    rng = np.random.default_rng(0)
    world = random_world(2, n_rows=60, rate=0.3)
    group = world.case.rows[:, 4]
    wild = np.exp(8 * rng.normal(size=(60, 1)) + 10 * np.nan_to_num(group)[:, None])
    world = replace(world, y=wild)
    options = world.options | {"condition_on_target": True, "method": "forest"}
    assert refit(*world.arguments, **options).summary.conditioned == "scores"


def training_of(world):
    matrix = world.case.density.columns_.matrix(world.table)
    return TrainingTable(matrix, world.case.missing_mask, world.weight)


def test_the_unit_of_a_target_has_no_say_in_its_form():
    """Forms go by p(x | y); p(x, y) is smaller the larger the numbers are."""
    world = random_world(2, n_rows=60, rate=0.3)
    target = world.y[:, 0] + np.nan_to_num(world.case.rows[:, 4])
    training, density = training_of(world), world.case.density
    chosen = {choose_form(density, training, unit * target)[0] for unit in (1e-6, 1.0, 1e6)}
    assert len(chosen) == 1


def test_a_density_of_x_and_y_is_of_the_size_that_x_has():
    """No second search: size and prior are what was found for X, and given to the training."""
    rng = np.random.default_rng(0)
    group = rng.integers(3, size=400)
    X = rng.normal(size=(400, 3)) + 4.0 * group[:, None]
    X[rng.random(X.shape) < 0.2] = np.nan
    density = Mixture(random_state=0).fit(X)
    assert len(density.weights_) > 1
    training = TrainingTable(X, None, np.ones(400))
    for labels in (False, True):
        joint = Conditioned.of(density, training, group, labels).density
        assert joint.target_
        assert joint.n_components == len(joint.weights_) == len(density.weights_)
        assert joint.strength == joint.strength_ == density.strength_


@pytest.mark.parametrize(
    "density", [Mixture(random_state=0), LatentTree(random_state=0), Factorized()]
)
@pytest.mark.parametrize("labels", [False, True])
def test_of_independent_columns_y_tells_something_all_the_same(density, labels):
    """With the size that X has, one, p(X, y) would have y independent of all of X."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (600, 3)).astype(np.float64)
    y = 2 * X[:, 0] + X[:, 1]
    density = clone(density).fit(X)
    found = Conditioned.of(density, TrainingTable(X, None, np.ones(len(X))), y, labels)
    joint, targets = found.density, found.given(y, np.array([0.0, 3.0]))
    asked = density.columns_.evidence(np.full((2, 3), np.nan))
    drawn = joint.complete_points(joint.extended(asked, targets), 200, 0)[:, :, 0]
    low, high = drawn.mean(axis=1)
    assert low < 0.2
    assert high > 0.8


def test_densities_of_training_rows_know_which_nan_is_missing():
    """In a nullable column another NaN is a value: a density of all of them as such differs."""
    world = random_world(5, n_rows=60, rate=0.4)
    world = replace(world, case=random_case(5, n_rows=60, rate=0.4))
    training, density = training_of(world), world.case.density
    fitted = {
        name: table.fit(density).log_evidence(density.evidence(world.table))
        for name, table in {"own": training, "none": replace(training, missing_mask=None)}.items()
    }
    alone = clone(density).fit_matrix(
        training.matrix,
        density.columns_,
        sample_weight=world.weight,
        missing_mask=world.case.missing_mask,
    )
    expected = alone.log_evidence(density.evidence(world.table))
    np.testing.assert_allclose(fitted["own"], expected, atol=1e-12)
    assert np.abs(fitted["own"] - fitted["none"]).max() > 1e-3


@pytest.mark.parametrize("method", ["forest", "boosting"])
def test_outputs_that_no_tree_serves_are_part_of_the_loss(method):
    world = random_world(1, n_rows=6, n_trees=1, n_outputs=2)
    theta, result = refitted_theta(world, method=method, learning_rate=1.0, ridge=0.0)
    told = [result.summary.before, result.summary.after]
    losses = [world.loss(each) for each in (world.theta(world.case.ensemble), theta)]
    np.testing.assert_allclose(told, np.array(losses) / world.weight.sum(), atol=1e-9)
