"""The questions CatBoost's trees can ask, each as a cut or a set of categories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Ints, Mask, Words
from knothole.compiled.bits import pack
from knothole.errors import UnsupportedModel
from knothole.trees.libraries.catboost.categories import hashes_of_keys
from knothole.trees.libraries.catboost.forest import strict
from knothole.trees.libraries.catboost.parts import (
    CLASSES,
    COUNTERS,
    MEANS,
    CtrFeature,
    CtrTable,
    Parts,
)
from knothole.trees.libraries.cuts import cut_less_equal_float32


@dataclass(frozen=True, eq=False)
class Splits:
    """One entry a question, in CatBoost's numbering; columns as in ``Nodes``."""

    feature: Ints
    cut: Floats
    missing_left: Mask
    set_start: Ints
    sets: Words


def known_hashes(parts: Parts) -> dict[int, NDArray[np.uint32]]:
    """For each categorical feature (by index), sorted, the hashes of the categories it knows."""
    found: dict[int, list[NDArray[np.uint32]]] = {
        feature.index: [np.zeros(0, dtype=np.uint32)] for feature in parts.categorical
    }
    problem = "two categorical features have the same number"
    strict.require(len(found) == len(parts.categorical), problem)
    for one_hot in parts.one_hot:
        problem = "a one-hot split on a feature that is not categorical"
        strict.require(one_hot.feature in found, problem)
        found[one_hot.feature].append(one_hot.hashes)
    for ctr in parts.ctrs:
        found[_only_feature(ctr, parts)].append(hashes_of_keys(_table(ctr, parts).keys))
    return {index: np.unique(np.concatenate(pieces)) for index, pieces in found.items()}


def splits_of(parts: Parts, known: dict[int, NDArray[np.uint32]]) -> Splits:
    """All questions, numeric first, then one-hot, then CTR."""
    column_of = {feature.index: feature.column for feature in parts.categorical}
    feature = [np.zeros(0, dtype=np.int64)]
    cut = [np.zeros(0)]
    missing_left = [np.zeros(0, dtype=np.bool_)]
    lefts: list[Mask] = []  # who goes left: each known category, then unseen ones

    for numeric in parts.numeric:
        # An infinite border is possible: CatBoost takes the middle of two huge values in float32.
        problem = f"a border of column {numeric.column} is not a number"
        strict.require(not np.isnan(numeric.borders).any(), problem)
        feature.append(np.full(len(numeric.borders), numeric.column))
        cut.append(cut_less_equal_float32(numeric.borders))
        missing_left.append(np.full(len(numeric.borders), not numeric.nan_right))

    def ask(index: int, right: Mask) -> None:
        # CatBoost itself takes no NaN for a category: here it goes where an unseen one goes.
        feature.append(np.array([column_of[index]]))
        cut.append(np.array([np.nan]))
        missing_left.append(~right[-1:])
        lefts.append(~right)

    for one_hot in parts.one_hot:
        levels = known[one_hot.feature]
        for value in one_hot.hashes:
            ask(one_hot.feature, np.append(levels == value, False))
    for ctr in parts.ctrs:
        index = _only_feature(ctr, parts)
        values = ctr_values(ctr, _table(ctr, parts), known[index])
        for border in ctr.borders:
            ask(index, values > border)

    members = [np.flatnonzero(left) for left in lefts]
    start, sets = pack(
        np.array([len(left) - 1 for left in lefts], dtype=np.int64),
        np.repeat(np.arange(len(lefts)), [len(codes) for codes in members]),
        np.concatenate([np.zeros(0, dtype=np.int64), *members]),
    )
    return Splits(
        feature=np.concatenate(feature),
        cut=np.concatenate(cut),
        missing_left=np.concatenate(missing_left),
        set_start=np.append(np.full(sum(map(len, cut)) - len(lefts), -1), start),
        sets=sets,
    )


def ctr_values(ctr: CtrFeature, table: CtrTable, known: NDArray[np.uint32]) -> NDArray[np.float32]:
    """The CTR of each known category, and last of every other one, in CatBoost's float32.

    A CTR is (n + prior) / (N + weight of the prior), shifted and scaled: n counts the training rows
    of the category whose target is in a class (Buckets) or above one (Borders), or sums their
    target (MeanValue), among all N rows of the category; Counter has n rows of the category among
    the N of the most frequent one.
    """
    counts = table.counts
    good: Any
    total: Any
    nothing = 0
    if ctr.key.kind in CLASSES:
        strict.require(
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


def _only_feature(ctr: CtrFeature, parts: Parts) -> int:
    """The one categorical feature of a CTR; combinations are refused."""
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
    strict.require(known, "a CTR of a feature that is not categorical")
    return index


def _table(ctr: CtrFeature, parts: Parts) -> CtrTable:
    if ctr.key not in parts.tables:
        raise UnsupportedModel(
            "catboost: the model has no table for one of its CTRs, so that it cannot predict. "
            "Train it with final_ctr_computation_mode='Default'."
        )
    return parts.tables[ctr.key]
