"""Random ensembles of every shape, and rows that tell their leaves apart.

``ensembles()`` is a hypothesis strategy; ``random_ensemble`` makes one from a seed. Nodes come
shuffled, as a reader may find them, so that laying them out is part of what is tested.
"""

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from knothole.bits import set_words
from knothole.columns.columns import Column, Columns, Kind
from knothole.trees.ensemble import Ensemble, Nodes
from knothole.trees.verify import probe_rows


@dataclass(frozen=True)
class Shape:
    """What a generated ensemble looks like.

    ``levels`` has one entry a column: 0 for a numeric one, else its number of categories.
    ``lopsided`` trees split only one child of each node, so that depth costs few nodes.
    """

    seed: int = 0
    n_trees: int = 3
    depth: int = 4
    levels: tuple[int, ...] = (0, 0, 0)
    width: int = 1
    n_outputs: int = 1
    lopsided: bool = False
    sentinel: bool = False


def shapes(max_depth=5):
    """A hypothesis strategy for shapes of ensembles."""
    widths = st.sampled_from([(1, 1), (1, 3), (3, 3), (2, 4)])
    return st.builds(
        lambda widths, **rest: Shape(width=widths[0], n_outputs=widths[1], **rest),
        widths=widths,
        seed=st.integers(0, 2**32 - 1),
        n_trees=st.integers(0, 5),
        depth=st.integers(0, max_depth),
        levels=st.lists(
            st.sampled_from([0, 0, 1, 2, 5, 63, 64, 65, 130]), min_size=1, max_size=5
        ).map(tuple),
        lopsided=st.booleans(),
        sentinel=st.booleans(),
    )


def ensembles(max_depth=5):
    """A hypothesis strategy for ensembles."""
    return shapes(max_depth).map(random_ensemble)


def columns_with(levels):
    """Columns with these numbers of categories, 0 for a numeric one."""
    return Columns(
        tuple(
            Column(f"c{i}", Kind.CATEGORICAL, tuple(f"level {k}" for k in range(n)))
            if n
            else Column(f"n{i}")
            for i, n in enumerate(levels)
        )
    )


def random_ensemble(shape=None, **changes):
    """An ensemble of this shape; ``random_ensemble(depth=2)`` changes the usual one."""
    shape = shape or Shape(**changes)
    rng = np.random.default_rng(shape.seed)
    sentinel = np.full((len(shape.levels), 2), np.nan)
    if shape.sentinel:
        sentinel[0] = [-0.25, 0.25]
    nodes = random_nodes(shape, rng)
    base = rng.normal(size=shape.n_outputs)
    output = rng.integers(0, shape.n_outputs - shape.width + 1, shape.n_trees)
    return Ensemble.build(
        replace(nodes, tree_output=output, tree_weight=rng.normal(size=shape.n_trees)),
        columns=columns_with(shape.levels),
        base=base,
        library="generated",
        precision="float64",
        sentinel=sentinel,
    )


def random_nodes(shape, rng):
    """Nodes in random order; thresholds come from a grid, so that they repeat."""
    children: list[tuple[int, int] | None] = []

    def grow(depth):
        node = len(children)
        children.append(None)
        if depth > 0 and (depth == shape.depth or rng.random() < 0.8):
            is_left = rng.random() < 0.5
            short = 0 if shape.lopsided else depth - 1
            sides = (short, depth - 1) if is_left else (depth - 1, short)
            children[node] = (grow(sides[0]), grow(sides[1]))
        return node

    roots = [grow(shape.depth) for _ in range(shape.n_trees)]
    n = len(children)
    leaf = np.array([pair is None for pair in children], dtype=bool)
    left, right = (
        np.array([0 if pair is None else pair[side] for pair in children], dtype=np.int32)
        for side in (0, 1)
    )
    feature = np.where(leaf, -1, rng.integers(0, len(shape.levels), n)).astype(np.int32)
    set_start, sets = _random_sets(feature, np.array(shape.levels), rng)
    threshold = np.where(rng.random(n) < 0.05, np.inf, np.round(rng.normal(size=n), 1))
    place = rng.permutation(n).astype(np.int32)  # where node i is stored
    by_place = np.argsort(place)
    return Nodes(
        roots=place[roots] if roots else np.zeros(0, dtype=np.int32),
        feature=feature[by_place],
        threshold=threshold[by_place],
        left=np.where(leaf, -1, place[left])[by_place],
        right=np.where(leaf, -1, place[right])[by_place],
        missing_left=rng.random(n) < 0.5,
        value=np.where(leaf[:, None], rng.normal(size=(n, shape.width)), np.nan)[by_place],
        native_leaf=rng.permutation(n).astype(np.int32),
        set_start=set_start[by_place],
        sets=sets,
    )


def _random_sets(feature, levels, rng):
    set_start = np.full(len(feature), -1, dtype=np.int32)
    words: list[int] = []
    for node in np.flatnonzero((feature >= 0) & (levels[feature] > 0)):
        n_bits = int(levels[feature[node]]) + 1
        set_start[node] = len(words)
        bits = np.zeros(64 * set_words(n_bits - 1), dtype=np.uint8)
        bits[:n_bits] = rng.integers(0, 2, n_bits)
        words.extend(np.packbits(bits, bitorder="little").view(np.uint64).tolist())
    return set_start, np.array(words, dtype=np.uint64)


def random_rows(ensemble, n_rows, seed=0):
    """Rows at and around thresholds, with NaN and unseen categories; see ``probe_rows``."""
    return probe_rows(ensemble, n_rows, np.random.default_rng(seed))
