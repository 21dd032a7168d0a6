"""Draws of rows and the leaves that they fall into; solvers against matrices of the same draws."""

import numpy as np
import pytest
from tests.leaves.worlds import problem_of, random_world, refit

from knothole.expectation.expectation import Expectation
from knothole.leaves import draws, solve
from knothole.leaves.draws import DrawnLeaves
from knothole.leaves.losses import Squared
from knothole.leaves.sums import LeafSystem
from knothole.sobol import WORD


def draws_of(world, **options):
    expectation = Expectation.of(world.case.ensemble, world.case.density, "monte-carlo")
    evidence = expectation.density.evidence(world.table, world.case.missing_mask)
    return DrawnLeaves(expectation.monte_carlo, evidence, world.weight, **options)


def as_matrix(drawn):
    """Ones where a draw falls into a leaf, (draws, leaves)."""
    ensemble = drawn.ensemble
    out = np.zeros((len(drawn.row), ensemble.n_leaves))
    for tree, first in enumerate(ensemble.leaf_start[:-1]):
        out[np.arange(len(out)), first + drawn.leaf[tree]] = 1.0
    return out


@pytest.fixture(params=[(1, 1), (1, 3), (2, 2)])
def world(request):
    width, outputs = request.param
    return random_world(4, n_rows=150, rate=0.5, n_trees=4, width=width, n_outputs=outputs)


@pytest.mark.parametrize("words", [1, 2])
def test_draws_are_those_of_the_masks(world, words, monkeypatch):
    """Every draw of a row falls into the one leaf of each tree whose word has its bit."""
    monkeypatch.setattr(draws, "WORDS", words)
    drawn, start = draws_of(world, first_word=3), world.case.ensemble.leaf_start
    expectation = Expectation.of(world.case.ensemble, world.case.density, "monte-carlo")
    evidence = expectation.density.evidence(world.table, world.case.missing_mask)
    rows = [np.flatnonzero(drawn.row == row) for row in range(150)]
    assert {len(own) for own in rows} == {1, WORD * words}
    for word in range(words):
        leaf, mask, stop = expectation.monte_carlo.masks(evidence, 3 + word)
        entry = 0
        for row, own in enumerate(rows):
            for tree in range(len(start) - 1):
                while entry < stop[row, tree]:
                    bits = [(int(mask[entry]) >> draw) & 1 for draw in range(WORD)]
                    if len(own) == 1:
                        assert all(bits) and drawn.leaf[tree, own[0]] == leaf[entry] - start[tree]
                    else:
                        part = own[word * WORD : (word + 1) * WORD]
                        inside = drawn.leaf[tree, part] == leaf[entry] - start[tree]
                        np.testing.assert_array_equal(inside, np.array(bits, dtype=bool))
                    entry += 1
    np.testing.assert_allclose(np.bincount(drawn.row, drawn.weight), world.weight)


def test_products_equal_those_of_the_matrix(world):
    drawn, ensemble = draws_of(world), world.case.ensemble
    A, output = as_matrix(drawn), ensemble.tree_output[ensemble.leaf_tree]
    weighted = A * drawn.weight[:, None]
    theta = np.random.default_rng(0).normal(size=ensemble.value.shape)
    width, everyone = theta.shape[1], slice(0, len(A))
    margins = np.zeros((len(A), ensemble.n_outputs))
    for leaf in range(ensemble.n_leaves):
        for j in range(width):
            margins[:, output[leaf] + j] += A[:, leaf] * theta[leaf, j]
    np.testing.assert_allclose(drawn.margins(theta, everyone), margins, atol=1e-12)
    served = np.stack([margins[:, output + j] for j in range(width)], axis=2)
    applied = np.einsum("cl,clj->lj", weighted, served)
    by_leaf = drawn.by_all_leaves(margins, everyone)
    np.testing.assert_allclose(by_leaf, applied, atol=1e-10)

    sums, y = drawn.sums(world.y, world.weight), world.y[drawn.row]
    target = np.stack([(y[:, output + j] * weighted).sum(axis=0) for j in range(width)], axis=1)
    np.testing.assert_allclose(sums.weight, weighted.sum(axis=0), atol=1e-10)
    np.testing.assert_allclose(sums.target, target, atol=1e-10)
    groups = [drawn.sums(world.y, world.weight, g) for g in range(drawn.n_groups)]
    np.testing.assert_allclose(np.mean([g.target for g in groups], axis=0), target, atol=1e-10)
    some = drawn.group_sums(y[:, 0])
    np.testing.assert_allclose(some.mean(), drawn.weight @ y[:, 0], atol=1e-10)
    assert len(some) == drawn.n_groups and len(np.unique(drawn.group)) == 1 + drawn.n_groups


def test_leaves_that_do_not_fit_in_memory_are_in_a_file(world, monkeypatch):
    usual = draws_of(world)
    monkeypatch.setattr(draws, "MEMORY", 0)
    stored = draws_of(world)
    assert isinstance(stored.leaf, np.memmap)
    np.testing.assert_array_equal(stored.leaf, usual.leaf)


@pytest.mark.parametrize("ridge", [0.0, 1.0])
def test_all_leaves_at_once_are_the_solution_of_the_system(world, ridge):
    """Against a matrix of the same draws; the shortest where it is singular."""
    problem, drawn = problem_of(world), draws_of(world)
    A, start = as_matrix(drawn), problem.leaf_start
    sums = drawn.sums(problem.y - problem.offset, world.weight)
    expected, output = np.zeros_like(start), problem.ensemble.tree_output
    for first in np.unique(output):
        own = (output == first)[problem.ensemble.leaf_tree]
        M = A[:, own].T @ (drawn.weight[:, None] * A[:, own])
        pairs = drawn.pairs(np.flatnonzero(output == first))
        np.testing.assert_allclose(pairs, np.triu(M), atol=1e-10)
        M += ridge * np.eye(own.sum())
        expected[own] = np.linalg.lstsq(M, sums.target[own], rcond=1e-11)[0]
    found = draws.forest(problem, drawn, ridge)
    np.testing.assert_allclose(found - start, expected, atol=1e-8)
    at = drawn.margins(found, slice(0, len(A))) + problem.ensemble.base - problem.y[drawn.row]
    gradient = drawn.by_all_leaves(at, slice(0, len(A))) + ridge * (found - start)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-8)


@pytest.mark.parametrize("method", ["tree", "forest", "boosting"])
def test_completions_come_to_the_exact_solution(method):
    world = random_world(6, n_rows=40, n_trees=1 if method == "tree" else 3)
    options = world.options | {"method": method, "learning_rate": 0.7}
    exact = refit(*world.arguments, **options, integration="exact")
    drawn = refit(*world.arguments, **options, integration="monte-carlo", words=64)
    assert exact.summary.exact
    assert not drawn.summary.exact
    spread = np.std(exact.ensemble.value)
    assert np.abs(drawn.ensemble.value - exact.ensemble.value).max() < 0.1 * spread
    # The loss on draws that took no part, with a standard error of groups.
    assert 0 < drawn.summary.error < 0.1 * exact.summary.after
    assert abs(drawn.summary.after - exact.summary.after) < 8 * drawn.summary.error
    assert abs(drawn.summary.before - exact.summary.before) < 0.2 * exact.summary.before


def test_boosting_on_draws_is_the_system_solved_in_turn():
    """Prop. 4 from margins of draws, and from pairs of leaves of the same draws."""
    world = random_world(9, n_rows=50, n_trees=4)
    problem, drawn = problem_of(world), draws_of(world)
    theta, loss = draws.boosting(problem, drawn, 0.5, 0.7)
    A, sums = as_matrix(drawn), drawn.sums(problem.y - problem.offset, world.weight)
    pairs = np.triu(A.T @ (drawn.weight[:, None] * A))
    system = LeafSystem(sums.weight, sums.target, sums.square, sums.total, pairs)
    expected = system.solve_in_turn(problem.ensemble.leaf_start, 0.5, 0.7)
    np.testing.assert_allclose(theta - problem.leaf_start, expected, atol=1e-10)
    np.testing.assert_allclose(2 * loss, system.loss(expected), rtol=1e-10)
    assert loss <= draws.expected_loss(problem, drawn, problem.leaf_start)


@pytest.mark.parametrize("method", ["forest", "boosting"])
def test_threads_do_not_matter(method):
    world = random_world(3, n_rows=700, n_trees=4)
    one, two = (
        refit(
            *world.arguments,
            **world.options,
            method=method,
            learning_rate=0.7,
            integration="monte-carlo",
            n_jobs=n,
        )
        for n in (1, 2)
    )
    np.testing.assert_array_equal(one.ensemble.value, two.ensemble.value)
    assert one.summary.after == two.summary.after


def losses_by_hand(world, drawn, ensemble):
    """Expected squared errors over some draws: of the whole model, and of each tree by itself."""
    A, theta = as_matrix(drawn), world.theta(ensemble)[:, 0]
    margin = [
        A[:, leaves] @ theta[leaves]
        for leaves in (ensemble.leaf_tree == tree for tree in range(ensemble.n_trees))
    ]
    whole = ensemble.base[0] + np.sum(margin, axis=0)
    alone = ensemble.base[0] + ensemble.n_trees * np.array(margin)
    share, y = drawn.weight / world.weight.sum(), world.y[drawn.row, 0]
    squares = [share @ (y - each) ** 2 for each in (whole, *alone)]
    return squares[0], np.mean(squares[1:])


@pytest.mark.parametrize("method", ["tree", "forest", "boosting"])
def test_losses_are_told_of_draws_that_took_no_part(method):
    """The loss over the draws that leaves were fitted to would tell how well they fit those."""
    world = random_world(6, n_rows=12, rate=0.7, n_trees=3, averaged=method == "tree")
    refitted = refit(
        *world.arguments, method=method, integration="monte-carlo", ridge=0.0, objective="expected",
        learning_rate=1.0 if method == "boosting" else "auto", **world.options,
    )  # fmt: skip
    used, other = draws_of(world), draws_of(world, first_word=1)
    old, new = world.case.ensemble, refitted.ensemble
    of = 1 if method == "tree" else 0
    told = refitted.summary.before, refitted.summary.after
    by_hand = [losses_by_hand(world, other, each)[of] for each in (old, new)]
    np.testing.assert_allclose(told, by_hand, rtol=1e-9)
    assert abs(losses_by_hand(world, used, new)[of] - refitted.summary.after) > 1e-4


def test_the_error_of_a_loss_is_that_of_a_mean():
    """Of groups of draws; a single, exact one has none."""
    values = np.array([1.0, 2.0, 4.0, 5.0])
    assert solve.standard_error(values) == pytest.approx(np.sqrt(10 / 3) / 2)
    assert solve.standard_error(values[:1]) == 0.0
    assert np.isnan(solve.standard_error(np.append(values, np.inf)))


def test_steps_of_squared_errors_need_no_check(world, monkeypatch):
    """The same leaves and loss where every step is checked for a rise."""
    problem, drawn = problem_of(world), draws_of(world)
    theta, loss = draws.boosting(problem, drawn, 0.1, 0.5)
    monkeypatch.setattr(Squared, "may_overshoot", True)
    plain, plain_loss = draws.boosting(problem, drawn, 0.1, 0.5)
    np.testing.assert_allclose(theta, plain, atol=1e-10)
    assert loss == pytest.approx(plain_loss, rel=1e-10)
