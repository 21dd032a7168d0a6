"""CatBoost: all its growing policies; numeric, one-hot and single-feature CTR splits.

A live model is saved to memory in CatBoost's own format and read from there, as a file is. What
CatBoost does, and what follows:

- It compares ``float32(x) > border``; the cut is the exact float64 equivalent.
- It refuses NaN in a categorical column. An ensemble sends it where a category goes that was never
  seen; the self-check asks CatBoost about such a category instead.
- Margins go through the link of the loss, also for the plain ``CatBoost`` class, whose ``predict``
  returns margins.
- It knows categories only by hash (:mod:`.categories`).
- Symmetric trees become ordinary binary trees, the last split at the root, so that leaves come in
  CatBoost's own order.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from knothole.errors import DamagedFile, NotFitted, UnsupportedModel
from knothole.tables.columns import Column, Columns, Kind
from knothole.tables.levels import HashedLevel
from knothole.trees.ensemble import Ensemble, Nodes
from knothole.trees.libraries.catboost import cbm
from knothole.trees.libraries.catboost.categories import text_for
from knothole.trees.libraries.catboost.parts import (
    BinaryTrees,
    CategoricalFeature,
    NumericFeature,
    ObliviousTrees,
    Parts,
)
from knothole.trees.libraries.catboost.splits import Splits, known_hashes, splits_of
from knothole.trees.libraries.registry import Reading, Replay
from knothole.trees.links import Link

# The link by loss. Without an entry, predictions are margins, or (of a classifier) what CatBoost's
# predict_proba does with any loss: a sigmoid of one output, a softmax over several.
LINKS = {
    "Poisson": "exp",
    "Tweedie": "exp",
    "Logloss": "sigmoid",
    "CrossEntropy": "sigmoid",
    "Focal": "sigmoid",
    "MultiClassOneVsAll": "sigmoid",
    "MultiLogloss": "sigmoid",
    "MultiCrossEntropy": "sigmoid",
    "MultiClass": "softmax",
}
# Several labels at once: outputs are not classes to choose from.
MULTI_LABEL = ("MultiLogloss", "MultiCrossEntropy")
UNSUPPORTED_LOSSES = {
    "RMSEWithUncertainty": "its second output is the logarithm of a variance, not a prediction; "
    "train with loss_function='RMSE'",
}


def read(model: Any) -> Reading:
    """Read a fitted CatBoost, CatBoostRegressor, CatBoostClassifier or CatBoostRanker."""
    ensemble = ensemble_of(parts_of(model))
    return Reading(ensemble, lambda X: _replay(model, ensemble, X))


def saved(model: Any) -> bytes:
    """The model as the bytes of a cbm file."""
    if not model.is_fitted():
        raise NotFitted(f"this {type(model).__name__} is not fitted: call its fit method first.")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.cbm")
        model.save_model(path, format="cbm")
        return Path(path).read_bytes()


def parts_of(model: Any) -> Parts:
    """What a fitted model's file would say."""
    return cbm.parse(saved(model))


def ensemble_of(parts: Parts) -> Ensemble:
    """The ensemble of a model, given what its file says."""
    loss = parts.loss
    if loss in UNSUPPORTED_LOSSES:
        raise UnsupportedModel(f"catboost: loss {loss} is not read: {UNSUPPORTED_LOSSES[loss]}.")
    known = known_hashes(parts)
    columns = _columns(parts, known)
    splits = splits_of(parts, known)
    if isinstance(parts.trees, ObliviousTrees):
        nodes = _oblivious(parts.trees, parts.value, splits)
    else:
        nodes = _binary(parts.trees, parts.value, splits)
    link = _link(parts)
    if parts.value.shape[1] != len(parts.bias):
        raise DamagedFile(f"catboost: {len(parts.bias)} biases for {parts.value.shape[1]} outputs.")
    return Ensemble.build(
        nodes,
        columns=columns,
        base=parts.bias,
        tree_weight=np.full(len(nodes.roots), parts.scale),
        link=link,
        classes=_classes(parts, link),
        library="catboost",
        precision="float64",
    )


def _link(parts: Parts) -> Link:
    fallback = "identity"
    if parts.classes:
        fallback = "sigmoid" if parts.value.shape[1] == 1 else "softmax"
    return Link(LINKS.get(parts.loss, fallback))


def _classes(parts: Parts, link: Link) -> tuple[Hashable, ...] | None:
    if link.name not in ("sigmoid", "softmax") or parts.loss in MULTI_LABEL:
        return None
    outputs = parts.value.shape[1]
    n_classes = 2 if outputs == 1 else outputs
    classes = parts.classes or tuple(range(n_classes))
    if len(classes) != n_classes:
        raise DamagedFile(f"catboost: {len(classes)} class labels for {outputs} outputs.")
    return classes


def _columns(parts: Parts, known: dict[int, NDArray[np.uint32]]) -> Columns:
    """Columns in the order of the training table."""
    features: list[NumericFeature | CategoricalFeature] = [*parts.numeric, *parts.categorical]
    features.sort(key=lambda feature: feature.column)
    if [feature.column for feature in features] != list(range(len(features))):
        raise UnsupportedModel(
            "catboost: not every column of the training table has a feature in the model "
            "(drop_unused_features takes them away). Read the model as it was trained."
        )
    columns = []
    for feature in features:
        name = feature.name or str(feature.column)
        if isinstance(feature, NumericFeature):
            columns.append(Column(name))
        else:
            hashes = known[feature.index].tolist()
            levels = tuple(HashedLevel(h, parts.level_names.get(h)) for h in hashes)
            columns.append(Column(name, Kind.CATEGORICAL, levels))
    named = any(feature.name not in ("", str(feature.column)) for feature in features)
    return Columns(tuple(columns), named=named)


def _oblivious(trees: ObliviousTrees, value: NDArray[np.float64], splits: Splits) -> Nodes:
    """Binary trees of symmetric ones: each tree a heap, all trees of one depth at once.

    Node i of a heap has children 2 i + 1 and 2 i + 2, and its level's split is the tree's last but
    level; so the leaves, from left to right, have the numbers that CatBoost gives them.
    """
    if len(trees.split) and not 0 <= trees.split.min() <= trees.split.max() < len(splits.cut):
        raise DamagedFile("catboost: a split on a border that the model does not have.")
    n_nodes = (2 << trees.depth) - 1
    roots = np.cumsum(n_nodes) - n_nodes
    first_split = np.cumsum(trees.depth) - trees.depth
    first_leaf = np.cumsum(1 << trees.depth) - (1 << trees.depth)
    total = int(n_nodes.sum())
    split = np.full(total, -1, dtype=np.int64)
    left = np.zeros(total, dtype=np.int32)
    native = np.zeros(total, dtype=np.int32)
    values = np.zeros((total, value.shape[1]))
    for depth in np.unique(trees.depth).tolist():
        chosen = trees.depth == depth
        inner = np.arange((1 << depth) - 1)
        level = np.frexp(inner + 1.0)[1] - 1
        here = roots[chosen, None] + inner
        split[here] = trees.split[first_split[chosen, None] + depth - 1 - level]
        left[here] = roots[chosen, None] + 2 * inner + 1
        number = np.arange(1 << depth)
        leaves = roots[chosen, None] + len(inner) + number
        native[leaves] = number
        values[leaves] = value[first_leaf[chosen, None] + number]
    return _nodes(roots, split, left, left + np.int32(1), values, native, splits)


def _binary(trees: BinaryTrees, value: NDArray[np.float64], splits: Splits) -> Nodes:
    leaf = trees.left == np.arange(len(trees.left))
    split = np.where(leaf, -1, trees.split)
    if not -1 <= split.min(initial=-1) <= split.max(initial=-1) < len(splits.cut):
        raise DamagedFile("catboost: a split on a border that the model does not have.")
    native = trees.leaf - trees.first_leaf[trees.tree]
    return _nodes(trees.roots, split, trees.left, trees.right, value[trees.leaf], native, splits)


def _nodes(
    roots: NDArray[Any],
    split: NDArray[np.int64],
    left: NDArray[Any],
    right: NDArray[Any],
    value: NDArray[np.float64],
    native_leaf: NDArray[Any],
    splits: Splits,
) -> Nodes:
    """Nodes that ask the questions numbered ``split``, -1 at leaves."""
    # The last entry is for leaves, whose split is -1.
    feature = np.append(splits.feature, np.int32(-1))
    return Nodes(
        roots=roots,
        feature=feature[split],
        cut=np.append(splits.cut, np.nan)[split],
        left=left,
        right=right,
        missing_left=np.append(splits.missing_left, True)[split],
        value=value,
        native_leaf=native_leaf,
        set_start=np.append(splits.set_start, np.int32(-1))[split],
        sets=splits.sets,
    )


def _replay(model: Any, ensemble: Ensemble, X: NDArray[np.float64]) -> Replay:
    """CatBoost's own margins and leaves for rows of codes."""
    import catboost

    table = {}
    for i, column in enumerate(ensemble.columns):
        values = X[:, i]
        table[i] = _texts(column, values) if column.kind == Kind.CATEGORICAL else values
    frame = pd.DataFrame(table)
    frame.columns = pd.Index(ensemble.columns.names)
    categorical = [i for i, c in enumerate(ensemble.columns) if c.kind == Kind.CATEGORICAL]
    pool = catboost.Pool(frame, cat_features=categorical, thread_count=1)
    # Wrappers' own ``predict`` differ in what they return and take.
    margin = catboost.CatBoost.predict(model, pool, "RawFormulaVal", thread_count=1)
    leaves = model.calc_leaf_indexes(pool, thread_count=1)
    shape = (len(X), ensemble.n_outputs)
    return Replay(np.reshape(margin, shape), np.asarray(leaves, dtype=np.int64))


def _texts(column: Column, codes: NDArray[np.float64]) -> NDArray[np.object_]:
    """Texts that CatBoost takes for the categories with these codes; any other code is unseen."""
    hashes = [level.hash for level in column.levels if isinstance(level, HashedLevel)]
    taken = set(hashes)
    hashes.append(next(h for h in range(len(hashes) + 1) if h not in taken))
    seen = (codes >= 0) & (codes < len(hashes) - 1)
    position = np.where(seen, codes, len(hashes) - 1).astype(np.int64)
    used, inverse = np.unique(position, return_inverse=True)
    texts = np.empty(len(used), dtype=object)
    texts[:] = [text_for(hashes[i]) for i in used.tolist()]
    return texts[inverse]
