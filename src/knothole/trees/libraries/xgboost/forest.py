"""The trees in an XGBoost model document, JSON or UBJ alike, as one set of node arrays.

A tree is an object of parallel lists, one entry a node. It goes left iff float32(x) <
float32(threshold). A categorical split lists the categories that go *right*; all others go left,
also those it never saw. The right child always follows the left one: XGBoost's own prediction
relies on it and never looks at ``right_children``, so a file that says otherwise is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.errors import DamagedFile, UnsupportedModel
from knothole.trees.ensemble import Nodes
from knothole.trees.libraries.cuts import cut_less_float32

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]

# What XGBoost puts in the place of the column of a node that pruning deleted.
DELETED = 2**31 - 1
# A code stands for as many levels as there are below it: these bound what one number can cost.
MAX_CATEGORIES = 2**20
MAX_SET_WORDS = 2**25


def field(document: Any, *path: str) -> Any:
    """What a document holds under these keys, one in the other."""
    for depth, key in enumerate(path):
        if not isinstance(document, dict) or key not in document:
            raise DamagedFile(
                f"XGBoost: the model has no field {'.'.join(path[: depth + 1])!r}. knothole reads "
                f"the JSON and UBJ formats of XGBoost 2.0 to 3.x; load the model with one of these "
                f"and save it again."
            )
        document = document[key]
    return document


def integers(values: Any, name: str) -> Int64s:
    """A list or array of whole numbers."""
    array = np.asarray(values)
    whole = array.dtype.kind in "ib" or (array.dtype.kind == "u" and array.dtype.itemsize < 8)
    if array.ndim != 1 or (len(array) and not whole):
        raise DamagedFile(f"XGBoost: {name} must be a list of whole numbers.")
    return array.astype(np.int64)


def floats(values: Any, name: str) -> Float32s:
    """A list or array of numbers, in XGBoost's own precision."""
    array = np.asarray(values)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "fiu"):
        raise DamagedFile(f"XGBoost: {name} must be a list of numbers.")
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


@dataclass(frozen=True, eq=False)
class CategoricalSplits:
    """Categorical splits of all trees: node by position, and the categories that go right."""

    node: Int64s
    size: Int64s
    category: Int64s

    @property
    def split(self) -> Int64s:
        """For each entry of ``category``, the split it belongs to."""
        return np.repeat(np.arange(len(self.node)), self.size)


@dataclass(frozen=True, eq=False)
class Forest:
    """All trees of a model one after the other, as stored."""

    offset: Int64s
    left: Int64s
    leaf: NDArray[np.bool_]
    column: Int64s
    threshold: Float32s
    missing_left: NDArray[np.bool_]
    value: Float32s
    categorical: CategoricalSplits

    def highest_category(self, n_columns: int) -> Int64s:
        """The highest category that any split on a column names; -1 where there is none."""
        highest = np.full(n_columns, -1, dtype=np.int64)
        column = self.column[self.categorical.node][self.categorical.split]
        np.maximum.at(highest, column, self.categorical.category)
        return highest

    def nodes(self, n_levels: Int64s) -> Nodes:
        """The nodes, given the number of levels of each column (0: numeric)."""
        set_start, sets = self._sets(n_levels)
        numeric = ~self.leaf & (set_start < 0)
        if (n_levels[self.column[numeric]] > 0).any():
            raise DamagedFile("XGBoost: a numeric split on a categorical column.")
        return Nodes(
            roots=self.offset.astype(np.int32),
            feature=np.where(self.leaf, -1, self.column).astype(np.int32),
            cut=cut_less_float32(self.threshold),
            left=self.left.astype(np.int32),
            right=(self.left + 1).astype(np.int32),
            missing_left=self.missing_left,
            value=self.value.astype(np.float64),
            native_leaf=self.numbers_in_tree.astype(np.int32),
            set_start=set_start,
            sets=sets,
        )

    @property
    def numbers_in_tree(self) -> Int64s:
        """Each node's number in its own tree."""
        count = np.diff(np.append(self.offset, len(self.left)))
        return np.arange(len(self.left)) - np.repeat(self.offset, count)

    def _sets(self, n_levels: Int64s) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
        """For each node the first word of its set of left-going categories (or -1), and all sets.

        Every level and the bit for unseen ones start out as left; the listed ones are taken out.
        """
        splits = self.categorical
        levels = n_levels[self.column[splits.node]]
        if (splits.category >= levels[splits.split]).any():
            raise DamagedFile("XGBoost: a split names a category that its column does not have.")
        words = levels // 64 + 1
        if words.sum() > MAX_SET_WORDS:
            raise UnsupportedModel(
                f"XGBoost: the sets of the categorical splits would take {words.sum()} words of 64 "
                f"bits; up to {MAX_SET_WORDS} are read. Train on fewer categories or trees."
            )
        start = np.concatenate([[0], np.cumsum(words)])
        sets = np.full(start[-1], ~np.uint64(0))
        used_bits = (levels % 64 + 1).astype(np.uint64)
        sets[start[1:] - 1] >>= np.uint64(64) - used_bits
        bit = np.uint64(1) << (splits.category % 64).astype(np.uint64)
        np.bitwise_and.at(sets, start[splits.split] + splits.category // 64, ~bit)
        set_start = np.full(len(self.left), -1, dtype=np.int32)
        set_start[splits.node] = start[:-1]
        return set_start, sets


def forest(trees: list[Any], n_columns: int, n_outputs: int) -> Forest:
    """Put the trees of a document one after the other."""
    left = [integers(field(tree, "left_children"), "left_children") for tree in trees]
    count = np.array([len(nodes) for nodes in left], dtype=np.int64)
    said = [int(field(tree, "tree_param", "num_nodes")) for tree in trees]
    if said != count.tolist() or 0 in said:
        raise DamagedFile("XGBoost: a tree has not as many nodes as the file says, or none.")
    offset = np.concatenate([[0], np.cumsum(count)[:-1]]).astype(np.int64)
    whole = _Lists(trees, count)
    column = whole.integers("split_indices")
    child = np.concatenate(left)
    deleted = column == DELETED
    leaf = (child == -1) | deleted
    right, parent = whole.integers("right_children"), whole.integers("parents")
    _check_children(child, right, parent, leaf, deleted, offset, count)
    if not ((column >= 0) & (column < n_columns))[~leaf].all():
        raise DamagedFile(f"XGBoost: a split on a column that is none of the {n_columns}.")
    threshold = whole.floats("split_conditions")
    return Forest(
        offset=offset,
        left=child + np.repeat(offset, count),
        leaf=leaf,
        column=np.where(leaf, 0, column),
        threshold=threshold,
        missing_left=whole.integers("default_left") != 0,
        value=_values(trees, threshold, whole, leaf, n_outputs),
        categorical=_categorical(trees, whole, leaf, count, offset),
    )


class _Lists:
    """Lists of all trees under one key, checked to have an entry for each node."""

    def __init__(self, trees: list[Any], count: Int64s) -> None:
        self.trees = trees
        self.count = count

    def integers(self, key: str) -> Int64s:
        joined: Int64s = self._joined([integers(field(tree, key), key) for tree in self.trees], key)
        return joined

    def floats(self, key: str) -> Float32s:
        joined: Float32s = self._joined([floats(field(tree, key), key) for tree in self.trees], key)
        return joined

    def _joined(self, lists: list[NDArray[Any]], key: str) -> Any:
        lengths = np.array([len(entries) for entries in lists])
        if not np.array_equal(lengths, self.count):
            tree = int(np.argmax(lengths != self.count))
            raise DamagedFile(
                f"XGBoost: tree {tree} has {self.count[tree]} nodes, but {lengths[tree]} {key}."
            )
        return np.concatenate(lists)


def _check_children(
    left: Int64s,
    right: Int64s,
    parent: Int64s,
    leaf: NDArray[np.bool_],
    deleted: NDArray[np.bool_],
    offset: Int64s,
    count: Int64s,
) -> None:
    inner = ~leaf
    if not ((left >= 1) & (left + 1 < np.repeat(count, count)))[inner].all():
        raise DamagedFile("XGBoost: a node's child is not a node of its tree.")
    if not (right == left + 1)[inner].all():
        raise DamagedFile("XGBoost: a right child that does not follow the left one.")
    first = np.repeat(offset, count)
    child = (left + first)[inner]
    node = (np.arange(len(left)) - first)[inner]
    if not ((parent[child] == node) & (parent[child + 1] == node)).all():
        raise DamagedFile("XGBoost: a child whose parent is another node.")
    if deleted[child].any() or deleted[child + 1].any() or deleted[offset].any():
        raise DamagedFile("XGBoost: a tree leads to a node that was deleted.")


def leaf_width(tree: Any) -> int:
    """How many numbers a leaf of a tree holds."""
    return max(1, int(field(tree, "tree_param", "size_leaf_vector")))


def _values(
    trees: list[Any],
    threshold: Float32s,
    whole: _Lists,
    leaf: NDArray[np.bool_],
    n_outputs: int,
) -> Float32s:
    """Leaf values (nodes, width); those of inner nodes are never used."""
    widths = {leaf_width(tree) for tree in trees}
    if widths == {1}:
        return threshold[:, None]
    if widths != {n_outputs}:
        raise DamagedFile(
            f"XGBoost: the model has {n_outputs} outputs, but leaves of {sorted(widths)} numbers."
        )
    values = np.zeros((len(leaf), n_outputs), dtype=np.float32)
    stop = np.cumsum(whole.count)
    for tree, start, end in zip(trees, stop - whole.count, stop, strict=True):
        leaves = np.flatnonzero(leaf[start:end])
        table, row = vector_leaves(tree, leaves)
        weights = floats(field(tree, table), table).reshape(-1, n_outputs)
        if not ((row >= 0) & (row < len(weights))).all():
            raise DamagedFile("XGBoost: a leaf's values are not in the file.")
        values[start + leaves] = weights[row]
    return values


def vector_leaves(tree: Any, leaves: Int64s) -> tuple[str, Int64s]:
    """Where a tree keeps the values of vector leaves: the list's name, and each leaf's row in it.

    Since 3.1 leaves have a list of their own, and a leaf's row in it stands where its right child
    would be; before, leaves were among all nodes' weights.
    """
    if "leaf_weights" in tree:
        return "leaf_weights", integers(tree["right_children"], "right_children")[leaves]
    return "base_weights", leaves


def _categorical(
    trees: list[Any],
    whole: _Lists,
    leaf: NDArray[np.bool_],
    count: Int64s,
    offset: Int64s,
) -> CategoricalSplits:
    is_set = whole.integers("split_type") == 1
    is_set &= ~leaf
    nodes, sizes, categories = [], [], []
    for tree, n, first in zip(trees, count.tolist(), offset.tolist(), strict=True):
        node = integers(field(tree, "categories_nodes"), "categories_nodes")
        if not len(node):
            continue
        size = integers(field(tree, "categories_sizes"), "categories_sizes")
        start = integers(field(tree, "categories_segments"), "categories_segments")
        category = integers(field(tree, "categories"), "categories")
        if not (len(node) == len(size) == len(start)):
            raise DamagedFile("XGBoost: the lists of categorical splits differ in length.")
        if node.min() < 0 or node.max() >= n or (np.diff(node) <= 0).any():
            raise DamagedFile("XGBoost: the categorical splits of a tree are not in order.")
        # XGBoost writes the splits' categories one after the other, with nothing in between.
        if size.min() < 0 or not np.array_equal(start, np.cumsum(size) - size):
            raise DamagedFile("XGBoost: the categories of a split lie outside the list.")
        if size.sum() != len(category):
            raise DamagedFile("XGBoost: categories that belong to no split.")
        if (category < 0).any():
            raise DamagedFile(f"XGBoost: a category with the code {category.min()}.")
        if (category >= MAX_CATEGORIES).any():
            raise UnsupportedModel(
                f"XGBoost: a category with the code {category.max()}; those up to "
                f"{MAX_CATEGORIES - 1} are read. Number the categories from 0, without gaps."
            )
        nodes.append(node + first)
        sizes.append(size)
        categories.append(category)
    node, size, category = (
        np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        for parts in (nodes, sizes, categories)
    )
    if not np.array_equal(node[is_set[node]], np.flatnonzero(is_set)):
        raise DamagedFile("XGBoost: a categorical split without its categories.")
    kept = is_set[node]
    return CategoricalSplits(node[kept], size[kept], category[np.repeat(kept, size)])
