"""The questions CatBoost's trees can ask, each as a cut or a set of categories."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Ints, Mask, Words
from knothole.errors import UnsupportedModel
from knothole.trees.layout import pack_sides
from knothole.trees.readers.catboost.categories import hashes_of_keys
from knothole.trees.readers.catboost.forest import strict
from knothole.trees.readers.catboost.parts import (
    CLASSES,
    COUNTERS,
    MEANS,
    CtrFeature,
    CtrTable,
    Parts,
)
from knothole.trees.readers.cuts import cut_less_equal_float32

NOT_CATEGORICAL = "a split on the categories of a feature that is not categorical"


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
    strict.count("categorical features with a number each", len(found), len(parts.categorical))
    for feature, hashes in parts.one_hot:
        strict.require(feature in found, NOT_CATEGORICAL)
        found[feature].append(hashes)
    for ctr in parts.ctrs:
        found[_only_feature(ctr, parts)].append(hashes_of_keys(_table(ctr, parts).keys))
    return {index: np.unique(np.concatenate(pieces)) for index, pieces in found.items()}


def splits_of(parts: Parts, known: dict[int, NDArray[np.uint32]]) -> Splits:
    """All questions, numeric first, then one-hot, then CTR."""
    n_borders = [len(feature.borders) for feature in parts.numeric]
    column = np.array([feature.column for feature in parts.numeric], dtype=np.int64)
    nan_left = np.array([not feature.nan_right for feature in parts.numeric], dtype=np.bool_)
    borders = np.concatenate([np.zeros(0), *(feature.borders for feature in parts.numeric)])
    # An infinite border is possible: CatBoost takes the middle of two huge values in float32.
    strict.require(not np.isnan(borders).any(), "a border that is not a number")
    sets = list(_left_sets(parts, known))
    start, words = pack_sides([left for _, left in sets])
    return Splits(
        feature=np.append(np.repeat(column, n_borders), [column for column, _ in sets]),
        cut=np.append(cut_less_equal_float32(borders), np.full(len(sets), np.nan)),
        # CatBoost itself takes no NaN for a category: here it goes where an unseen one goes.
        missing_left=np.append(np.repeat(nan_left, n_borders), [left[-1] for _, left in sets]),
        set_start=np.append(np.full(len(borders), -1), start),
        sets=words,
    )


def _left_sets(parts: Parts, known: dict[int, NDArray[np.uint32]]) -> Iterator[tuple[int, Mask]]:
    """The column of each question about categories, and who goes left: known ones, then unseen."""
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
    strict.require(known, NOT_CATEGORICAL)
    return index


def _table(ctr: CtrFeature, parts: Parts) -> CtrTable:
    if ctr.key not in parts.tables:
        raise UnsupportedModel(
            "catboost: the model has no table for one of its CTRs, so that it cannot predict. "
            "Train it with final_ctr_computation_mode='Default'."
        )
    return parts.tables[ctr.key]
