"""What a tree model is once read: plain frozen arrays, the same for every library.

One rule everywhere, in float64: **go left iff x < cut**. A categorical split is a set of category
codes that go left, kept as bits (:mod:`knothole.compiled.bits`). Siblings are stored side by side,
so ``right == left + 1`` and the children of a node need one number. A tree's margin is ``weight *
value[leaf]``, added to the outputs that the tree serves, on top of ``base``.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Integers, Ints, Mask, Words
from knothole.checks import require
from knothole.columns.columns import Columns
from knothole.columns.evidence import with_nan
from knothole.errors import InvalidInput
from knothole.trees import layout, traverse
from knothole.trees.links import IDENTITY, Blend, Link
from knothole.trees.recipe import UNTOLD, Recipe


@dataclass(frozen=True, eq=False)
class Nodes:
    """Trees as a reader finds them: one entry a node, in any order, children by position.

    Attributes are as in :class:`Ensemble`, but for these:

    Attributes
    ----------
    left, right : int arrays (nodes,)
        Positions of the children; ignored at leaves.
    value, native_leaf : arrays (nodes, width) and (nodes,)
        Ignored at inner nodes, as ``cut`` is at leaves and categorical splits.
    set_start, sets : int array (nodes,) and uint64 array, optional
        Without them, all splits are numeric.
    tree_output, tree_weight : arrays (trees,), optional
        By default every tree serves the first output, and weighs 1.
    """

    roots: NDArray[Any]
    feature: NDArray[Any]
    cut: Floats
    left: NDArray[Any]
    right: NDArray[Any]
    missing_left: Mask
    value: Floats
    native_leaf: NDArray[Any]
    set_start: NDArray[Any] | None = None
    sets: Words | None = None
    tree_output: Any = None
    tree_weight: Any = None


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
    link : Link or Blend
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
    recipe : Recipe
        How the model was trained, as far as the library tells.
    """

    columns: Columns
    roots: Integers
    feature: Integers
    cut: Floats
    left: Integers
    missing_left: Mask
    set_start: Integers
    sets: Words
    leaf_start: Ints
    value: Floats
    native_leaf: Integers
    tree_output: Integers
    tree_weight: Floats
    base: Floats
    link: Link | Blend
    classes: tuple[Hashable, ...] | None
    library: str
    precision: str
    sentinel: Floats = field(repr=False)
    recipe: Recipe = UNTOLD

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
        link: Link | Blend = IDENTITY,
        classes: tuple[Hashable, ...] | None = None,
        sentinel: Any = None,
    ) -> Ensemble:
        """Lay out a reader's nodes: validated, siblings side by side, one tree after the other.

        Anything that is not a forest of proper binary trees over these columns with finite
        leaf values is refused with :class:`~knothole.errors.DamagedFile`.
        """
        base = np.array(base, dtype=np.float64).reshape(-1)
        require(np.isfinite(base).all(), f"the base score is not finite: {base}")
        n_levels = np.array([len(column.levels) for column in columns], dtype=np.int64)
        laid = layout.lay_out(nodes, n_levels, len(base))
        if sentinel is None:
            sentinel = np.full((len(columns), 2), np.nan)
        fits = np.shape(sentinel) == (len(columns), 2)
        require(fits, "values that count as NaN are not given by column")
        return cls(
            columns=columns,
            **laid,
            base=base,
            link=link,
            classes=classes,
            library=library,
            precision=precision,
            sentinel=np.array(sentinel, dtype=np.float64),
        )

    def trained_by(self, recipe: Recipe) -> Ensemble:
        """The same, with what is known of its training."""
        return replace(self, recipe=recipe)

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

    @property
    def n_responses(self) -> int:
        """How many numbers a prediction has: as a margin, but for models made of models."""
        return self.link.responses(self.n_outputs)

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
    def parent(self) -> Integers:
        """The parent of each node; -1 at a root."""
        inner = np.flatnonzero(self.feature >= 0)
        parent = np.full(len(self.feature), -1, dtype=np.int32)
        parent[self.left[inner]] = parent[self.left[inner] + 1] = inner
        return parent

    @cached_property
    def _walker(self) -> traverse.Walker:
        return traverse.Walker(self)

    def leaves(self, X: Floats, threads: int | None = None) -> Integers:
        """Leaf (by number in this ensemble) of every row in every tree, NaN by the library's rule.

        Parameters
        ----------
        X : float64 (rows, columns)
            Numbers and category codes as :class:`~knothole.columns.columns.Columns` encodes them.
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
