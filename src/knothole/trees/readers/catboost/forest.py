"""CatBoost's trees as one set of node arrays, whichever way they were grown and stored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from knothole.arrays import Ints
from knothole.compiled.bits import starts
from knothole.trees.strict import Strict

strict = Strict("catboost", "Save the model again with catboost.")
# More splits than this on every path cannot be trained, and would not fit in memory.
DEEPEST = 24
NO_SUCH_SPLIT = "a split on a border that the model does not have"


@dataclass(frozen=True, eq=False)
class Forest:
    """All trees of a model: nodes in any order, children by position.

    ``tree`` is the tree of each node, ``split`` the number of the question that it asks (-1 at a
    leaf), ``leaf`` a leaf's position in the model's leaf values (0 elsewhere), and ``first_leaf``
    the position of each tree's first leaf.
    """

    roots: Ints
    tree: Ints
    split: Ints
    left: Ints
    right: Ints
    leaf: Ints
    first_leaf: Ints


def check_symmetric(depth: Ints, n_leaves: int) -> None:
    """Refuse symmetric trees whose depths do not account for every leaf, before they are grown."""
    strict.within(depth, DEEPEST + 1, f"a tree's depth is not between 0 and {DEEPEST}")
    strict.count("leaves", int((1 << depth).sum()), n_leaves)


def symmetric(depth: Ints, split: Ints) -> Forest:
    """Binary trees of symmetric ones, which ask the same question everywhere on a level.

    Bit k of a leaf's number is the answer to the tree's k-th split. Each tree becomes a heap: node
    i has children 2 i + 1 and 2 i + 2, and its level's split is the tree's last but level; so the
    leaves, from left to right, have the numbers that CatBoost gives them.
    """
    in_tree = 1 << depth
    n_nodes = 2 * in_tree - 1
    roots, first_leaf = starts(n_nodes), starts(in_tree)
    tree = np.repeat(np.arange(len(depth)), n_nodes)
    node = np.arange(len(tree)) - roots[tree]
    inner = node < in_tree[tree] - 1
    level = np.frexp(node + 1.0)[1] - 1
    question = starts(depth)[tree] + depth[tree] - 1 - level
    left = np.where(inner, np.arange(len(tree)) + node + 1, 0)
    return Forest(
        roots=roots,
        tree=tree,
        split=np.where(inner, np.append(split, 0)[np.where(inner, question, 0)], -1),
        left=left,
        right=left + 1,
        leaf=np.where(inner, 0, first_leaf[tree] + node - (in_tree[tree] - 1)),
        first_leaf=first_leaf,
    )
