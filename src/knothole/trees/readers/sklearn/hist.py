"""scikit-learn's HistGradientBoosting, from the live object.

Nodes go left iff x <= threshold in float64. Before its trees, the model encodes categorical
columns by an ``OrdinalEncoder`` and moves them to the front; here everything is back in the order
and with the levels of the user's own table. A category it has never seen is encoded as NaN, so
that it goes where NaN goes.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from knothole.arrays import Floats, Ints, Mask, Words
from knothole.columns.columns import Columns
from knothole.compiled.bits import starts
from knothole.errors import UnsupportedModel
from knothole.trees.ensemble import Ensemble, Nodes
from knothole.trees.readers.cuts import cut_less_equal
from knothole.trees.readers.registry import Reading, Replay
from knothole.trees.readers.sklearn import shared

KINDS = (HistGradientBoostingClassifier, HistGradientBoostingRegressor)
# The library keeps a set of categories as 256 bits.
WORDS = 4


def read(model: Any) -> Reading:
    """Read a fitted HistGradientBoostingRegressor or HistGradientBoostingClassifier."""
    shared.require_fitted(model)
    _require_two_classes(model)
    levels = levels_of(model)
    columns = shared.columns_of(model, levels)
    predictors = predictors_of(model)
    output = np.tile(np.arange(model.n_trees_per_iteration_), len(model._predictors))
    ensemble = Ensemble.build(
        replace(nodes_of(predictors, column_order(model), columns), tree_output=output),
        columns=columns,
        base=model._baseline_prediction,
        link=shared.link_of(model),
        classes=shared.classes_of(model),
        library=shared.LIBRARY,
        precision="float64",
    ).trained_by(shared.recipe_of(model))

    def replay(X: Floats) -> Replay:
        rows = decoded(model, X, levels)
        return Replay(model._raw_predict(rows, n_threads=1), native_leaves(model, rows))

    return Reading(ensemble, replay)


def _require_two_classes(model: Any) -> None:
    """Refuse a classifier of one class: its margin is that of a class it does not have."""
    if is_classifier(model) and len(model.classes_) < 2:
        raise UnsupportedModel(
            f"{type(model).__name__} was fitted on the single class {model.classes_[0]!r}, so "
            f"that its trees say nothing. Fit it on rows of at least two classes."
        )


def predictors_of(model: Any) -> list[Any]:
    """The trees, iteration by iteration, and within one output by output."""
    return [predictor for iteration in model._predictors for predictor in iteration]


def levels_of(model: Any) -> dict[int, tuple[Hashable, ...]]:
    """The levels of each categorical column, in the order of their codes, by its position."""
    if model.is_categorical_ is None:
        return {}
    encoder = model._preprocessor.named_transformers_["encoder"]
    columns = np.flatnonzero(model.is_categorical_).tolist()
    levels = {}
    for column, categories in zip(columns, encoder.categories_, strict=True):
        known = categories.tolist()
        if known and known[-1] != known[-1]:  # NaN, where training had some, comes last
            known = known[:-1]
        if None in known:
            raise UnsupportedModel(
                f"{type(model).__name__}: column {column} has None among its categories, which "
                f"the model takes for a category and knothole for a hole. Fit it with NaN instead "
                f"of None."
            )
        levels[column] = tuple(known)
    return levels


def column_order(model: Any) -> NDArray[np.intp]:
    """The user's column at each of the model's internal positions."""
    if model.is_categorical_ is None:
        return np.arange(model.n_features_in_)
    return np.argsort(~model.is_categorical_, kind="stable")


def nodes_of(predictors: list[Any], order: NDArray[np.intp], columns: Columns) -> Nodes:
    """All nodes of all trees, one tree after the other, in the user's columns."""
    counts = np.array([len(predictor.nodes) for predictor in predictors], dtype=np.int64)
    roots = starts(counts)
    shift = np.repeat(roots, counts)
    nodes = np.concatenate([predictor.nodes for predictor in predictors])
    leaf = nodes["is_leaf"].astype(np.bool_)
    feature = np.where(leaf, -1, order[np.where(leaf, 0, nodes["feature_idx"])])
    missing_left = nodes["missing_go_to_left"].astype(np.bool_)
    categorical = ~leaf & nodes["is_categorical"].astype(np.bool_)

    bitsets = [predictor.raw_left_cat_bitsets for predictor in predictors]
    first_bitset = starts(np.array([len(each) for each in bitsets]))
    bitset = nodes["bitset_idx"] + np.repeat(first_bitset, counts)
    n_levels = np.array([len(column.levels) for column in columns])
    return Nodes(
        roots=roots,
        feature=feature,
        cut=cut_less_equal(nodes["num_threshold"]),
        left=nodes["left"] + shift,
        right=nodes["right"] + shift,
        missing_left=missing_left,
        value=nodes["value"],
        native_leaf=np.arange(len(nodes)) - shift,
        set_start=np.where(categorical, np.cumsum(categorical) * WORDS - WORDS, -1),
        sets=left_sets(
            np.concatenate(bitsets)[bitset[categorical]],
            n_levels[feature[categorical]],
            missing_left[categorical],
        ),
    )


def left_sets(bitsets: NDArray[np.uint32], n_levels: Ints, missing_left: Mask) -> Words:
    """Sets of left-going codes, ``WORDS`` words each; unseen categories go where NaN goes."""
    words = bitsets.reshape(-1, WORDS, 2).astype(np.uint64)
    sets = words[:, :, 0] | (words[:, :, 1] << np.uint64(32))
    unseen = np.uint64(1) << (n_levels % 64).astype(np.uint64)
    sets[np.arange(len(sets)), n_levels // 64] |= np.where(missing_left, unseen, np.uint64(0))
    return sets.reshape(-1)


def decoded(model: Any, X: Floats, levels: dict[int, tuple[Hashable, ...]]) -> Any:
    """A table as the user would pass it: levels for codes, something else for unseen ones."""
    texts = any(not isinstance(level, (int, float)) for known in levels.values() for level in known)
    table = X.astype(object) if texts else X.copy()
    for column, known in levels.items():
        palette = np.array([*known, _unseen(known), np.nan], dtype=table.dtype)
        codes = np.where(np.isnan(X[:, column]), len(known) + 1, X[:, column])
        table[:, column] = palette[codes.astype(np.intp)]
    return shared.as_fitted(model, table)


def _unseen(known: tuple[Any, ...]) -> Any:
    """A category that is not among the known ones, of their type."""
    if all(isinstance(level, (int, float)) for level in known):
        return max(known, default=0) + 1
    return "unseen" + "".join(map(str, known))


def native_leaves(model: Any, rows: Any) -> Ints:
    """Leaf of every row in every tree, by the library's own walk.

    HistGradientBoosting has no ``apply``, but its trees return a value: here, the leaf's position.
    """
    encoded = model._preprocess_X(rows, reset=False)
    known, place_of = model._bin_mapper.make_known_categories_bitsets()
    leaves = []
    for predictor in predictors_of(model):
        marked = copy.copy(predictor)
        marked.nodes = predictor.nodes.copy()
        marked.nodes["value"] = np.arange(len(marked.nodes))
        leaves.append(marked.predict(encoded, known, place_of, 1))
    return np.column_stack(leaves).astype(np.int64)
