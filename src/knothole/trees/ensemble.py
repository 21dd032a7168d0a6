"""The common form of a tree model: plain frozen arrays, the same for every library.

One rule everywhere, in float64: **go left iff x < threshold**. A categorical split has the set of
category codes that go left, stored as bits (:mod:`knothole.bits`). Siblings are stored side by
side: ``right == left + 1``, so that one number says where the children of a node are. A tree adds
``weight * value[leaf]`` to the outputs that it serves, on top of ``base``.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Integers, Ints, Mask, Words
from knothole.bits import members, pack, set_words
from knothole.cached import cached_property
from knothole.checks import check_choice, check_within, require
from knothole.columns.columns import Column, Columns
from knothole.columns.evidence import with_nan
from knothole.errors import InvalidInput
from knothole.trees import traverse
from knothole.trees.curves import Curves
from knothole.trees.links import IDENTITY, Blend, Link

#: Kinds of model whose ``predict`` returns neither a response nor a label: see :class:`Recipe`.
TASKS = ("", "anomaly", "quantiles", "survival")
#: The quantile that minimises the absolute error.
MEDIAN = (0.5,)


@dataclass(frozen=True)
class Recipe:
    """How a model was trained and what its ``predict`` returns, as far as the library tells.

    Attributes
    ----------
    levels : tuple of float
        Quantiles of y that the outputs were trained to be, 0.5 for the absolute error; empty for
        models of means and probabilities.
    learning_rate : float or None
        Fraction of its optimal values that each tree was given; None if the library does not tell.
    loss : str
        "Huber", "pseudo-Huber", or the library's name of any loss other than the squared error, the
        loss of the ``levels`` and log loss, for which it is empty.
    delta : float or None
        Error beyond which a Huber loss grows linearly.
    task : {"", "anomaly", "quantiles", "survival"}
        What the model's own ``predict`` returns if it is neither a response nor a label: whether
        a row is an anomaly, quantiles of y, a risk.
    offset : float or None
        Rows with a score below it are anomalies.
    quantiles : tuple of float
        Of y, that a quantile forest's ``predict`` returns by default; empty for the mean.
    """

    levels: tuple[float, ...] = ()
    learning_rate: float | None = None
    loss: str = ""
    delta: float | None = None
    task: str = ""
    offset: float | None = None
    quantiles: tuple[float, ...] = ()

    @classmethod
    def of(
        cls,
        levels: Iterable[Any] = (),
        learning_rate: Any = None,
        loss: str = "",
        delta: Any = None,
        task: str = "",
        offset: Any = None,
        quantiles: Iterable[Any] = (),
    ) -> Recipe:
        """From a library's own parameters; values that make no sense count as not told.

        Examples
        --------
        >>> Recipe.of(["0.1", "0.9"], 0.3).levels
        (0.1, 0.9)
        >>> recipe = Recipe.of(learning_rate=0.0, loss="Huber", delta="1.5")
        >>> recipe.learning_rate, recipe.loss, recipe.delta
        (None, 'Huber', 1.5)
        """
        trained = tuple(float(level) for level in levels)
        asked = tuple(float(level) for level in quantiles)
        check_choice("task", task, TASKS)
        return cls(
            trained if all(0 < level < 1 for level in trained) else (),
            _at_most(1.0, learning_rate),
            str(loss),
            _at_most(sys.float_info.max, delta),
            task,
            float(offset) if offset is not None and np.isfinite(float(offset)) else None,
            asked if all(0 <= level <= 1 for level in asked) else (),
        )


def _at_most(largest: float, number: Any) -> float | None:
    """The number where it is above 0 and at most ``largest``, otherwise None."""
    return float(number) if number is not None and 0 < float(number) <= largest else None


#: For models whose library tells nothing.
UNKNOWN_RECIPE = Recipe()


@dataclass(frozen=True, eq=False)
class Nodes:
    """Trees as a reader finds them: one entry per node, in any order; children by position.

    Attributes are as in :class:`Ensemble`, but for these:

    Attributes
    ----------
    left, right : int arrays (nodes,)
        Positions of the children; ignored at leaves.
    value, native_leaf : arrays (nodes, width) and (nodes,)
        Ignored at inner nodes, as ``threshold`` is at leaves and categorical splits.
    set_start, sets : int array (nodes,) and uint64 array, optional
        Without them, all splits are numeric.
    tree_output, tree_weight : arrays (trees,), optional
        By default every tree serves the first output, and weighs 1.
    """

    roots: NDArray[Any]
    feature: NDArray[Any]
    threshold: Floats
    left: NDArray[Any]
    right: NDArray[Any]
    missing_left: Mask
    value: Floats
    native_leaf: NDArray[Any]
    set_start: NDArray[Any] | None = None
    sets: Words | None = None
    tree_output: Any = None
    tree_weight: Any = None


class NodeList:
    """Nodes that are added one by one."""

    def __init__(self) -> None:
        # One tuple per node: column, threshold, children (twice its number for a leaf), whether NaN
        # goes left, and the number of its set.
        self._rows: list[tuple[int, float, int, int, bool, int]] = []
        self._sets: dict[int, tuple[int, Mask]] = {}  # number and content, by identity

    def __len__(self) -> int:
        return len(self._rows)

    def add(self) -> int:
        """Append an empty node; returns its position."""
        self._rows.append((-1, np.nan, -1, -1, False, -1))
        return len(self._rows) - 1

    def leaf(self, node: int, number: int) -> None:
        """Make a node the leaf with this number."""
        self._rows[node] = -1, np.nan, number, number, False, -1

    def split(
        self, node: int, column: int, sides: float | Mask, left: int, right: int, missing_left: bool
    ) -> None:
        """Make a node a split: by a threshold, or by which levels (last: an unseen one) go left."""
        if isinstance(sides, np.ndarray):
            which, _ = self._sets.setdefault(id(sides), (len(self._sets), sides))
            self._rows[node] = column, np.nan, left, right, missing_left, which
        else:
            self._rows[node] = column, sides, left, right, missing_left, -1

    def build(self, roots: Any, value: Floats, native_leaf: Any, **of_trees: Any) -> Nodes:
        """All nodes added so far, with leaf values and the library's leaf numbers."""
        feature, threshold, left, right, missing_left, which = map(
            np.array, zip(*self._rows, strict=True)
        )
        leaf = np.where(feature < 0, left, 0)
        start, sets = pack_sides([sides for _, sides in self._sets.values()])
        return Nodes(
            roots=np.array(roots),
            feature=feature,
            threshold=threshold,
            left=left,
            right=right,
            missing_left=missing_left,
            value=value[leaf],
            native_leaf=np.asarray(native_leaf)[leaf],
            set_start=np.append(start, -1)[which],
            sets=sets,
            **of_trees,
        )


def nodes_of(arrays: Mapping[str, Any]) -> Nodes:
    """The nodes of an ensemble, given its arrays by name (``vars(ensemble)``, for example)."""
    names = (
        "roots",
        "feature",
        "threshold",
        "left",
        "missing_left",
        "set_start",
        "sets",
        "tree_output",
    )
    leaf = arrays["feature"] < 0
    number = np.where(leaf, arrays["left"], 0)
    return Nodes(
        **{name: arrays[name] for name in (*names, "tree_weight")},
        right=arrays["left"] + 1,
        value=np.where(leaf[:, None], arrays["value"][number], 0.0),
        native_leaf=np.where(leaf, arrays["native_leaf"][number], 0),
    )


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
    threshold : float64 (nodes,)
        Go left iff x < threshold; NaN at leaves and at categorical splits.
    left : int32 (nodes,)
        Left child (the right one is ``left + 1``); at a leaf, the leaf's number.
    missing_left : bool (nodes,)
        The library's own side for NaN.
    set_start : int32 (nodes,)
        First word of a categorical split's set of left-going codes in ``sets``; -1 otherwise.
    sets : uint64 (words,)
        The sets; see :mod:`knothole.bits`.
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
    curves : mapping from names to Curves
        Step functions that the leaves of quantile and survival forests have beside their values.
    """

    columns: Columns
    roots: Integers
    feature: Integers
    threshold: Floats
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
    recipe: Recipe = UNKNOWN_RECIPE
    curves: Mapping[str, Curves] = field(default_factory=dict, repr=False)

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
        """Lay out a reader's nodes: checked, siblings side by side, one tree after the other.

        Anything that is not a forest of proper binary trees over these columns with finite
        leaf values is refused with :class:`~knothole.errors.DamagedFile`.
        """
        base = np.array(base, dtype=np.float64).reshape(-1)
        require(np.isfinite(base).all(), f"the base score is not finite: {base}")
        n_levels = np.array([len(column.levels) for column in columns], dtype=np.int64)
        laid = _laid_out(nodes, n_levels, len(base))
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
        """A copy with what is known of its training."""
        return replace(self, recipe=recipe)

    def with_curves(self, curves: Mapping[str, Curves]) -> Ensemble:
        """A copy with curves of its leaves."""
        return replace(self, curves=curves)

    def with_auxiliary(self, auxiliary: Sequence[Column]) -> Ensemble:
        """A copy over further columns, which no split uses."""
        columns = replace(self.columns, columns=(*self.columns, *auxiliary))
        nothing = np.full((len(auxiliary), 2), np.nan)
        return replace(self, columns=columns, sentinel=np.vstack([self.sentinel, nothing]))

    def leaf_keys(self) -> list[tuple[int, int]]:
        """The tree and the library's own number of each leaf."""
        return list(zip(self.leaf_tree.tolist(), self.native_leaf.tolist(), strict=True))

    @property
    def n_trees(self) -> int:
        """Number of trees."""
        return len(self.roots)

    @property
    def n_leaves(self) -> int:
        """Number of leaves in all trees."""
        return len(self.value)

    @property
    def n_outputs(self) -> int:
        """Number of outputs of a margin."""
        return len(self.base)

    @property
    def n_responses(self) -> int:
        """Number of outputs of a prediction; a margin's may differ in models made of models."""
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
    def used(self) -> Mask:
        """Whether some tree splits on each column, (columns,)."""
        used = np.zeros(len(self.columns), dtype=np.bool_)
        used[self.feature[self.feature >= 0]] = True
        return used

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
        """The leaf (its number in this ensemble) that each row reaches in each tree.

        NaN goes where the library sends it.

        Parameters
        ----------
        X : float64 (rows, columns)
            Numbers and category codes as :class:`~knothole.columns.columns.Columns` encodes them.
        threads : int, optional
            See :func:`knothole.threads.thread_count`.
        """
        return self._walker.leaves(self._checked(X), threads)

    def margin(self, X: Floats, threads: int | None = None) -> Floats:
        """Margin (rows, outputs) of every row, NaN by the library's own rule."""
        return self._walker.margin(self._checked(X), threads)

    def margin_range(self, X: Floats, threads: int | None = None) -> tuple[Floats, Floats]:
        """The least and the largest margin of every row, whatever its missing values are."""
        return self._walker.margin_range(self._checked(X), threads)

    def predict(self, X: Floats, threads: int | None = None) -> Floats:
        """Predictions (rows, outputs): margins through the link."""
        return self.link(self.margin(X, threads))

    def with_values(self, value: Floats) -> Ensemble:
        """A copy with other leaf values, shape ``(leaves, width)``."""
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


# ---- from a reader's nodes, in any order, to the layout of an ensemble ---------------------------


def _laid_out(nodes: Nodes, n_levels: Ints, n_outputs: int) -> dict[str, Any]:
    """Arrays of an :class:`~knothole.trees.ensemble.Ensemble` by name, from ``nodes``.

    Nodes are ordered breadth first within a tree, siblings side by side; leaves are numbered in
    that order. Nodes that no root leads to (deleted ones, in some libraries' files) are dropped.
    """
    n = len(nodes.feature)
    value = np.asarray(nodes.value, dtype=np.float64)
    value = value[:, None] if value.ndim == 1 else value
    start = np.full(n, -1) if nodes.set_start is None else nodes.set_start
    splits = (nodes.threshold, nodes.left, nodes.right, nodes.missing_left, start)
    same = {len(a) for a in (*splits, value, nodes.native_leaf)} == {n}
    require(same, "node arrays of different lengths")
    roots, feature = _as_int32(nodes.roots), _as_int32(nodes.feature)
    problem = "a node splits on a column that the model does not have"
    check_within(feature + 1, len(n_levels) + 1, problem)  # -1 at leaves
    left = _as_int32(np.where(feature < 0, -1, nodes.left))
    right = _as_int32(np.where(feature < 0, -1, nodes.right))
    order, tree = _ordered(roots, feature, left, right)
    place = np.empty(n, dtype=np.int32)
    place[order] = np.arange(len(order))
    feature = feature[order]
    leaf = feature < 0
    n_leaves = np.bincount(tree[leaf], minlength=len(roots))
    set_start = _as_int32(np.where(leaf, -1, np.asarray(start)[order]))
    sets = np.array([] if nodes.sets is None else nodes.sets, dtype=np.uint64)
    categorical = set_start >= 0
    levels = n_levels[feature[categorical]]
    require((levels > 0).all(), "a set of categories on a column that has none")
    end = set_start[categorical].astype(np.int64) + set_words(levels)
    require((end <= len(sets)).all(), "a categorical split's set lies outside the model")
    threshold = np.where(
        leaf | categorical, np.nan, np.asarray(nodes.threshold, dtype=np.float64)[order]
    )
    numeric = ~leaf & ~categorical
    require(not np.isnan(threshold[numeric]).any(), "a numeric split without a threshold")
    leaf_value = value[order[leaf]]
    require(np.isfinite(leaf_value).all(), "a leaf value is not finite")
    per_tree = _per_tree(nodes, n_outputs - value.shape[1])
    with np.errstate(over="ignore"):
        most = np.abs(leaf_value).max(initial=0.0) * np.abs(per_tree["tree_weight"]).sum()
    require(np.isfinite(most), "its leaves add up to no finite number")
    return {
        "roots": place[roots],
        "feature": feature,
        "threshold": threshold,
        "left": np.where(leaf, np.cumsum(leaf, dtype=np.int32) - 1, place[left[order]]),
        "missing_left": np.asarray(nodes.missing_left, dtype=np.bool_)[order],
        "set_start": set_start,
        "sets": sets,
        "leaf_start": np.concatenate([[0], np.cumsum(n_leaves)]),
        "value": np.ascontiguousarray(leaf_value),
        "native_leaf": _as_int32(np.asarray(nodes.native_leaf)[order[leaf]]),
        **per_tree,
    }


def _per_tree(nodes: Nodes, last_output: int) -> dict[str, Any]:
    """The first output that each tree serves, and each tree's weight."""
    n_trees = len(nodes.roots)
    output = np.zeros(n_trees) if nodes.tree_output is None else np.asarray(nodes.tree_output)
    weight = np.ones(n_trees) if nodes.tree_weight is None else np.asarray(nodes.tree_weight)
    problem = f"{n_trees} trees, but not as many outputs or weights"
    require(len(output) == len(weight) == n_trees, problem)
    check_within(output, last_output + 1, "a tree serves an output that the model does not have")
    require(last_output >= 0, "leaves have more values than the model has outputs")
    require(np.isfinite(weight).all(), "a tree's weight is not finite")
    return {"tree_output": output.astype(np.int32), "tree_weight": weight.astype(np.float64)}


def _as_int32(numbers: Any) -> Integers:
    """As 32-bit integers; numbers that do not fit are refused, not wrapped around."""
    numbers = np.asarray(numbers)
    room = np.iinfo(np.int32)
    fits = not numbers.size or (room.min <= numbers.min() and numbers.max() <= room.max)
    require(fits, "a node or column number does not fit into 32 bits")
    return np.ascontiguousarray(numbers, dtype=np.int32)


def _ordered(
    roots: Integers, feature: Integers, left: Integers, right: Integers
) -> tuple[Integers, Ints]:
    """Positions of the nodes, breadth first within every tree, and the tree of each."""
    seen = np.zeros(len(feature), dtype=np.bool_)
    node, tree = roots, np.arange(len(roots))
    nodes, trees = [node[:0]], [tree[:0]]
    while len(node):  # all trees, a level at a time
        check_within(node, len(feature), "a node's child is not a node of the model")
        again = seen[node].any() or len(np.unique(node)) < len(node)
        require(not again, "a node has two parents; this is not a tree")
        seen[node] = True
        nodes.append(node)
        trees.append(tree)
        inner = feature[node] >= 0
        node = np.stack([left[node[inner]], right[node[inner]]], axis=1).ravel()
        tree = np.repeat(tree[inner], 2)
    tree = np.concatenate(trees)
    by_tree = np.argsort(tree, kind="stable")
    return np.concatenate(nodes)[by_tree], tree[by_tree]


# ---- parts of an ensemble ------------------------------------------------------------------------


def pack_sides(lefts: Sequence[Mask]) -> tuple[Ints, Words]:
    """Sets of left-going codes, from flags of all levels and, last, of an unseen one.

    Returns the first word of each set and the words of all sets (:mod:`knothole.bits`).
    """
    codes = [np.flatnonzero(left) for left in lefts]
    return pack(
        np.array([len(left) - 1 for left in lefts], dtype=np.int64),
        np.repeat(np.arange(len(lefts)), [len(goes_left) for goes_left in codes]),
        np.concatenate([np.zeros(0, dtype=np.int64), *codes]),
    )


def left_codes(ensemble: Ensemble, node: int) -> Mask:
    """Whether each category, and last an unseen one, goes left at a categorical split."""
    n_levels = int(ensemble.n_levels[ensemble.feature[node]])
    return members(ensemble.sets[int(ensemble.set_start[node]) :], n_levels)


def some_trees(ensemble: Ensemble, trees: NDArray[np.intp]) -> tuple[Ensemble, NDArray[np.intp]]:
    """An ensemble of some of the trees, and the numbers of its leaves in the full ensemble.

    Examples
    --------
    >>> from sklearn.ensemble import RandomForestRegressor
    >>> from knothole.trees.read import read
    >>> forest = RandomForestRegressor(3, max_depth=1, random_state=0)
    >>> ensemble = read(forest.fit([[0.0], [1.0], [2.0]], [0, 1, 2]))
    >>> part, leaves = some_trees(ensemble, np.array([2]))
    >>> bool((part.value == ensemble.value[leaves]).all()), part.n_trees
    (True, 1)
    """
    if len(trees) == ensemble.n_trees:
        return ensemble, np.arange(ensemble.n_leaves)
    node_start = np.append(ensemble.roots, len(ensemble.feature)).astype(np.int64)
    nodes, roots = _ranges(node_start, trees)
    leaves, leaf_start = _ranges(ensemble.leaf_start, trees)
    # How far the numbers of nodes and leaves move in each tree.
    counts = np.diff(roots)
    node_shift = np.repeat(node_start[trees] - roots[:-1], counts)
    leaf_shift = np.repeat(ensemble.leaf_start[trees] - leaf_start[:-1], counts)
    is_leaf = ensemble.feature[nodes] < 0
    left = ensemble.left[nodes] - np.where(is_leaf, leaf_shift, node_shift)
    part = replace(
        ensemble,
        roots=roots[:-1].astype(np.int32),
        feature=ensemble.feature[nodes],
        threshold=ensemble.threshold[nodes],
        left=left.astype(np.int32),
        missing_left=ensemble.missing_left[nodes],
        set_start=ensemble.set_start[nodes],
        leaf_start=leaf_start,
        value=ensemble.value[leaves],
        native_leaf=ensemble.native_leaf[leaves],
        tree_output=ensemble.tree_output[trees],
        tree_weight=ensemble.tree_weight[trees],
        curves={name: curves.of_leaves(leaves) for name, curves in ensemble.curves.items()},
    )
    return part, leaves


def _ranges(start: Ints, trees: NDArray[np.intp]) -> tuple[NDArray[np.intp], Ints]:
    """The numbers ``start[t]`` to ``start[t + 1]`` of each tree t, and where each tree begins."""
    counts = np.diff(start)[trees]
    begins = np.append(0, np.cumsum(counts))
    return np.arange(begins[-1]) + np.repeat(start[trees] - begins[:-1], counts), begins
