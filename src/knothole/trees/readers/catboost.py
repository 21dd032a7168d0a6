"""CatBoost: all its growing policies; numeric, one-hot and single-feature CTR splits.

A live model is saved to memory in CatBoost's own format and read from there, like a file. A JSON
file is converted to that format by CatBoost itself. What is special about CatBoost:

- It goes right iff ``float32(x) > border``; the threshold is the exact float64 equivalent.
- It refuses NaN in a categorical column. The ensemble sends it where an unseen category goes; the
  self-check asks CatBoost about an unseen category instead.
- Margins go through the link of the loss, also for the plain ``CatBoost`` class, whose ``predict``
  returns margins.
- It stores a category (a string, or an integer as text) only as a hash, the lower half of the
  text's CityHash64. The keys of a CTR table scramble that hash once more, which can be undone. So a
  file tells how many categories a model knows, but not their names: they are
  :class:`~knothole.columns.columns.HashedLevel` until :func:`name_levels` finds them in a table.
- Symmetric trees become ordinary binary trees with the last split at the root, so that leaves are
  in CatBoost's own order.
- Its own ways to set leaf values do not work here: ``set_leaf_values`` refuses loaded models and
  has no effect after a prediction, and its JSON parser does not round to the nearest float64. So
  the values are replaced in the bytes of a saved model, and a copy loads those.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Ints, Mask, Words
from knothole.checks import check_count, check_within, require
from knothole.columns.city_hash import hash_of, text_for
from knothole.columns.columns import Column, Columns, HashedLevel, Kind, named_by
from knothole.errors import DamagedFile, UnsupportedModel
from knothole.files import without_doubles
from knothole.trees import quarantine
from knothole.trees.ensemble import Ensemble, Nodes, pack_sides
from knothole.trees.libraries import ModelReading, Replay, not_fitted
from knothole.trees.links import Link
from knothole.trees.readers import cbm
from knothole.trees.readers.cbm import (
    CLASSES,
    COUNTERS,
    MEANS,
    NO_SUCH_SPLIT,
    CatBoostModel,
    CategoricalFeature,
    CtrFeature,
    CtrTable,
    NumericFeature,
)
from knothole.trees.thresholds import exact_less_equal_float32

LIBRARY = "catboost"
WAY_OUT = "Save the model again with catboost."
SUFFIXES = (".cbm", ".json")
NOT_CATEGORICAL = "a split on the categories of a feature that is not categorical"
# Multiplier that scrambles the keys of CTR tables.
SCRAMBLE = 0x4906BA494954CB65
# Links by loss. Without an entry, predictions are margins; a classifier's predict_proba applies
# a sigmoid to one output and a softmax to several, whatever the loss.
LINKS = {
    **dict.fromkeys(["Poisson", "Tweedie"], "exp"),
    **dict.fromkeys(["Logloss", "CrossEntropy", "Focal", "MultiClassOneVsAll"], "sigmoid"),
    **dict.fromkeys(["MultiLogloss", "MultiCrossEntropy"], "sigmoid"),
    "MultiClass": "softmax",
}
# Losses for several labels at once: their outputs are not alternatives.
MULTI_LABEL = ("MultiLogloss", "MultiCrossEntropy")


def read(model: Any) -> ModelReading:
    """Read a fitted CatBoost, CatBoostRegressor, CatBoostClassifier or CatBoostRanker."""
    ensemble = ensemble_of(cbm.parse(saved(model)))
    return ModelReading(ensemble, lambda X: _replay(model, ensemble, X))


def saved(model: Any) -> bytes:
    """The model as the bytes of a cbm file."""
    if not model.is_fitted():
        raise not_fitted(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.cbm"
        model.save_model(str(path), format="cbm")
        return path.read_bytes()


def begins(head: bytes) -> bool:
    """Whether a file with these first bytes may be CatBoost's; other JSON files may pass too."""
    return head.startswith((cbm.MAGIC, b"{"))


def read_file(path: Path) -> Ensemble:
    """Read a cbm file, or a JSON file that CatBoost converts to cbm in a separate process.

    CatBoost reads a truncated JSON file as one with fewer trees, so the JSON is checked here too.
    It may also hold the texts of categories, which a cbm file does not have.
    """
    data = path.read_bytes()
    if data.startswith(cbm.MAGIC):
        return ensemble_of(cbm.parse(data))
    document = json.loads(data, object_pairs_hook=without_doubles)
    records = document["features_info"].get("cat_features_hash", [])
    texts = {record["hash"] % 2**32: str(record["value"]) for record in records}
    return ensemble_of(cbm.parse(quarantine.ask("catboost", path)["saved"].tobytes()), texts)


def load(path: Path) -> Any:
    """Let CatBoost load a saved model."""
    import catboost

    with path.open("rb") as file:
        kind = "cbm" if file.read(len(cbm.MAGIC)) == cbm.MAGIC else "json"
    return catboost.CatBoost().load_model(str(path), format=kind)


def save(model: Any, path: Path) -> None:
    """Let CatBoost save a model, in the format given by the file's suffix."""
    model.save_model(str(path), format=path.suffix.lower().removeprefix("."))


def write(model: Any, ensemble: Ensemble) -> Any:
    """A copy of ``model`` whose leaves hold the values of ``ensemble``."""
    data = saved(model)
    parts = cbm.parse(data)
    value = np.array(parts.value)
    value[parts.trees.first_leaf[ensemble.leaf_tree] + ensemble.native_leaf] = ensemble.value
    copy = model.copy()
    copy.load_model(blob=cbm.replace_leaf_values(data, value))
    # Attributes that fit sets and loading does not restore.
    copy._n_features_in = model.n_features_in_
    if getattr(copy, "_prediction_values_change", None) is not None:
        copy.get_feature_importance(type="PredictionValuesChange")  # cached in the copy
    copy._loss_value_change = None  # belongs to the old leaves; recomputing it takes data
    return copy


def name_levels(ensemble: Ensemble, table: Any) -> Ensemble:
    """The ensemble with its categories named as in its training table.

    A CatBoost model stores only hashes of its categories. Categories of the table that the model
    does not know are not added; :meth:`knothole.columns.columns.Columns.describe` does that.
    """
    return replace(ensemble, columns=named_by(ensemble.columns, table, hash_of))


def ensemble_of(parts: CatBoostModel, texts: Mapping[int, str] | None = None) -> Ensemble:
    """The ensemble of a parsed model; ``texts`` names categories by their hash, if known."""
    if parts.loss == "RMSEWithUncertainty":
        raise UnsupportedModel(
            "catboost: loss RMSEWithUncertainty is not read: its second output is the logarithm of "
            "a variance, not a prediction; train with loss_function='RMSE'."
        )
    known = known_hashes(parts)
    columns = _columns(parts, known, texts or {})
    nodes = _nodes(parts, splits_of(parts, known))
    link = _link(parts)
    check_count("biases", len(parts.bias), parts.value.shape[1])
    return Ensemble.build(
        nodes,
        columns=columns,
        base=parts.bias,
        link=link,
        classes=_classes(parts, link),
        library=LIBRARY,
        precision="float64",
    ).trained_by(parts.recipe)


def _link(parts: CatBoostModel) -> Link:
    fallback = "identity"
    if parts.classes:
        fallback = "sigmoid" if parts.value.shape[1] == 1 else "softmax"
    return Link(LINKS.get(parts.loss, fallback))


def _classes(parts: CatBoostModel, link: Link) -> tuple[Hashable, ...] | None:
    if link.name not in ("sigmoid", "softmax") or parts.loss in MULTI_LABEL:
        return None
    outputs = parts.value.shape[1]
    n_classes = 2 if outputs == 1 else outputs
    classes = parts.classes or tuple(range(n_classes))
    check_count("class labels", len(classes), n_classes)
    return classes


def _columns(
    parts: CatBoostModel, known: dict[int, NDArray[np.uint32]], texts: Mapping[int, str]
) -> Columns:
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
            levels = tuple(HashedLevel(h, texts.get(h)) for h in hashes)
            columns.append(Column(name, Kind.CATEGORICAL, levels))
    named = any(feature.name not in ("", str(feature.column)) for feature in features)
    return Columns(tuple(columns), named=named)


def _nodes(parts: CatBoostModel, splits: SplitQuestions) -> Nodes:
    trees = parts.trees
    check_within(trees.split + 1, len(splits.threshold) + 1, NO_SUCH_SPLIT)  # -1 at leaves
    # The last entry of each array is for leaves, whose split is -1.
    return Nodes(
        roots=trees.roots,
        feature=np.append(splits.feature, -1)[trees.split],
        threshold=np.append(splits.threshold, np.nan)[trees.split],
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
    import pandas as pd

    categorical = [i for i, c in enumerate(ensemble.columns) if c.kind is Kind.CATEGORICAL]
    table = dict(enumerate(X.T))
    for i in categorical:
        table[i] = _texts(ensemble.columns[i], X[:, i])
    frame = pd.DataFrame(table)
    frame.columns = pd.Index(ensemble.columns.names)
    pool = catboost.Pool(frame, cat_features=categorical, thread_count=1)
    # The wrappers' ``predict`` take and return different things.
    margin = catboost.CatBoost.predict(model, pool, "RawFormulaVal", thread_count=1)
    leaves = model.calc_leaf_indexes(pool, thread_count=1)
    shape = (len(X), ensemble.n_outputs)
    return Replay(np.reshape(margin, shape), np.asarray(leaves, dtype=np.int64))


def _texts(column: Column, codes: Floats) -> NDArray[np.object_]:
    """The texts of these category codes for CatBoost; unknown codes become an unseen text."""
    hashes = [level.hash for level in column.levels if isinstance(level, HashedLevel)]
    taken = set(hashes)
    hashes.append(next(h for h in range(len(hashes) + 1) if h not in taken))
    seen = (codes >= 0) & (codes < len(hashes) - 1)
    position = np.where(seen, codes, len(hashes) - 1).astype(np.int64)
    used, inverse = np.unique(position, return_inverse=True)
    texts = np.empty(len(used), dtype=object)
    texts[:] = [text_for(hashes[i]) for i in used.tolist()]
    return texts[inverse]


# ---- splits --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SplitQuestions:
    """All splits of a model, in CatBoost's numbering; fields as in ``Nodes``."""

    feature: Ints
    threshold: Floats
    missing_left: Mask
    set_start: Ints
    sets: Words


def known_hashes(parts: CatBoostModel) -> dict[int, NDArray[np.uint32]]:
    """The hashes of the categories that each categorical feature (by index) knows, sorted."""
    pieces_of: dict[int, list[NDArray[np.uint32]]] = {
        feature.index: [np.zeros(0, dtype=np.uint32)] for feature in parts.categorical
    }
    check_count("categorical features with a number each", len(pieces_of), len(parts.categorical))
    for feature, hashes in parts.one_hot:
        require(feature in pieces_of, NOT_CATEGORICAL)
        pieces_of[feature].append(hashes)
    for ctr in parts.ctrs:
        pieces_of[_only_feature(ctr, parts)].append(hashes_of_keys(_table(ctr, parts).keys))
    return {index: np.unique(np.concatenate(pieces)) for index, pieces in pieces_of.items()}


def splits_of(parts: CatBoostModel, known: dict[int, NDArray[np.uint32]]) -> SplitQuestions:
    """All splits: numeric ones first, then one-hot, then CTR."""
    n_borders = [len(feature.borders) for feature in parts.numeric]
    column = np.array([feature.column for feature in parts.numeric], dtype=np.int64)
    nan_left = np.array([not feature.nan_right for feature in parts.numeric], dtype=np.bool_)
    borders = np.concatenate([np.zeros(0), *(feature.borders for feature in parts.numeric)])
    # A border can be infinite: CatBoost computes the mean of two huge values in float32.
    require(not np.isnan(borders).any(), "a border that is not a number")
    sets = list(_left_sets(parts, known))
    start, words = pack_sides([left for _, left in sets])
    return SplitQuestions(
        feature=np.append(np.repeat(column, n_borders), [column for column, _ in sets]),
        threshold=np.append(exact_less_equal_float32(borders), np.full(len(sets), np.nan)),
        # CatBoost refuses NaN as a category: here it goes where an unseen one goes.
        missing_left=np.append(np.repeat(nan_left, n_borders), [left[-1] for _, left in sets]),
        set_start=np.append(np.full(len(borders), -1), start),
        sets=words,
    )


def _left_sets(
    parts: CatBoostModel, known: dict[int, NDArray[np.uint32]]
) -> Iterator[tuple[int, Mask]]:
    """Column and left-going categories (known ones, then unseen) of each categorical split."""
    column_of = {feature.index: feature.column for feature in parts.categorical}
    for feature, hashes in parts.one_hot:
        for value in hashes:
            yield column_of[feature], np.append(known[feature] != value, True)
    for ctr in parts.ctrs:
        index = _only_feature(ctr, parts)
        values = ctr_values(ctr, _table(ctr, parts), known[index])
        for border in ctr.borders:
            yield column_of[index], ~(values > border)


def ctr_values(ctr: CtrFeature, table: CtrTable, known: NDArray[np.uint32]) -> NDArray[np.float32]:
    """The CTR of each known category and, last, of any other one, in CatBoost's float32.

    A CTR is (n + prior) / (N + prior weight), shifted and scaled. N is the number of training rows
    of the category, and n the number of those with the target in a class (Buckets) or above one
    (Borders), or the sum of their target (MeanValue). For Counter, n is the number of rows of the
    category and N that of the most frequent category.
    """
    counts = table.counts
    good: Any
    total: Any
    nothing = 0
    if ctr.key.kind in CLASSES:
        require(
            0 <= ctr.target_border < counts.shape[1] - (ctr.key.kind == "Borders"),
            f"a CTR of target class {ctr.target_border}, which is not there",
        )
        above = counts[:, ctr.target_border + 1 :].sum(axis=1)
        good = above if ctr.key.kind == "Borders" else counts[:, ctr.target_border]
        total = counts.sum(axis=1)
    elif ctr.key.kind in MEANS:
        good, total = counts.T
    elif ctr.key.kind in COUNTERS:
        good, total, nothing = counts[:, 0], table.denominator, table.denominator
    else:
        raise UnsupportedModel(
            f"catboost: CTRs of type {ctr.key.kind!r} are not known to knothole."
        )
    position = np.searchsorted(known, hashes_of_keys(table.keys))
    n = np.zeros(len(known) + 1, dtype=np.float32)
    n_all = np.full(len(known) + 1, nothing, dtype=np.float32)
    n[position] = good
    n_all[position] = total
    with np.errstate(all="ignore"):
        ratio = (n + np.float32(ctr.prior)) / (n_all + np.float32(ctr.prior_weight))
        return (ratio + np.float32(ctr.shift)) * np.float32(ctr.scale)


def _only_feature(ctr: CtrFeature, parts: CatBoostModel) -> int:
    """The only categorical feature of a CTR; combinations of features are refused."""
    if len(ctr.key.features) != 1 or not ctr.key.plain:
        names = {feature.index: feature.name or feature.column for feature in parts.categorical}
        over = [str(names.get(index, index)) for index in ctr.key.features]
        raise UnsupportedModel(
            f"catboost: the model splits on a combination of features (a CTR over {', '.join(over)}"
            f"{'' if ctr.key.plain else ' and other splits'}), which is not a split on one column. "
            f"Train it with max_ctr_complexity=1."
        )
    index = ctr.key.features[0]
    known = any(feature.index == index for feature in parts.categorical)
    require(known, NOT_CATEGORICAL)
    return index


def _table(ctr: CtrFeature, parts: CatBoostModel) -> CtrTable:
    if ctr.key not in parts.tables:
        raise UnsupportedModel(
            "catboost: the model has no table for one of its CTRs, so that it cannot predict. "
            "Train it with final_ctr_computation_mode='Default'."
        )
    return parts.tables[ctr.key]


def hashes_of_keys(keys: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Hashes of categories, from the keys of a CTR table."""
    inverse = pow(SCRAMBLE, -2, 2**64)
    with np.errstate(over="ignore"):
        wide = (keys * np.uint64(inverse)).view(np.int64)
    narrow = wide.astype(np.int32)
    if not np.array_equal(narrow, wide):
        raise DamagedFile("a CTR table has a key that no category leads to")
    return narrow.view(np.uint32)
