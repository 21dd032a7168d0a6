"""The columns of an XGBoost model document: names, kinds, and the levels of categories."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise
from typing import Any

import numpy as np

from knothole.columns.columns import Column, Columns, Kind
from knothole.errors import UnsupportedModel
from knothole.trees.readers.xgboost.forest import Forest, strict

# By XGBoost's own names; all others are numbers.
KINDS = {"c": Kind.CATEGORICAL, "int": Kind.INTEGER, "i": Kind.INTEGER}


def columns_of(document: Any, model: Any, found: Forest, n_columns: int) -> Columns:
    """The columns of a document, given the part of it with the trees, and the trees.

    Where no names of categories are stored, the levels are the codes, as far as the splits know
    them: to the model, a higher code is like one never seen.
    """
    learner = strict.field(document, "learner")
    names, types = (_texts(learner, key, n_columns) for key in ("feature_names", "feature_types"))
    stored = _stored_levels(model, n_columns)
    highest = found.highest_category(n_columns).tolist()
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
    """Refuse a table's categories by code: before 3.1 XGBoost did not keep what the codes mean."""
    version = strict.integers(strict.field(document, "version"), "version").tolist()
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
    """A text for each column, or none at all."""
    texts = [strict.of(str, text) for text in strict.of(list, learner.get(key) or [])]
    strict.count(key, len(texts), 0, n_columns)
    return texts


def _stored_levels(model: Any, n_columns: int) -> dict[int, tuple[Hashable, ...]]:
    """Levels by column, as a model trained on a table with categories keeps them (since 3.1)."""
    encoded = model.get("cats", {}).get("enc", [])
    strict.count("columns with levels", len(encoded), 0, n_columns)
    return {i: _levels(entry, i) for i, entry in enumerate(encoded) if len(entry["values"])}


def _levels(entry: Any, column: int) -> tuple[Hashable, ...]:
    values = strict.integers(entry["values"], "values")
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
        ends = strict.integers(entry["offsets"], "offsets")
        ascend = ends[0] == 0 and ends[-1] == len(text) and (np.diff(ends) >= 0).all()
        strict.require(ascend, f"the categories of column {column} overlap")
        levels = tuple(text[a:b].decode() for a, b in pairwise(ends.tolist()))
    strict.count(f"different categories of column {column}", len(set(levels)), len(levels))
    return levels
