"""XGBoost: Booster and scikit-learn wrappers, JSON and UBJ files.

A live model is read from the bytes that it saves (``save_raw("ubj")``), so models and files share
one path. How the trees are used depends on the object around them: a Booster predicts with all of
them, a wrapper with those up to its ``best_iteration``, and a wrapper may have a number that stands
for missing. A file that a wrapper saved is read as that wrapper would load it.

New leaf values are written, in float32, into a copy made from the model's own snapshot (what it
pickles), over the old ones. Everything else stays the same to the bit: trees after
``best_iteration``, attributes, parameters, the state of training.

A tree is an object of parallel lists with one entry per node. A row goes left iff float32(x) <
float32(threshold). A categorical split lists the categories that go *right*; all others go left,
including unseen ones. The right child always follows the left one: XGBoost's own prediction
relies on it and never reads ``right_children``, so a file that says otherwise is refused.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Integers, Ints, Mask, Words
from knothole.bits import complement, pack, set_words, starts
from knothole.checks import (
    check_count,
    check_within,
    field_of,
    numbers,
    require,
    typed,
    whole_numbers,
)
from knothole.columns.columns import Column, Columns, Kind
from knothole.errors import InvalidInput, NotFitted, ReaderMismatch, UnsupportedModel
from knothole.trees.ensemble import MEDIAN, Ensemble, Nodes, Recipe
from knothole.trees.libraries import ModelReading, Replay, not_fitted
from knothole.trees.links import Blend, Link
from knothole.trees.readers import ubjson
from knothole.trees.thresholds import exact_less_float32

Float32s = NDArray[np.float32]

LIBRARY = "XGBoost"
WAY_OUT = (
    "knothole reads the JSON and UBJ formats of XGBoost 2.0 to 3.x; load the model with one of "
    "these and save it again."
)
# XGBoost's names for kinds of columns; all others are numeric.
KINDS = {"c": Kind.CATEGORICAL, "int": Kind.INTEGER, "i": Kind.INTEGER}
# XGBoost's entry for the column of a node that pruning deleted.
DELETED = 2**31 - 1
# A code implies as many levels as there are codes below it; this bounds what one number costs.
MAX_CATEGORIES = 2**20
MAX_SET_WORDS = 2**25


def floats(values: Any, name: str) -> Float32s:
    """A list or array of numbers in float32, XGBoost's own precision."""
    with np.errstate(over="ignore"):
        return numbers(values, name).astype(np.float32)


@dataclass(frozen=True, eq=False)
class TreeArrays:
    """All trees of a model, one after the other, as stored.

    ``set_node`` lists the nodes with categorical splits. In the pairs ``right_split``,
    ``right_category``, the first is a position in ``set_node``, the second a category that goes
    right.
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
        require(not of_categories, "a numeric split on a categorical column")
        count = np.diff(np.append(self.offset, len(self.left)))
        return Nodes(
            roots=self.offset,
            feature=np.where(self.leaf, -1, self.column),
            threshold=exact_less_float32(self.threshold),
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
        require(known.all(), "a split names a category that its column does not have")
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


def joined_trees(trees: list[Any], n_columns: int, n_outputs: int) -> TreeArrays:
    """Concatenate the trees of a document."""
    count = np.array([int(field_of(tree, "tree_param", "num_nodes")) for tree in trees])

    def per_node(key: str, convert: Callable[[Any, str], Any] = whole_numbers) -> Any:
        joined, lengths = _joined(trees, key, convert)
        wrong = f"a tree's {key} are not as many as the nodes that it says it has, or none"
        require(np.array_equal(lengths, count) and count.min() > 0, wrong)
        return joined

    left, column = per_node("left_children"), per_node("split_indices")
    deleted = column == DELETED
    leaf = (left == -1) | deleted
    offset = starts(count)
    _check_children(left, per_node("right_children"), per_node("parents"), leaf, offset, count)
    child = (left + np.repeat(offset, count))[~leaf]
    reached = np.concatenate([offset, child, child + 1])
    require(not deleted[reached].any(), "a tree leads to a node that was deleted")
    check_within(column[~leaf], n_columns, f"a split on a column that is none of the {n_columns}")
    threshold = per_node("split_conditions", floats)
    is_set = (per_node("split_type") == 1) & ~leaf
    set_node, right_split, right_category = _categorical(trees, is_set, offset, count)
    return TreeArrays(
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
    trees: list[Any], key: str, convert: Callable[[Any, str], Any] = whole_numbers
) -> tuple[Any, Ints]:
    """One list of all trees, concatenated, and its length in each tree."""
    lists = [convert(field_of(tree, key), key) for tree in trees]
    return np.concatenate(lists), np.array([len(entries) for entries in lists])


def _check_children(
    left: Ints, right: Ints, parent: Ints, leaf: Mask, offset: Ints, count: Ints
) -> None:
    inner = ~leaf
    inside = (left >= 1) & (left + 1 < np.repeat(count, count))
    require(inside[inner].all(), "a node's child is not a node of its tree")
    follows = right == left + 1
    require(follows[inner].all(), "a right child that does not follow the left one")
    first = np.repeat(offset, count)
    child = (left + first)[inner]
    node = (np.arange(len(left)) - first)[inner]
    agree = (parent[child] == node) & (parent[child + 1] == node)
    require(agree.all(), "a child whose parent is another node")


def _values(
    trees: list[Any], threshold: Float32s, leaf: Mask, offset: Ints, n_outputs: int
) -> Float32s:
    """Leaf values (nodes, width); those of inner nodes are never used."""
    sizes = {int(field_of(tree, "tree_param", "size_leaf_vector")) for tree in trees}
    widths = {max(1, size) for size in sizes}
    if widths == {1}:
        return threshold[:, None]
    require(widths == {n_outputs}, f"leaves of {widths} numbers, not {n_outputs}")
    values = np.zeros((len(leaf), n_outputs), dtype=np.float32)
    for tree, start, in_tree in zip(trees, offset, np.split(leaf, offset[1:]), strict=True):
        leaves = np.flatnonzero(in_tree)
        table, row = vector_leaves(tree, leaves)
        weights = floats(field_of(tree, table), table).reshape(-1, n_outputs)
        check_within(row, len(weights), "a leaf's values are not in the file")
        values[start + leaves] = weights[row]
    return values


def vector_leaves(tree: Any, leaves: Ints) -> tuple[str, Ints]:
    """Where a tree stores vector leaves: the name of the list, and each leaf's row in it.

    Since 3.1, leaves have a list of their own, and the row is stored in place of the right child.
    Before, the list has a row for every node.
    """
    if "leaf_weights" in tree:
        return "leaf_weights", whole_numbers(tree["right_children"], "right_children")[leaves]
    return "base_weights", leaves


def _categorical(
    trees: list[Any], is_set: Mask, offset: Ints, count: Ints
) -> tuple[Ints, Ints, Ints]:
    """``set_node``, ``right_split`` and ``right_category`` of a :class:`TreeArrays`."""
    node, n_splits = _joined(trees, "categories_nodes")
    size, n_sizes = _joined(trees, "categories_sizes")
    start, n_starts = _joined(trees, "categories_segments")
    category, n_categories = _joined(trees, "categories")
    same = np.array_equal(n_splits, n_sizes) and np.array_equal(n_splits, n_starts)
    require(same, "the lists of categorical splits differ in length")
    tree = np.repeat(np.arange(len(trees)), n_splits)
    inside = (node >= 0) & (node < count[tree])
    node = node + offset[tree]
    in_order = inside.all() and (np.diff(node) > 0).all()
    require(in_order, "the categorical splits of a tree are not in order")
    # XGBoost writes the categories of all splits one after the other, without gaps.
    total = np.bincount(tree, size, len(trees))
    whole = (size >= 0).all() and np.array_equal(total, n_categories)
    require(whole, "categories that belong to no split")
    together = np.array_equal(start + starts(n_categories)[tree], starts(size))
    require(together, "the categories of a split lie outside the list")
    require((category >= 0).all(), "a category with a negative code")
    if (category >= MAX_CATEGORIES).any():
        raise UnsupportedModel(
            f"XGBoost: a category with the code {category.max()}; those up to "
            f"{MAX_CATEGORIES - 1} are read. Number the categories from 0, without gaps."
        )
    # A node that pruning turned into a leaf may still be listed.
    still_split = is_set[node]
    complete = np.array_equal(node[still_split], np.flatnonzero(is_set))
    require(complete, "a categorical split without its categories")
    split = np.repeat(np.cumsum(still_split) - 1, size)
    used = np.repeat(still_split, size)
    return node[still_split], split[used], category[used]


# ---- columns -------------------------------------------------------------------------------------


def columns_of(document: Any, model: Any, arrays: TreeArrays, n_columns: int) -> Columns:
    """The columns of a document; ``model`` is the part of it with the trees, ``arrays`` the trees.

    Where no names of categories are stored, the levels are the codes up to the highest one in a
    split: the model treats higher codes like unseen ones.
    """
    learner = field_of(document, "learner")
    names, types = (_texts(learner, key, n_columns) for key in ("feature_names", "feature_types"))
    stored = _stored_levels(model, n_columns)
    highest = arrays.highest_category(n_columns).tolist()
    columns = []
    for i in range(n_columns):
        name = names[i] if names else f"f{i}"
        kind = KINDS.get(types[i], Kind.CONTINUOUS) if types else Kind.CONTINUOUS
        if highest[i] >= 0 or stored.get(i):
            kind = Kind.CATEGORICAL
        levels = stored.get(i) or tuple(range(highest[i] + 1))
        columns.append(Column(name, kind, levels))
    described = Columns(tuple(columns), named=bool(names))
    _check_codes(document, described)
    return described


def _check_codes(document: Any, columns: Columns) -> None:
    """Refuse categories of a table stored as codes: before 3.1 their names were not saved."""
    version = whole_numbers(field_of(document, "version"), "version").tolist()
    if version >= [3, 1] or not columns.named:
        return
    for column in columns:
        if column.kind is Kind.CATEGORICAL:
            raise UnsupportedModel(
                f"XGBoost {'.'.join(map(str, version))} did not store the levels of the "
                f"categorical column {column.name!r}, so it cannot be told what its codes mean. "
                f"Train with XGBoost 3.1 or later, or on integer codes without column names."
            )


def _texts(learner: Any, key: str, n_columns: int) -> list[str]:
    """A text for each column, or no text at all."""
    texts = [typed(str, text) for text in typed(list, learner.get(key) or [])]
    check_count(key, len(texts), 0, n_columns)
    return texts


def _stored_levels(model: Any, n_columns: int) -> dict[int, tuple[Hashable, ...]]:
    """Levels by column, which a model trained on a table with categories stores since 3.1."""
    encoded = model.get("cats", {}).get("enc", [])
    check_count("columns with levels", len(encoded), 0, n_columns)
    return {i: _levels(entry, i) for i, entry in enumerate(encoded) if len(entry["values"])}


def _levels(entry: Any, column: int) -> tuple[Hashable, ...]:
    values = whole_numbers(entry["values"], "values")
    if "offsets" not in entry:
        levels = tuple(values.tolist())
    else:
        text = (values % 256).astype(np.uint8).tobytes()
        if not text.isascii():
            raise UnsupportedModel(
                f"XGBoost: the names of the categories of column {column} are not all ASCII. "
                f"XGBoost cuts such names of a pandas table short when it stores them (it counts "
                f"characters, not bytes), so they cannot be told. Train on ASCII names, or on "
                f"integer codes."
            )
        ends = whole_numbers(entry["offsets"], "offsets")
        ascend = ends[0] == 0 and ends[-1] == len(text) and (np.diff(ends) >= 0).all()
        require(ascend, f"the categories of column {column} overlap")
        levels = tuple(text[a:b].decode() for a, b in pairwise(ends.tolist()))
    check_count(f"different categories of column {column}", len(set(levels)), len(levels))
    return levels


# A model trained with the user's own objective function stores the objective whose link its
# predict applies, so it needs no entry here. ``binary:hinge`` has a step function for a link.
LINKS = {
    **dict.fromkeys(["reg:squarederror", "reg:squaredlogerror", "reg:absoluteerror"], "identity"),
    **dict.fromkeys(["reg:pseudohubererror", "reg:quantileerror"], "identity"),
    **dict.fromkeys(["rank:pairwise", "rank:ndcg", "rank:map", "binary:logitraw"], "identity"),
    **dict.fromkeys(["reg:logistic", "binary:logistic"], "sigmoid"),
    **dict.fromkeys(["reg:gamma", "reg:tweedie", "count:poisson"], "exp"),
    **dict.fromkeys(["survival:aft", "survival:cox"], "exp"),
    **dict.fromkeys(["multi:softmax", "multi:softprob"], "softmax"),
}
# Squared and absolute error: a recipe describes them without a name.
IMPLIED_LOSSES = ("reg:squarederror", "reg:absoluteerror")
SUFFIXES = (".json", ".ubj")
# Bound on counts in a file that nothing else confirms, so that they cannot exhaust the memory.
MAX_UNPROVEN = 2**16


@dataclass(frozen=True)
class Use:
    """How the object around the trees uses them.

    ``rounds``: boosting rounds that predict uses (None: all); ``missing``: a number that stands for
    missing besides NaN; ``classifier``: whether it has classes; ``learning_rate``: of training.
    """

    rounds: int | None = None
    missing: float = np.nan
    classifier: bool = False
    learning_rate: float | None = None


def read(model: Any) -> ModelReading:
    """Read a live Booster or wrapper."""
    booster, use = unwrapped(model)
    ensemble = ensemble_of(ubjson.parse(bytes(_saved(booster))), use)
    return ModelReading(ensemble, lambda X: _replay(booster, use, ensemble, X))


def _saved(booster: Any) -> bytearray:
    from xgboost.core import XGBoostError

    try:
        raw: bytearray = booster.save_raw("ubj")
    except XGBoostError as error:  # a model without columns cannot be saved
        raise NotFitted("this xgboost.Booster has not been trained; train it first.") from error
    return raw


def stored_trees(document: Any) -> Any:
    """The list of trees in a document."""
    model, _ = _trees_and_weights(field_of(document, "learner", "gradient_booster"))
    return field_of(model, "trees")


def unwrapped(model: Any) -> tuple[Any, Use]:
    """The Booster of a wrapper (or ``model`` itself if it is one), and how it is used."""
    import xgboost
    from sklearn.exceptions import NotFittedError

    if not isinstance(model, xgboost.XGBModel):
        return model, Use()
    try:
        booster = model.get_booster()
    except NotFittedError as error:
        raise not_fitted(model) from error
    best = getattr(model, "best_iteration", None)
    return booster, Use(
        rounds=None if best is None else int(best) + 1,
        missing=np.nan if model.missing is None else float(model.missing),
        classifier=isinstance(model, xgboost.XGBClassifier),
        learning_rate=model.learning_rate,
    )


def begins(head: bytes) -> bool:
    """Whether a file with these first bytes may be XGBoost's."""
    return head.startswith(b"{") and (b"learner" in head or b"Config" in head)


def read_file(path: Path) -> Ensemble:
    """Read a JSON or UBJ file by our own parsers."""
    document = _parsed(path.read_bytes())
    _check_counts(field_of(document, "learner"))
    return ensemble_of(document, _use(document))


def load(path: Path) -> Any:
    """Let XGBoost load a file, as the class that saved it."""
    import xgboost

    wrappers = {
        "classifier": xgboost.XGBClassifier,
        "regressor": xgboost.XGBRegressor,
        "ranker": xgboost.XGBRanker,
    }
    data = path.read_bytes()
    model = wrappers.get(_estimator_type(_parsed(data)) or "", xgboost.Booster)()
    model.load_model(bytearray(data))  # as bytes, so that the file's suffix does not matter
    return model


def save(model: Any, path: Path) -> None:
    """Let XGBoost save a model, in the format given by the file's suffix."""
    model.save_model(str(path))


def _parsed(data: bytes) -> Any:
    # After "{", JSON has a quote, perhaps after space; UBJ has the length of a key.
    if data[1:2] in (b'"', b" ", b"\n", b"\r", b"\t"):
        return json.loads(data)
    return ubjson.parse(data)


def _use(document: Any) -> Use:
    kind = _estimator_type(document)
    if kind is None:
        return Use()
    best = document["learner"]["attributes"].get("best_iteration")
    return Use(None if best is None else int(best) + 1, classifier=kind == "classifier")


def _estimator_type(document: Any) -> str | None:
    """The kind of wrapper that saved a file; None for a Booster."""
    note = field_of(document, "learner").get("attributes", {}).get("scikit_learn")
    return None if note is None else json.loads(note).get("_estimator_type")


def _check_counts(learner: Any) -> None:
    for key in ("num_feature", "num_class", "num_target"):
        count = count_of(learner, key)
        proven = key == "num_feature" and len(learner.get("feature_names") or []) == count
        require(
            count <= MAX_UNPROVEN or proven,
            f"the file says {key} {count} and nothing else in it does; at most {MAX_UNPROVEN} are "
            f"believed. Give the columns names, or read the live model",
        )


def write(model: Any, ensemble: Ensemble) -> Any:
    """A copy of ``model`` whose leaves hold the values of ``ensemble``."""
    with np.errstate(over="ignore"):
        single = ensemble.value.astype(np.float32)
    if not np.isfinite(single).all():
        raise InvalidInput(
            f"XGBoost keeps leaf values in float32, where the largest is "
            f"{np.finfo(np.float32).max}; got {np.abs(ensemble.value).max()}."
        )
    booster, _ = unwrapped(model)
    state = booster.__getstate__()
    trees = stored_trees(ubjson.parse(state["handle"])["Model"])
    for t, tree in enumerate(trees[: ensemble.n_trees]):
        mine = slice(*ensemble.leaf_start[t : t + 2])
        leaves, width = ensemble.native_leaf[mine].astype(np.int64), single.shape[1]
        name, row = ("split_conditions", leaves) if width == 1 else vector_leaves(tree, leaves)
        tree[name].reshape(-1, width)[row] = single[mine]  # writes through the view into the buffer
    written = object.__new__(type(booster))
    written.__setstate__(state)
    # The memo makes deepcopy put the written Booster in place of the wrapper's own.
    return copy.deepcopy(model, {id(booster): written})


def ensemble_of(document: Any, use: Use) -> Ensemble:
    """The ensemble in a document, as the object around its trees uses them."""
    learner = field_of(document, "learner")
    model, weights = _trees_and_weights(field_of(learner, "gradient_booster"))
    outputs = count_of(learner, "num_class", "num_target")
    link = _link(learner)
    trees = field_of(model, "trees")
    n_trees = _trees_used(model, use.rounds)
    if n_trees == 0:
        raise NotFitted("this XGBoost model has no trees; train it for at least one round.")
    n_columns = count_of(learner, "num_feature")
    arrays = joined_trees(trees[:n_trees], n_columns, outputs)
    columns = columns_of(document, model, arrays, n_columns)
    return Ensemble.build(
        arrays.nodes(
            np.array([len(column.levels) for column in columns], dtype=np.int64),
            whole_numbers(field_of(model, "tree_info"), "tree_info")[:n_trees],
            None if weights is None else weights[:n_trees].astype(np.float64),
        ),
        columns=columns,
        base=_base(learner, link, outputs),
        library=LIBRARY,
        precision="float32",
        link=link,
        classes=_classes(learner, outputs) if use.classifier else None,
        sentinel=np.tile(_rounds_to(use.missing), (n_columns, 1)),
    ).trained_by(_recipe(learner, use.learning_rate))


def _trees_and_weights(booster: Any) -> tuple[Any, NDArray[np.float32] | None]:
    """The object with the trees, and DART's weights of the trees."""
    name = field_of(booster, "name")
    if name not in ("gbtree", "dart"):
        raise UnsupportedModel(
            f"XGBoost's booster {name!r} has no trees to read; knothole reads 'gbtree' and "
            f"'dart'. Train with one of these, or use a linear model's own coefficients."
        )
    # Up to 3.3 DART wraps a gbtree and stores the weights beside it; later the model has them.
    model = field_of(booster.get("gbtree", booster), "model")
    weights = booster.get("weight_drop", model.get("weight_drop"))
    if weights is None:
        require(name != "dart", "a DART model without the weights of its trees")
        return model, None
    check_count("weights of trees", len(weights), len(field_of(model, "trees")))
    return model, floats(weights, "weight_drop")


def count_of(learner: Any, *keys: str) -> int:
    """The largest of some counts, at least 1."""
    params = field_of(learner, "learner_model_param")
    return max(1, *(int(params.get(key, 1)) for key in keys))


def _link(learner: Any) -> Link:
    objective = field_of(learner, "objective", "name")
    if objective not in LINKS:
        raise UnsupportedModel(
            f"XGBoost's objective {objective!r}: knothole does not know the way from its margin to "
            f"its prediction. It knows {', '.join(LINKS)}."
        )
    return Link(LINKS[objective])


def _recipe(learner: Any, learning_rate: float | None) -> Recipe:
    objective = field_of(learner, "objective")
    name = objective["name"]
    levels, loss, delta = MEDIAN if name == "reg:absoluteerror" else (), "", None
    if name == "reg:quantileerror":
        levels = json.loads(field_of(objective, "quantile_loss_param", "quantile_alpha"))
    elif name == "reg:pseudohubererror":
        loss, delta = "pseudo-Huber", objective.get("pseudo_huber_param", {}).get("huber_slope")
    elif LINKS[name] not in ("sigmoid", "softmax") and name not in IMPLIED_LOSSES:
        loss = name
    return Recipe.of(levels, learning_rate, loss, delta)


def _base(learner: Any, link: Link, outputs: int) -> Floats:
    """Margin before any tree. ``base_score`` is a response; for softmax it is a margin.

    Computed in float32 as XGBoost does: with few trees, the rounding of the logit is visible.
    """
    stored = json.loads(field_of(learner, "learner_model_param", "base_score"))
    score = floats(stored if isinstance(stored, list) else [stored], "base_score")
    check_count("base scores", len(score), 1, outputs)
    with np.errstate(divide="ignore", invalid="ignore"):
        if link.name == "sigmoid":
            score = -np.log(1 / score - 1)
        elif link.name == "exp":
            score = np.log(score)
    return np.broadcast_to(score.astype(np.float64), outputs)


def _trees_used(model: Any, rounds: int | None) -> int:
    """Number of trees in the first ``rounds`` boosting rounds."""
    n_trees = len(field_of(model, "trees"))
    check_count("trees", n_trees, int(field_of(model, "gbtree_model_param", "num_trees")))
    if rounds is None:
        return n_trees
    first = whole_numbers(field_of(model, "iteration_indptr"), "iteration_indptr")
    there = 1 <= rounds < len(first) and 0 < first[rounds] <= n_trees
    require(there, f"it predicts with {rounds} rounds, but has trees of {len(first) - 1}")
    return int(first[rounds])


def _classes(learner: Any, outputs: int) -> tuple[Hashable, ...] | None:
    """Labels 0 to n - 1; None where the outputs are several labels at once."""
    if outputs == 1:
        return (0, 1)
    return tuple(range(outputs)) if count_of(learner, "num_class") > 1 else None


def _rounds_to(missing: float) -> tuple[float, float]:
    """First and last float64 that XGBoost takes for ``missing``, which it compares in float32."""
    with np.errstate(over="ignore"):
        single = np.float32(missing)
    if np.isnan(single):
        return np.nan, np.nan
    above = np.nextafter(single, np.float32(np.inf))
    last = np.inf if np.isposinf(single) else np.nextafter(exact_less_float32(above), -np.inf)
    return float(exact_less_float32(single)), float(last)


def _replay(booster: Any, use: Use, ensemble: Ensemble, X: Floats) -> Replay:
    import xgboost

    data = xgboost.DMatrix(
        X,
        missing=use.missing,
        feature_names=booster.feature_names,
        feature_types=booster.feature_types,
        enable_categorical=True,
        nthread=1,
    )
    rounds = (0, use.rounds or 0)
    leaves = booster.predict(data, pred_leaf=True, iteration_range=rounds)
    margin = booster.predict(data, output_margin=True, iteration_range=rounds)
    margin = margin.reshape(len(X), -1).astype(np.float64)
    response = booster.predict(data, iteration_range=rounds).reshape(len(X), -1)
    _check_link(ensemble.link, margin, response)
    return Replay(margin, leaves.reshape(len(X), -1).astype(np.int64))


def _check_link(link: Link | Blend, margin: Floats, response: NDArray[np.float32]) -> None:
    """Check the link too: a version of XGBoost may apply more to margins than we know."""
    if response.shape != margin.shape:  # multi:softmax predicts the class itself
        return
    with np.errstate(over="ignore"):
        expected = link(margin).astype(np.float32)
    strange = np.flatnonzero(~np.isclose(expected, response, rtol=1e-4, atol=1e-6).all(axis=1))
    if len(strange):
        row = int(strange[0])
        raise ReaderMismatch(
            f"XGBoost: its prediction for the margin {margin[row].tolist()} is "
            f"{response[row].tolist()}, which is not the link {link.name!r}. This version does "
            f"more than knothole knows of (3.4 sorts the quantiles of one model); the model was "
            f"not read."
        )
