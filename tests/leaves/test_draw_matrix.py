"""Products with the matrix of bits against the matrix itself, and solvers against each other."""

import numpy as np
import pytest
from tests.leaves.worlds import problem_of, random_world, tune

from knothole.compiled.sobol import GROUPS
from knothole.expectation.expectation import Expectation
from knothole.leaves import descent, solvers
from knothole.leaves.draw_matrix import DRAWS, DrawMatrix
from knothole.leaves.system import LeafSystem


def draws_of(world, words=1, **options):
    expectation = Expectation.of(world.case.ensemble, world.case.density, "completions", seed=3)
    evidence = expectation.evidence(world.table, world.case.holes)
    return DrawMatrix(expectation.completions, evidence, world.weight, words, **options)


def as_matrix(drawn):
    """A of every word: (words, rows, draws, leaves)."""
    out = np.zeros((drawn.words, drawn.n_rows, DRAWS, drawn.ensemble.n_leaves))
    for chunk in drawn.map(lambda chunk: chunk):
        first = 0
        for row, last in enumerate(chunk.bits.stop[:, -1]):
            for leaf, mask in zip(
                chunk.bits.leaf[first:last], chunk.bits.word[first:last], strict=True
            ):
                bits = [(int(mask) >> draw) & 1 for draw in range(DRAWS)]
                out[chunk.word, chunk.rows.start + row, :, leaf] = bits
            first = last
    return out


@pytest.fixture(params=[(1, 1), (1, 3), (2, 2)])
def world(request):
    width, outputs = request.param
    return random_world(4, n_rows=150, rate=0.5, n_trees=4, width=width, n_outputs=outputs)


def test_products_equal_those_of_the_matrix(world):
    drawn = draws_of(world, words=2)
    A = as_matrix(drawn)
    ensemble = drawn.ensemble
    # Every draw reaches one leaf of each tree.
    per_tree = np.add.reduceat(A, ensemble.leaf_start[:-1], axis=3)
    assert (per_tree == 1).all()
    weighted = A * world.weight[:, None, None] / (DRAWS * 2)

    theta = np.random.default_rng(0).normal(size=ensemble.value.shape)
    width = theta.shape[1]
    margins = np.zeros((2, drawn.n_rows, ensemble.n_outputs, DRAWS))
    output = ensemble.tree_output[ensemble.leaf_tree]
    for leaf in range(ensemble.n_leaves):
        for j in range(width):
            margins[:, :, output[leaf] + j] += A[:, :, :, leaf] * theta[leaf, j]
    for chunk in drawn.map(lambda chunk: chunk):
        np.testing.assert_allclose(
            drawn.margins(chunk, theta), margins[chunk.word, chunk.rows], atol=1e-12
        )

    served = np.stack([margins[:, :, output + j] for j in range(width)], axis=4)
    applied = np.einsum("wrcl,wrlcj->lj", weighted, served)
    np.testing.assert_allclose(drawn.apply(theta), applied, atol=1e-10)

    leaves = np.flatnonzero(output == output[0])
    pairs = np.einsum("wrci,wrcj->ij", weighted[..., leaves], A[..., leaves])
    np.testing.assert_allclose(drawn.pairs(leaves), np.triu(pairs), atol=1e-10)

    reach = weighted.sum(axis=(0, 2))
    np.testing.assert_allclose(drawn.weight(), reach.sum(axis=0), atol=1e-10)
    (sums,) = drawn.sums(world.y)
    target = np.stack([(world.y[:, output + j] * reach).sum(axis=0) for j in range(width)], axis=1)
    np.testing.assert_allclose(sums.target, target, atol=1e-10)
    groups = drawn.sums(world.y, GROUPS)
    np.testing.assert_allclose(np.mean([g.target for g in groups], axis=0), target, atol=1e-10)


def test_words_that_are_not_kept_are_found_again(world):
    kept, walked = draws_of(world), draws_of(world, room=0)
    theta = np.random.default_rng(0).normal(size=kept.ensemble.value.shape)
    np.testing.assert_array_equal(kept.apply(theta), walked.apply(theta))


@pytest.mark.parametrize("ridge", [0.0, 1.0])
def test_conjugate_gradients_find_what_matrices_find(world, ridge, monkeypatch):
    monkeypatch.setattr(descent, "CG_GAIN", 0.0)
    problem, drawn = problem_of(world), draws_of(world)
    dense = descent.forest(problem, drawn, ridge)
    free = descent.forest(problem, drawn, ridge, dense=0)
    assert free.solver == "conjugate gradients"
    assert dense.solver == ("Cholesky" if ridge else "eigenvectors")
    np.testing.assert_allclose(free.theta, dense.theta, atol=1e-5)
    np.testing.assert_allclose(free.objective[-1], dense.objective[-1], rtol=1e-9)
    monkeypatch.undo()
    stopped = descent.forest(problem, drawn, ridge, dense=0)
    gain = dense.objective[0] - dense.objective[-1]
    assert stopped.objective[-1] - dense.objective[-1] <= 1e-4 * gain


@pytest.mark.parametrize("ridge", [0.0, 1.0])
def test_no_gradient_on_the_draws(world, ridge):
    problem, drawn = problem_of(world), draws_of(world)
    found = descent.forest(problem, drawn, ridge)
    gradient = descent.evaluate(problem, drawn, found.theta)[1]
    gradient += ridge * (found.theta - problem.leaf_start)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-8)


@pytest.mark.parametrize("method", ["tree", "forest", "boosting"])
def test_completions_come_to_the_exact_solution(method):
    world = random_world(6, n_rows=40, n_trees=1 if method == "tree" else 3)
    exact = tune(*world.arguments, **world.options, method=method, learning_rate=0.7, reach="exact")
    drawn = tune(
        *world.arguments,
        **world.options,
        method=method,
        learning_rate=0.7,
        reach="completions",
        draws=4096,
    )
    assert exact.summary.exact
    assert not drawn.summary.exact
    spread = np.std(exact.ensemble.value)
    assert np.abs(drawn.ensemble.value - exact.ensemble.value).max() < 0.1 * spread
    # The loss on draws that took no part, with a standard error of four groups.
    assert 0 < drawn.summary.error < 0.1 * exact.summary.after
    assert abs(drawn.summary.after - exact.summary.after) < 8 * drawn.summary.error
    assert abs(drawn.summary.before - exact.summary.before) < 0.2 * exact.summary.before


def test_boosting_on_draws_is_the_system_solved_in_turn():
    """Prop. 4 from margins of draws, and from pair reach of the same draws."""
    world = random_world(9, n_rows=50, n_trees=4)
    problem, drawn = problem_of(world), draws_of(world)
    found = descent.boosting(problem, drawn, 0.5, 0.7)
    leaves = np.arange(drawn.ensemble.n_leaves)
    system = LeafSystem(drawn.pairs(leaves), drawn.sums(problem.y - problem.offset)[0])
    np.testing.assert_allclose(
        found.theta - problem.leaf_start, system.solve_in_turn(0.5, 0.7), atol=1e-10
    )
    assert (np.diff(found.objective) <= 1e-12).all()


@pytest.mark.parametrize("method", ["forest", "boosting"])
def test_threads_do_not_matter(method):
    world = random_world(3, n_rows=700, n_trees=4)
    one, two = (
        tune(
            *world.arguments,
            **world.options,
            method=method,
            learning_rate=0.7,
            reach="completions",
            n_jobs=n,
        )
        for n in (1, 2)
    )
    np.testing.assert_array_equal(one.ensemble.value, two.ensemble.value)
    assert one.summary.after == two.summary.after


def losses_by_hand(world, drawn, ensemble):
    """Expected squared errors over some draws: of the whole model, and of each tree by itself."""
    A, theta = as_matrix(drawn)[0], world.theta(ensemble)[:, 0]
    margin = [
        A[:, :, leaves] @ theta[leaves]
        for leaves in (ensemble.leaf_tree == tree for tree in range(ensemble.n_trees))
    ]
    whole = ensemble.base[0] + np.sum(margin, axis=0)
    alone = ensemble.base[0] + ensemble.n_trees * np.array(margin)
    share = world.weight / world.weight.sum()
    y = world.y[:, :1]
    squares = [share @ ((y - each) ** 2).mean(axis=1) for each in (whole, *alone)]
    return squares[0], np.mean(squares[1:])


@pytest.mark.parametrize("method", ["tree", "forest", "boosting"])
def test_losses_are_told_of_draws_that_took_no_part(method):
    """The loss over the draws that leaves were fitted to would tell how well they fit those."""
    world = random_world(6, n_rows=12, rate=0.7, n_trees=3, averaged=method == "tree")
    tuned = tune(
        *world.arguments, method=method, reach="completions", draws=DRAWS, ridge=0.0, seed=3,
        objective="expected", learning_rate=1.0 if method == "boosting" else "auto",
        **world.options,
    )  # fmt: skip
    used, other = draws_of(world), draws_of(world, first_word=1)
    old, new = world.case.ensemble, tuned.ensemble
    of = 1 if method == "tree" else 0
    told = tuned.summary.before, tuned.summary.after
    by_hand = [losses_by_hand(world, other, each)[of] for each in (old, new)]
    np.testing.assert_allclose(told, by_hand, rtol=1e-9)
    assert abs(losses_by_hand(world, used, new)[of] - tuned.summary.after) > 1e-4


def test_the_error_of_a_loss_is_that_of_a_mean():
    """Of groups of draws; a single, exact one has none."""
    values = np.array([1.0, 2.0, 4.0, 5.0])
    assert solvers._standard_error(values) == pytest.approx(np.sqrt(10 / 3) / 2)
    assert solvers._standard_error(values[:1]) == 0.0
    assert np.isnan(solvers._standard_error(np.append(values, np.inf)))


def test_a_tree_by_itself_is_as_among_the_others(world):
    together, apart = draws_of(world), draws_of(world)
    apart.of_tree = lambda chunk, tree: chunk
    theta = np.random.default_rng(0).normal(size=together.ensemble.value.shape)
    for tree in range(together.ensemble.n_trees):
        trees, (one,) = slice(tree, tree + 1), together.map(lambda chunk: chunk)
        own = together.of_tree(one, tree)
        assert own.first == tree and own.bits.stop.shape == (together.n_rows, 1)
        margins = together.margins(own, theta, trees)
        np.testing.assert_array_equal(margins, apart.margins(one, theta, trees))
        sums = np.zeros((2, *theta.shape))
        together.gather(own, margins, sums[0], trees)
        apart.gather(one, margins, sums[1], trees)
        np.testing.assert_array_equal(*sums)
        np.testing.assert_array_equal(together.leaves(one, tree), apart.leaves(one, tree))


def test_squared_errors_need_no_second_pass(world, monkeypatch):
    """Derivatives and what steps gain, against those that every loss has."""
    problem, drawn = problem_of(world), draws_of(world)
    found = descent.boosting(problem, drawn, 0.1, 0.5)
    monkeypatch.setattr(type(problem.loss), "name", "any other")
    plain = descent.boosting(problem, drawn, 0.1, 0.5)
    np.testing.assert_allclose(found.theta, plain.theta, atol=1e-10)
    np.testing.assert_allclose(found.objective, plain.objective, rtol=1e-10)
