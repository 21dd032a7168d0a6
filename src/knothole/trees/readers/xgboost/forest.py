"""The trees in an XGBoost model document, JSON or UBJ alike, as one set of node arrays.

A tree is an object of parallel lists, one entry a node. It goes left iff float32(x) <
float32(threshold). A categorical split lists the categories that go *right*; all others go left,
also those it never saw. The right child always follows the left one: XGBoost's own prediction
relies on it and never looks at ``right_children``, so a file that says otherwise is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Integers, Ints, Mask, Words
from knothole.compiled.bits import complement, pack, set_words, starts
from knothole.errors import UnsupportedModel
from knothole.trees.ensemble import Nodes
from knothole.trees.readers.cuts import cut_less_float32
from knothole.trees.strict import Strict

Float32s = NDArray[np.float32]

strict = Strict(
    "XGBoost",
    "knothole reads the JSON and UBJ formats of XGBoost 2.0 to 3.x; load the model with one of "
    "these and save it again.",
)
# What XGBoost puts in the place of the column of a node that pruning deleted.
DELETED = 2**31 - 1
# A code stands for as many levels as there are below it: these bound what one number can cost.
MAX_CATEGORIES = 2**20
MAX_SET_WORDS = 2**25


def floats(values: Any, name: str) -> Float32s:
    """A list or array of numbers, in XGBoost's own precision."""
    with np.errstate(over="ignore"):
        return strict.numbers(values, name).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Forest:
    """All trees of a model one after the other, as stored.

    ``set_node`` are the nodes with categorical splits. Of the pairs ``right_split`` and
    ``right_category``, the first is a position there, the second a category that goes right.
    """

    offset: Ints
    left: Ints
    leaf: Mask
    column: Ints
    threshold: Float32s
    missing_left: Mask
    value: Float32s
    set_node: Ints
    right_split: Ints
    right_category: Ints

    def highest_category(self, n_columns: int) -> Ints:
        """The highest category that any split on a column names; -1 where there is none."""
        highest = np.full(n_columns, -1, dtype=np.int64)
        column = self.column[self.set_node][self.right_split]
        np.maximum.at(highest, column, self.right_category)
        return highest

    def nodes(self, n_levels: Ints, tree_output: Any, tree_weight: Any) -> Nodes:
        """The nodes, given the number of levels of each column (0: numeric)."""
        set_start, sets = self._sets(n_levels)
        numeric = ~self.leaf & (set_start < 0)
        of_categories = n_levels[self.column[numeric]].any()
        strict.require(not of_categories, "a numeric split on a categorical column")
        count = np.diff(np.append(self.offset, len(self.left)))
        return Nodes(
            roots=self.offset,
            feature=np.where(self.leaf, -1, self.column),
            cut=cut_less_float32(self.threshold),
            left=self.left,
            right=self.left + 1,
            missing_left=self.missing_left,
            value=self.value.astype(np.float64),
            native_leaf=np.arange(len(self.left)) - np.repeat(self.offset, count),
            set_start=set_start,
            sets=sets,
            tree_output=tree_output,
            tree_weight=tree_weight,
        )

    def _sets(self, n_levels: Ints) -> tuple[Integers, Words]:
        """For each node the first word of its left-going categories (or -1), and all words."""
        levels = n_levels[self.column[self.set_node]]
        known = self.right_category < levels[self.right_split]
        strict.require(known.all(), "a split names a category that its column does not have")
        n_words = set_words(levels).sum()
        if n_words > MAX_SET_WORDS:
            raise UnsupportedModel(
                f"XGBoost: the sets of the categorical splits would take {n_words} words of 64 "
                f"bits; up to {MAX_SET_WORDS} are read. Train on fewer categories or trees."
            )
        start, right = pack(levels, self.right_split, self.right_category)
        set_start = np.full(len(self.left), -1, dtype=np.int32)
        set_start[self.set_node] = start
        return set_start, complement(levels, right)


def forest(trees: list[Any], n_columns: int, n_outputs: int) -> Forest:
    """Put the trees of a document one after the other."""
    count = np.array([int(strict.field(tree, "tree_param", "num_nodes")) for tree in trees])

    def per_node(key: str, convert: Callable[[Any, str], Any] = strict.integers) -> Any:
        joined, lengths = _joined(trees, key, convert)
        wrong = f"a tree's {key} are not as many as the nodes that it says it has, or none"
        strict.require(np.array_equal(lengths, count) and count.min() > 0, wrong)
        return joined

    left, column = per_node("left_children"), per_node("split_indices")
    deleted = column == DELETED
    leaf = (left == -1) | deleted
    offset = starts(count)
    _check_children(left, per_node("right_children"), per_node("parents"), leaf, offset, count)
    child = (left + np.repeat(offset, count))[~leaf]
    reached = np.concatenate([offset, child, child + 1])
    strict.require(not deleted[reached].any(), "a tree leads to a node that was deleted")
    strict.within(column[~leaf], n_columns, f"a split on a column that is none of the {n_columns}")
    threshold = per_node("split_conditions", floats)
    is_set = (per_node("split_type") == 1) & ~leaf
    set_node, right_split, right_category = _categorical(trees, is_set, offset, count)
    return Forest(
        offset=offset,
        left=left + np.repeat(offset, count),
        leaf=leaf,
        column=np.where(leaf, 0, column),
        threshold=threshold,
        missing_left=per_node("default_left") != 0,
        value=_values(trees, threshold, leaf, offset, n_outputs),
        set_node=set_node,
        right_split=right_split,
        right_category=right_category,
    )


def _joined(
    trees: list[Any], key: str, convert: Callable[[Any, str], Any] = strict.integers
) -> tuple[Any, Ints]:
    """A list of all trees, one after the other, and how much of it each tree has."""
    lists = [convert(strict.field(tree, key), key) for tree in trees]
    return np.concatenate(lists), np.array([len(entries) for entries in lists])


def _check_children(
    left: Ints, right: Ints, parent: Ints, leaf: Mask, offset: Ints, count: Ints
) -> None:
    inner = ~leaf
    inside = (left >= 1) & (left + 1 < np.repeat(count, count))
    strict.require(inside[inner].all(), "a node's child is not a node of its tree")
    follows = right == left + 1
    strict.require(follows[inner].all(), "a right child that does not follow the left one")
    first = np.repeat(offset, count)
    child = (left + first)[inner]
    node = (np.arange(len(left)) - first)[inner]
    agree = (parent[child] == node) & (parent[child + 1] == node)
    strict.require(agree.all(), "a child whose parent is another node")


def _values(
    trees: list[Any], threshold: Float32s, leaf: Mask, offset: Ints, n_outputs: int
) -> Float32s:
    """Leaf values (nodes, width); those of inner nodes are never used."""
    sizes = {int(strict.field(tree, "tree_param", "size_leaf_vector")) for tree in trees}
    widths = {max(1, size) for size in sizes}
    if widths == {1}:
        return threshold[:, None]
    strict.require(widths == {n_outputs}, f"leaves of {widths} numbers, not {n_outputs}")
    values = np.zeros((len(leaf), n_outputs), dtype=np.float32)
    for tree, start, in_tree in zip(trees, offset, np.split(leaf, offset[1:]), strict=True):
        leaves = np.flatnonzero(in_tree)
        table, row = vector_leaves(tree, leaves)
        weights = floats(strict.field(tree, table), table).reshape(-1, n_outputs)
        strict.within(row, len(weights), "a leaf's values are not in the file")
        values[start + leaves] = weights[row]
    return values


def vector_leaves(tree: Any, leaves: Ints) -> tuple[str, Ints]:
    """Where a tree keeps the values of vector leaves: the list's name, and each leaf's row in it.

    Since 3.1 leaves have a list of their own, and a leaf's row in it stands where its right child
    would be; before, leaves were among all nodes' weights.
    """
    if "leaf_weights" in tree:
        return "leaf_weights", strict.integers(tree["right_children"], "right_children")[leaves]
    return "base_weights", leaves


def _categorical(
    trees: list[Any], is_set: Mask, offset: Ints, count: Ints
) -> tuple[Ints, Ints, Ints]:
    """``set_node``, ``right_split`` and ``right_category`` of a :class:`Forest`."""
    node, n_splits = _joined(trees, "categories_nodes")
    size, n_sizes = _joined(trees, "categories_sizes")
    start, n_starts = _joined(trees, "categories_segments")
    category, n_categories = _joined(trees, "categories")
    same = np.array_equal(n_splits, n_sizes) and np.array_equal(n_splits, n_starts)
    strict.require(same, "the lists of categorical splits differ in length")
    tree = np.repeat(np.arange(len(trees)), n_splits)
    inside = (node >= 0) & (node < count[tree])
    node = node + offset[tree]
    in_order = inside.all() and (np.diff(node) > 0).all()
    strict.require(in_order, "the categorical splits of a tree are not in order")
    # XGBoost writes the splits' categories one after the other, with nothing in between.
    total = np.bincount(tree, size, len(trees))
    whole = (size >= 0).all() and np.array_equal(total, n_categories)
    strict.require(whole, "categories that belong to no split")
    together = np.array_equal(start + starts(n_categories)[tree], starts(size))
    strict.require(together, "the categories of a split lie outside the list")
    strict.require((category >= 0).all(), "a category with a negative code")
    if (category >= MAX_CATEGORIES).any():
        raise UnsupportedModel(
            f"XGBoost: a category with the code {category.max()}; those up to "
            f"{MAX_CATEGORIES - 1} are read. Number the categories from 0, without gaps."
        )
    # A node that pruning made a leaf may still be listed.
    kept = is_set[node]
    complete = np.array_equal(node[kept], np.flatnonzero(is_set))
    strict.require(complete, "a categorical split without its categories")
    split = np.repeat(np.cumsum(kept) - 1, size)
    used = np.repeat(kept, size)
    return node[kept], split[used], category[used]
