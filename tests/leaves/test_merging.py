"""Sums are additive: blocks, files and workers give what one pass gives."""

from functools import reduce
from itertools import pairwise

import numpy as np
import pytest
from tests.leaves.worlds import random_world

from knothole.arrays import joined
from knothole.expectation.expectation import Expectation
from knothole.leaves.sums import LeafSums, LeafSystem, Summands


@pytest.fixture(scope="module", params=["Mixture", "LatentTree"])
def parts(request):
    world = random_world(11, request.param, n_rows=200, n_trees=3)
    expectation = Expectation.of(world.case.ensemble, world.case.density)
    evidence = expectation.density.evidence(world.table, world.case.missing_mask)
    return world, expectation.engine, evidence


def gathered(kind, parts, bounds):
    world, engine, evidence = parts
    rows = Summands(evidence, world.y, world.weight)
    return [kind.gathered(engine, rows[a:b]) for a, b in bounds]


def in_blocks(n):
    edges = np.linspace(0, 200, n + 1).astype(int).tolist()
    return list(pairwise(edges))


@pytest.mark.parametrize("kind", [LeafSums, LeafSystem])
@pytest.mark.parametrize("ridge", [0.0, 1.0])
def test_one_block_and_a_hundred_agree_in_any_order(kind, ridge, parts):
    (whole,) = gathered(kind, parts, in_blocks(1))
    pieces = gathered(kind, parts, in_blocks(100))
    order = np.random.default_rng(0).permutation(100)
    merged = reduce(joined, [pieces[i] for i in order])
    np.testing.assert_allclose(merged.solve(ridge), whole.solve(ridge), atol=1e-10)
    np.testing.assert_allclose(merged.total, whole.total)
    start = parts[0].case.ensemble.leaf_start
    value = merged.target
    losses, all_at_once = (one.tree_losses(value, start) for one in (merged, whole))
    np.testing.assert_allclose(losses, all_at_once, atol=1e-10)
    if kind is LeafSystem:
        in_turn = [one.solve_in_turn(start, ridge) for one in (merged, whole)]
        np.testing.assert_allclose(*in_turn, atol=1e-10)
        np.testing.assert_allclose(
            merged.loss(whole.solve(ridge)), whole.loss(whole.solve(ridge)), atol=1e-10
        )
