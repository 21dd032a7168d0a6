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

import tempfile
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.columns.city_hash import text_for
from knothole.columns.columns import Column, Columns, HashedLevel, Kind
from knothole.errors import UnsupportedModel
from knothole.trees.ensemble import Ensemble, Nodes
from knothole.trees.links import Link
from knothole.trees.readers.catboost import cbm
from knothole.trees.readers.catboost.forest import NO_SUCH_SPLIT, strict
from knothole.trees.readers.catboost.parts import CategoricalFeature, NumericFeature, Parts
from knothole.trees.readers.catboost.splits import Splits, known_hashes, splits_of
from knothole.trees.readers.registry import Reading, Replay, not_fitted

# The link by loss. Without an entry, predictions are margins, or (of a classifier) what CatBoost's
# predict_proba does with any loss: a sigmoid of one output, a softmax over several.
LINKS = {
    **dict.fromkeys(["Poisson", "Tweedie"], "exp"),
    **dict.fromkeys(["Logloss", "CrossEntropy", "Focal", "MultiClassOneVsAll"], "sigmoid"),
    **dict.fromkeys(["MultiLogloss", "MultiCrossEntropy"], "sigmoid"),
    "MultiClass": "softmax",
}
# Several labels at once: outputs are not classes to choose from.
MULTI_LABEL = ("MultiLogloss", "MultiCrossEntropy")


def read(model: Any) -> Reading:
    """Read a fitted CatBoost, CatBoostRegressor, CatBoostClassifier or CatBoostRanker."""
    ensemble = ensemble_of(cbm.parse(saved(model)))
    return Reading(ensemble, lambda X: _replay(model, ensemble, X))


def saved(model: Any) -> bytes:
    """The model as the bytes of a cbm file."""
    if not model.is_fitted():
        raise not_fitted(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.cbm"
        model.save_model(str(path), format="cbm")
        return path.read_bytes()


def ensemble_of(parts: Parts) -> Ensemble:
    """The ensemble of a model, given what its file says."""
    if parts.loss == "RMSEWithUncertainty":
        raise UnsupportedModel(
            "catboost: loss RMSEWithUncertainty is not read: its second output is the logarithm of "
            "a variance, not a prediction; train with loss_function='RMSE'."
        )
    known = known_hashes(parts)
    columns = _columns(parts, known)
    nodes = _nodes(parts, splits_of(parts, known))
    link = _link(parts)
    strict.count("biases", len(parts.bias), parts.value.shape[1])
    return Ensemble.build(
        nodes,
        columns=columns,
        base=parts.bias,
        link=link,
        classes=_classes(parts, link),
        library=strict.library,
        precision="float64",
    ).trained_by(parts.recipe)


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
    strict.count("class labels", len(classes), n_classes)
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


def _nodes(parts: Parts, splits: Splits) -> Nodes:
    trees = parts.trees
    strict.within(trees.split + 1, len(splits.cut) + 1, NO_SUCH_SPLIT)  # -1 at leaves
    # The last of each of these is for leaves, whose split is -1.
    return Nodes(
        roots=trees.roots,
        feature=np.append(splits.feature, -1)[trees.split],
        cut=np.append(splits.cut, np.nan)[trees.split],
        left=trees.left,
        right=trees.right,
        missing_left=np.append(splits.missing_left, True)[trees.split],
        value=parts.value[trees.leaf],
        native_leaf=trees.leaf - trees.first_leaf[trees.tree],
        set_start=np.append(splits.set_start, -1)[trees.split],
        sets=splits.sets,
        tree_weight=np.full(len(trees.roots), parts.scale),
    )


def _replay(model: Any, ensemble: Ensemble, X: Floats) -> Replay:
    """CatBoost's own margins and leaves for rows of codes."""
    import catboost

    categorical = [i for i, c in enumerate(ensemble.columns) if c.kind is Kind.CATEGORICAL]
    table = dict(enumerate(X.T))
    for i in categorical:
        table[i] = _texts(ensemble.columns[i], X[:, i])
    frame = pd.DataFrame(table)
    frame.columns = pd.Index(ensemble.columns.names)
    pool = catboost.Pool(frame, cat_features=categorical, thread_count=1)
    # Wrappers' own ``predict`` differ in what they return and take.
    margin = catboost.CatBoost.predict(model, pool, "RawFormulaVal", thread_count=1)
    leaves = model.calc_leaf_indexes(pool, thread_count=1)
    shape = (len(X), ensemble.n_outputs)
    return Replay(np.reshape(margin, shape), np.asarray(leaves, dtype=np.int64))


def _texts(column: Column, codes: Floats) -> NDArray[np.object_]:
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
