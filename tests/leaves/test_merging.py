"""Sums are additive: blocks, files and workers give what one pass gives."""

from itertools import pairwise

import numpy as np
import pytest
from tests.leaves.worlds import random_world

from knothole.expectation.expectation import Expectation
from knothole.leaves.sums import LeafSums, Summands
from knothole.leaves.system import LeafSystem


@pytest.fixture(scope="module", params=["Mixture", "LatentTree"])
def parts(request):
    world = random_world(11, request.param, n_rows=200, n_trees=3)
    expectation = Expectation.of(world.case.ensemble, world.case.density)
    evidence = expectation.evidence(world.table, world.case.holes)
    return world, expectation.engine, evidence


def gathered(kind, parts, bounds):
    world, engine, evidence = parts
    rows = Summands(evidence, world.y, world.weight)
    return [kind.empty(world.case.ensemble).accumulate(engine, rows[a:b]) for a, b in bounds]


def in_blocks(n):
    edges = np.linspace(0, 200, n + 1).astype(int).tolist()
    return list(pairwise(edges))


@pytest.mark.parametrize("kind", [LeafSums, LeafSystem])
@pytest.mark.parametrize("ridge", [0.0, 1.0])
def test_one_block_and_a_hundred_agree_in_any_order(kind, ridge, parts):
    (whole,) = gathered(kind, parts, in_blocks(1))
    pieces = gathered(kind, parts, in_blocks(100))
    order = np.random.default_rng(0).permutation(100)
    merged = kind.empty(parts[0].case.ensemble)
    for i in order:
        merged.merge(pieces[i])
    np.testing.assert_allclose(merged.solve(ridge), whole.solve(ridge), atol=1e-10)
    sums, all_at_once = (one.sums if kind is LeafSystem else one for one in (merged, whole))
    np.testing.assert_allclose(sums.total, all_at_once.total)
    if kind is LeafSystem:
        np.testing.assert_allclose(
            merged.solve_in_turn(ridge), whole.solve_in_turn(ridge), atol=1e-10
        )
        np.testing.assert_allclose(
            merged.loss(whole.solve(ridge)), whole.loss(whole.solve(ridge)), atol=1e-10
        )


def test_draws_depend_on_a_row_s_place_only():
    """With completions, parts that begin where blocks begin have the draws of the whole."""
    world = random_world(12, n_rows=2200, n_trees=2)
    expectation = Expectation.of(world.case.ensemble, world.case.density, "completions")
    evidence = expectation.evidence(world.table, world.case.holes)
    parts, block = (world, expectation.engine, evidence), expectation.engine.chunk
    assert 2 * block < 2200
    (whole,) = gathered(LeafSystem, parts, [(0, 2200)])
    first, second = gathered(LeafSystem, parts, [(0, block), (block, 2200)])
    merged = second.merge(first)
    np.testing.assert_allclose(merged.solve(1.0), whole.solve(1.0), atol=1e-10)


def test_trees_gathered_by_themselves_join():
    world = random_world(13, n_rows=20, n_trees=2)
    expectation = Expectation.of(world.case.ensemble, world.case.density)
    evidence = expectation.evidence(world.table, world.case.holes)
    (whole,) = gathered(LeafSums, (world, expectation.engine, evidence), [(0, 20)])
    split = int(whole.leaf_start[1])
    first = LeafSums(
        whole.leaf_start[:2], whole.weight[:split], whole.target[:split], whole.square[:1],
        whole.total[:1],
    )  # fmt: skip
    second = LeafSums(
        whole.leaf_start[1:] - split, whole.weight[split:], whole.target[split:],
        whole.square[1:], whole.total[1:],
    )  # fmt: skip
    joined = LeafSums.of_trees([first, second])
    np.testing.assert_array_equal(joined.leaf_start, whole.leaf_start)
    np.testing.assert_array_equal(joined.solve(0.1), whole.solve(0.1))
    np.testing.assert_array_equal(joined.loss(joined.target), whole.loss(whole.target))
