"""The columns of an XGBoost model document: names, kinds, and the levels of categories."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise
from typing import Any

import numpy as np

from knothole.errors import DamagedFile, UnsupportedModel
from knothole.tables.columns import Column, Columns, Kind
from knothole.trees.libraries.xgboost.forest import Forest, field, integers

# By XGBoost's own names; all others are numbers.
KINDS = {"c": Kind.CATEGORICAL, "int": Kind.INTEGER, "i": Kind.INTEGER}


def columns_of(document: Any, model: Any, found: Forest, n_columns: int) -> Columns:
    """The columns of a document, given the part of it with the trees, and the trees.

    Where no names of categories are stored, the levels are the codes, as far as the splits know
    them: to the model, a higher code is like one never seen.
    """
    learner = field(document, "learner")
    names, types = (
        _texts(learner.get(key) or [], n_columns, key) for key in ("feature_names", "feature_types")
    )
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
    version = integers(field(document, "version"), "version").tolist()
    if version >= [3, 1] or not columns.named:
        return
    for column in columns:
        if column.kind is Kind.CATEGORICAL:
            raise UnsupportedModel(
                f"XGBoost {'.'.join(map(str, version))} did not store the levels of the "
                f"categorical column {column.name!r}, so it cannot be told what its codes mean. "
                f"Train with XGBoost 3.1 or later, or on integer codes without column names."
            )


def _texts(values: Any, n_columns: int, key: str) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(text, str) for text in values):
        raise DamagedFile(f"XGBoost: {key} must be a list of texts.")
    if values and len(values) != n_columns:
        raise DamagedFile(f"XGBoost: {n_columns} columns, but {len(values)} {key}.")
    return values


def _stored_levels(model: Any, n_columns: int) -> dict[int, tuple[Hashable, ...]]:
    """Levels by column, as a model trained on a table with categories keeps them (since 3.1)."""
    encoded = model.get("cats", {}).get("enc", [])
    if len(encoded) not in (0, n_columns):
        raise DamagedFile(f"XGBoost: {n_columns} columns, but the levels of {len(encoded)}.")
    return {i: _levels(entry, i) for i, entry in enumerate(encoded) if len(entry["values"])}


def _levels(entry: Any, column: int) -> tuple[Hashable, ...]:
    values = integers(entry["values"], "values")
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
        ends = integers(entry["offsets"], "offsets")
        if ends[0] != 0 or ends[-1] != len(text) or (np.diff(ends) < 0).any():
            raise DamagedFile(f"XGBoost: the categories of column {column} overlap.")
        cuts = ends.tolist()
        levels = tuple(text[a:b].decode() for a, b in pairwise(cuts))
    if len(set(levels)) != len(levels):
        raise DamagedFile(f"XGBoost: a category of column {column} is there twice.")
    return levels
