"""Explainable boosting machines of interpret, from the live object.

A term of such a model is a table of scores over the bins of one column, or of two and more: here a
tree with a leaf for each cell. A number is in the bin above all cuts that are at most it, so that
the rule is *below iff x < cut*, in float64. The first bin of each column is that of NaN, the last
one of categories never seen; no number is in the latter. Columns have coarser bins where they stand
in terms with others.

The model keeps categories as texts: their names come from the training table
(:func:`name_levels`). New leaf values are exact.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np

from knothole.arrays import Floats
from knothole.columns.columns import Column, Columns, Kind
from knothole.columns.read import observed_levels, raw_columns
from knothole.errors import UnsupportedModel
from knothole.trees.ensemble import Ensemble, NodeList, Recipe
from knothole.trees.libraries import ModelReading, Replay, not_fitted
from knothole.trees.links import Link

LIBRARY = "interpret"
WAY_OUT = "Fit the model again."
LINKS = {
    "identity": Link("identity"),
    "logit": Link("sigmoid"),
    "mlogit": Link("softmax"),
    "log": Link("exp"),
}
# Losses whose leaves can be found anew.
USUAL = ("rmse", "log_loss")
# Cells that a term may have, and all terms together.
MOST_CELLS = 5_000_000
# Names that the library makes up for columns without.
MADE_UP = re.compile(r"feature_\d+")


def read(model: Any) -> ModelReading:
    """Read a fitted ExplainableBoostingRegressor or ExplainableBoostingClassifier."""
    if not getattr(model, "has_fitted_", False):
        raise not_fitted(model)
    if model.link_ not in LINKS:
        raise UnsupportedModel(
            f"{type(model).__name__} with link {model.link_!r}: knothole reads {', '.join(LINKS)}. "
            f"Use one of the objectives that have these, and at least two classes."
        )
    columns = _columns(model)
    base = np.atleast_1d(np.asarray(model.intercept_, dtype=np.float64))
    terms = _Terms(model, columns)
    ensemble = Ensemble.build(
        terms.nodes.build(terms.roots, np.vstack(terms.values), terms.cells),
        columns=columns,
        base=base,
        link=LINKS[model.link_],
        classes=tuple(model.classes_.tolist()) if hasattr(model, "classes_") else None,
        library=LIBRARY,
        precision="float64",
    )
    objective = str(model.objective)
    usual = objective in USUAL or objective.startswith("rmse")
    ensemble = ensemble.trained_by(Recipe.of(loss="" if usual else objective))

    def replay(X: Floats) -> Replay:
        return Replay(np.asarray(model._predict_score(_table(X, columns))).reshape(len(X), -1))

    return ModelReading(ensemble, replay)


def write(model: Any, ensemble: Ensemble) -> Any:
    """A copy of ``model`` whose scores are the values of ``ensemble``."""
    written = copy.deepcopy(model)
    for t, scores in enumerate(written.term_scores_):
        mine = slice(*ensemble.leaf_start[t : t + 2])
        cells = scores.reshape(-1, ensemble.value.shape[1])
        cells[ensemble.native_leaf[mine]] = ensemble.value[mine]
        written.term_scores_[t] = cells.reshape(scores.shape)
    return written


def name_levels(ensemble: Ensemble, table: Any) -> Ensemble:
    """The ensemble with its categories as the training table has them: 3 for "3"."""
    columns = ensemble.columns
    named = []
    for column, source in zip(
        columns, raw_columns(columns.read(table), columns.names), strict=True
    ):
        if column.kind is Kind.CATEGORICAL:
            values = source.levels if source.levels is not None else observed_levels(source)
            names = {text: value for value in values for text in _texts(value)}
            if set(column.levels) <= {"False", "True"}:  # which tables have as numbers
                names = {"False": 0, "True": 1} | names
            levels = tuple(names.get(str(level), level) for level in column.levels)
            column = replace(column, levels=levels)
        named.append(column)
    return replace(ensemble, columns=replace(columns, columns=tuple(named)))


def _texts(value: Hashable) -> list[str]:
    """What versions of the library call a category: a whole number with or without decimals."""
    if isinstance(value, int | float | np.bool_ | np.number) and value == np.floor(value):
        return [str(value), str(int(value)), str(float(value))]
    return [str(value)]


def _columns(model: Any) -> Columns:
    names = [str(name) for name in model.feature_names_in_]
    named = not all(MADE_UP.fullmatch(name) for name in names)
    columns = []
    for name, kind, bins in zip(names, model.feature_types_in_, model.bins_, strict=True):
        if kind == "continuous" or not bins:
            columns.append(Column(name))
            continue
        levels = dict.fromkeys(str(level) for resolution in bins for level in resolution)
        columns.append(Column(name, Kind.CATEGORICAL, tuple(levels)))
    return Columns(tuple(columns), named=named)


def _table(X: Floats, columns: Columns) -> Any:
    """Rows of codes as the user would pass them."""
    import pandas as pd

    table = {}
    for i, column in enumerate(columns):
        values: Any = X[:, i]
        if column.kind is Kind.CATEGORICAL:
            unseen = "unseen" + "".join(map(str, column.levels))
            palette = np.array([*column.levels, unseen, None], dtype=object)
            codes = np.where(np.isnan(values), len(palette) - 1, values).astype(np.intp)
            values = palette[codes]
        table[column.name] = values
    return pd.DataFrame(table)


class _Terms:
    """The terms of a model as trees, whose leaves are cells of the tables of scores."""

    def __init__(self, model: Any, columns: Columns) -> None:
        self.columns = columns
        self.nodes = NodeList()
        self.roots: list[int] = []
        self.values: list[Floats] = []
        self.cells: list[int] = []
        for features, scores in zip(model.term_features_, model.term_scores_, strict=True):
            shape = scores.shape[: len(features)]
            if len(self.cells) + np.prod(shape) > MOST_CELLS:
                raise UnsupportedModel(
                    f"{type(model).__name__}: its terms have more than {MOST_CELLS:,} cells. Fit "
                    f"it with fewer bins (max_bins, max_interaction_bins) or interactions."
                )
            # Of several resolutions, the one for as many columns as the term has.
            bins = [model.bins_[f][min(len(model.bins_[f]), len(features)) - 1] for f in features]
            cells = np.arange(np.prod(shape)).reshape(shape)
            first = len(self.cells)
            self.roots.append(self._tree(tuple(zip(features, bins, strict=True)), cells))
            flat = np.asarray(scores, dtype=np.float64).reshape(len(cells.ravel()), -1)
            self.values.append(flat[self.cells[first:]])

    def _tree(self, axes: tuple[tuple[int, Any], ...], cells: Any) -> int:
        """A tree that asks one column after the other; returns its root."""
        if not axes:
            node = self.nodes.add()
            self.nodes.leaf(node, len(self.cells))
            self.cells.append(int(cells))
            return node
        (column, bins), *rest = axes
        below = [self._tree(tuple(rest), cells[bin]) for bin in range(len(cells))]
        root, other = self.nodes.add(), len(below) - 1
        levels = self.columns[column].levels
        if not levels:
            known = self._numbers(column, bins, below[1:other])
            self.nodes.split(root, column, -np.inf, below[0], known, missing_left=True)
            return root
        bin_of = np.array([bins.get(level, other) for level in levels] + [other])
        known = self._levels(column, bin_of, below, np.unique(bin_of))
        nothing = np.zeros(len(bin_of), dtype=np.bool_)
        self.nodes.split(root, column, nothing, below[0], known, missing_left=True)
        return root

    def _numbers(self, column: int, cuts: Floats, below: list[int]) -> int:
        """The bins between cuts, halved and halved again."""
        if len(below) == 1:
            return below[0]
        middle = len(below) // 2
        left = self._numbers(column, cuts[: middle - 1], below[:middle])
        right = self._numbers(column, cuts[middle:], below[middle:])
        node = self.nodes.add()
        self.nodes.split(node, column, float(cuts[middle - 1]), left, right, missing_left=False)
        return node

    def _levels(self, column: int, bin_of: Any, below: list[int], bins: Any) -> int:
        """The bins of levels, likewise."""
        if len(bins) == 1:
            return below[int(bins[0])]
        middle = len(bins) // 2
        left = self._levels(column, bin_of, below, bins[:middle])
        right = self._levels(column, bin_of, below, bins[middle:])
        node = self.nodes.add()
        sides = np.isin(bin_of, bins[:middle])
        self.nodes.split(node, column, sides, left, right, missing_left=False)
        return node
