"""What a tree model is once read: plain frozen arrays, the same for every library.

One rule everywhere, in float64: **go left iff x < cut**. A categorical split is a set of category
codes that go left, kept as bits. Siblings are stored side by side, so ``right == left + 1`` and
the children of a node need one number. A tree's margin is ``weight * value[leaf]``, added to the
outputs that the tree serves, on top of ``base``.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Integers
from knothole.errors import DamagedFile, InvalidInput
from knothole.tables.columns import Columns
from knothole.tables.holes import with_nan
from knothole.trees import layout, traverse
from knothole.trees.links import Link


@dataclass(frozen=True, eq=False)
class Nodes:
    """Trees as a reader finds them: one entry a node, in any order, children by position.

    Attributes
    ----------
    roots : int array (trees,)
        Position of each tree's root.
    feature : int array (nodes,)
        Column the node splits on; -1 at a leaf.
    cut : float array (nodes,)
        Go left iff x < cut. Ignored at leaves and categorical splits.
    left, right : int arrays (nodes,)
        Positions of the children; ignored at leaves.
    missing_left : bool array (nodes,)
        Where the library itself sends a NaN.
    value : float array (nodes, width)
        Leaf values; ignored at inner nodes.
    native_leaf : int array (nodes,)
        The library's own number for a leaf (what its ``apply`` or ``pred_leaf`` returns).
    set_start : int array (nodes,), optional
        First word of the node's set in ``sets``, -1 for a numeric split.
    sets : uint64 array, optional
        All sets (:mod:`knothole.compiled.bits`): the categories that go left.
    """

    roots: Integers
    feature: Integers
    cut: Floats
    left: Integers
    right: Integers
    missing_left: NDArray[np.bool_]
    value: Floats
    native_leaf: Integers
    set_start: Integers | None = None
    sets: NDArray[np.uint64] | None = None


@dataclass(frozen=True, eq=False)
class Ensemble:
    """A tree model as frozen arrays; see the module's docstring for the rule.

    Attributes
    ----------
    columns : Columns
        What the trees split on, in the model's own order.
    roots : int32 (trees,)
        Root node of each tree. A tree's nodes and leaves are contiguous, in tree order.
    feature : int32 (nodes,)
        Column of the split, -1 at a leaf.
    cut : float64 (nodes,)
        Go left iff x < cut; NaN at leaves and at categorical splits.
    left : int32 (nodes,)
        Left child (the right one is ``left + 1``); at a leaf, the leaf's number.
    missing_left : bool (nodes,)
        The library's own side for NaN.
    set_start : int32 (nodes,)
        First word of a categorical split's set of left-going codes in ``sets``; -1 otherwise.
    sets : uint64 (words,)
        The sets; see :mod:`knothole.compiled.bits`.
    leaf_start : int64 (trees + 1,)
        Leaves ``leaf_start[t]`` to ``leaf_start[t + 1]`` belong to tree ``t``.
    value : float64 (leaves, width)
        Leaf values, as the library stores them. ``width`` is 1 where each tree serves one output.
    native_leaf : int32 (leaves,)
        The library's own number for each leaf.
    tree_output : int32 (trees,)
        First output that a tree's values are added to.
    tree_weight : float64 (trees,)
        What a tree's values are multiplied by.
    base : float64 (outputs,)
        Margin before any tree.
    link : Link
        From margin to prediction.
    classes : tuple or None
        Class labels of a classifier, in the order of its outputs (binary with a sigmoid: two
        labels, one output, the margin is that of the second). A scikit-learn classifier of
        several targets has one tuple of labels for each; their outputs follow one another.
    library : str
        Where the model came from, for messages.
    precision : {"float32", "float64"}
        The arithmetic of the library's own prediction.
    sentinel : float64 (columns, 2)
        Values from the first to the second number count as NaN (NaN: none do).
    """

    columns: Columns
    roots: Integers
    feature: Integers
    cut: Floats
    left: Integers
    missing_left: NDArray[np.bool_]
    set_start: Integers
    sets: NDArray[np.uint64]
    leaf_start: NDArray[np.int64]
    value: Floats
    native_leaf: Integers
    tree_output: Integers
    tree_weight: Floats
    base: Floats
    link: Link
    classes: tuple[Hashable, ...] | None
    library: str
    precision: str
    sentinel: Floats = field(repr=False)

    def __post_init__(self) -> None:
        for item in vars(self).values():
            if isinstance(item, np.ndarray):
                item.flags.writeable = False

    @classmethod
    def build(
        cls,
        nodes: Nodes,
        *,
        columns: Columns,
        base: Any,
        library: str,
        precision: str,
        tree_output: Any = None,
        tree_weight: Any = None,
        link: Link | None = None,
        classes: tuple[Hashable, ...] | None = None,
        sentinel: Any = None,
    ) -> Ensemble:
        """Lay out a reader's nodes: validated, siblings side by side, one tree after the other.

        Anything that is not a forest of proper binary trees over these columns with finite
        leaf values is refused with :class:`~knothole.errors.DamagedFile`.
        """
        n_trees = len(nodes.roots)
        base = np.array(base, dtype=np.float64).reshape(-1)
        if not np.isfinite(base).all():
            raise DamagedFile(f"{library}: the base score is not finite: {base}.")
        value = np.asarray(nodes.value, dtype=np.float64)
        if value.ndim == 1:
            value = value[:, None]
        n_levels = np.array([len(column.levels) for column in columns], dtype=np.int64)
        laid = layout.lay_out(nodes, value, n_levels, library)
        tree_output = np.zeros(n_trees) if tree_output is None else np.asarray(tree_output)
        tree_weight = np.ones(n_trees) if tree_weight is None else np.asarray(tree_weight)
        width = value.shape[1]
        if len(tree_output) != n_trees or len(tree_weight) != n_trees:
            raise DamagedFile(f"{library}: {n_trees} trees, but not as many outputs or weights.")
        if n_trees and not (tree_output.min() >= 0 and tree_output.max() + width <= len(base)):
            raise DamagedFile(f"{library}: a tree serves an output that the model does not have.")
        if not np.isfinite(tree_weight).all():
            raise DamagedFile(f"{library}: a tree's weight is not finite.")
        if sentinel is None:
            sentinel = np.full((len(columns), 2), np.nan)
        return cls(
            columns=columns,
            **laid,
            tree_output=tree_output.astype(np.int32),
            tree_weight=tree_weight.astype(np.float64),
            base=base,
            link=Link("identity") if link is None else link,
            classes=classes,
            library=library,
            precision=precision,
            sentinel=np.array(sentinel, dtype=np.float64),
        )

    @property
    def n_trees(self) -> int:
        """How many trees."""
        return len(self.roots)

    @property
    def n_leaves(self) -> int:
        """How many leaves, over all trees."""
        return len(self.value)

    @property
    def n_outputs(self) -> int:
        """How many numbers a margin has."""
        return len(self.base)

    @cached_property
    def leaf_tree(self) -> Integers:
        """The tree of each leaf."""
        counts = np.diff(self.leaf_start)
        return np.repeat(np.arange(self.n_trees, dtype=np.int32), counts)

    @cached_property
    def n_levels(self) -> Integers:
        """Number of categories of each column; 0 where it is numeric."""
        return np.array([len(column.levels) for column in self.columns], dtype=np.int32)

    @cached_property
    def _walker(self) -> traverse.Walker:
        return traverse.Walker(self)

    def leaves(self, X: Floats, threads: int | None = None) -> Integers:
        """Leaf (by number in this ensemble) of every row in every tree, NaN by the library's rule.

        Parameters
        ----------
        X : float64 (rows, columns)
            Numbers and category codes as :class:`~knothole.tables.columns.Columns` encodes them.
        threads : int, optional
            See :func:`knothole.compiled.threads.thread_count`.
        """
        return self._walker.leaves(self._checked(X), threads)

    def margin(self, X: Floats, threads: int | None = None) -> Floats:
        """Margin (rows, outputs) of every row, NaN by the library's own rule."""
        return self._walker.margin(self._checked(X), threads)

    def predict(self, X: Floats, threads: int | None = None) -> Floats:
        """Margin through the link (rows, outputs): responses, or class probabilities."""
        return self.link(self.margin(X, threads))

    def with_values(self, value: Floats) -> Ensemble:
        """The same trees with other leaf values, shape ``(leaves, width)``."""
        value = np.array(value, dtype=np.float64)
        if value.shape != self.value.shape:
            raise InvalidInput(f"value must have shape {self.value.shape}; got {value.shape}.")
        if not np.isfinite(value).all():
            raise InvalidInput("value must be finite everywhere.")
        return replace(self, value=value)

    def _checked(self, X: Floats) -> Floats:
        X = np.asarray(X, dtype=np.float64)
        if X.ndim != 2 or X.shape[1] != len(self.columns):
            raise InvalidInput(
                f"X must have shape (rows, {len(self.columns)}), one column for each of the "
                f"model's; got {X.shape}."
            )
        return with_nan(X, self.sentinel, self.columns)
