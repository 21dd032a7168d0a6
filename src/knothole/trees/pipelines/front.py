"""The steps before a tree model, asked what they make of rows; and the model's splits."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from knothole.arrays import Floats, Integers, Ints, Mask
from knothole.columns.evidence import with_nan
from knothole.trees.ensemble import Ensemble, left_codes
from knothole.trees.pipelines.parts import Steps
from knothole.trees.read import read
from knothole.trees.readers.catboost import name_levels

LARGEST = np.finfo(np.float64).max


@dataclass(frozen=True, eq=False)
class Front:
    """A tree model, once read, and the fitted steps that rows take to it."""

    steps: Steps
    ensemble: Ensemble
    dense: bool = True  # False where zeros are omitted, and so are NaN to the model

    @classmethod
    def of(cls, steps: Steps, model: Any, table: Any) -> Front:
        """Of a model and a training table, which names categories that the model has hashed."""
        ensemble = read(model)
        omits = ensemble.library == "XGBoost" and sparse.issparse(_through(steps, table))
        found = cls(steps, ensemble, dense=not omits)
        if any(column.levels for column in ensemble.columns):
            return replace(found, ensemble=name_levels(ensemble, found.passed(table)))
        return found

    def passed(self, table: Any, steps: int | None = None) -> Any:
        """What the steps (the first few of them) make of a table."""
        made = _through(self.steps[:steps], table)
        if not hasattr(made, "tocoo"):
            return made
        entries = made.tocoo()
        if self.dense:
            return entries.toarray()
        # What is not among the entries is NaN to XGBoost, and to no other library.
        dense = np.full(entries.shape, np.nan)
        dense[entries.row, entries.col] = entries.data
        return dense

    def __call__(self, table: Any) -> Floats:
        """What the trees split on, (rows, columns of the model)."""
        found = self.passed(table)
        if isinstance(found, np.ndarray) and found.dtype.kind in "fiub":
            found = np.clip(found.astype(np.float64), -LARGEST, LARGEST)
        elif hasattr(found, "replace"):
            found = found.replace({np.inf: LARGEST, -np.inf: -LARGEST})
        columns, sentinel = self.ensemble.columns, self.ensemble.sentinel
        return with_nan(columns.matrix(found, unseen="hole"), sentinel, columns)

    @cached_property
    def splits(self) -> Splits:
        """The model's own splits."""
        return Splits.of(self.ensemble)


def _through(steps: Steps, table: Any) -> Any:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for step in steps:
            table = step.transform(table)
    return table


@dataclass(frozen=True, eq=False)
class Splits:
    """The different splits of an ensemble, by number.

    Attributes
    ----------
    of_node : int64 (nodes,)
        The split of each node; -1 at leaves.
    column, cut, missing_left : arrays (splits,)
        As in :class:`~knothole.trees.ensemble.Ensemble`.
    lefts : bool (splits, codes), of categorical splits
        Whether a code goes left.
    """

    of_node: Ints
    column: Integers
    cut: Floats
    missing_left: Mask
    lefts: Mask

    @classmethod
    def of(cls, ensemble: Ensemble) -> Splits:
        """Splits of numbers that are alike are one."""
        inner = np.flatnonzero(ensemble.feature >= 0)
        keys = np.column_stack(
            [
                ensemble.feature[inner],
                ensemble.cut[inner].view(np.int64),
                ensemble.missing_left[inner],
                np.where(ensemble.set_start[inner] >= 0, inner, -1),
            ]
        )
        _, first, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        of_node = np.full(len(ensemble.feature), -1)
        of_node[inner] = which.reshape(-1)
        nodes = inner[first]
        categorical = np.flatnonzero(ensemble.set_start[nodes] >= 0)
        width = 1 + int(ensemble.n_levels[ensemble.feature[nodes[categorical]]].max(initial=0))
        lefts = np.zeros((len(nodes) if len(categorical) else 0, width), dtype=np.bool_)
        for s in categorical.tolist():
            codes = left_codes(ensemble, int(nodes[s]))
            lefts[s, : len(codes)] = codes
        cut, missing = ensemble.cut[nodes], ensemble.missing_left[nodes]
        return cls(of_node, ensemble.feature[nodes], cut, missing, lefts)

    def __len__(self) -> int:
        return len(self.column)

    def go_left(self, values: Floats, which: Ints) -> Mask:
        """Whether values of the splits' columns go left; both arrays are broadcast."""
        cut = self.cut[which]
        left = values < cut
        if len(self.lefts):
            code = np.where(np.isnan(cut) & ~np.isnan(values), values, 0).astype(np.intp)
            left = np.where(np.isnan(cut), self.lefts[which, code], left)
        return np.asarray(np.where(np.isnan(values), self.missing_left[which], left))

    def sides(self, matrix: Floats) -> Mask:
        """Whether rows of the model's columns go left at every split, (rows, splits)."""
        return self.go_left(matrix[:, self.column], np.arange(len(self))[None])
