"""Peers that keep the model and change what its trees do at a missing value.

Both walk the trees of the very model that knothole answers for, through its
:class:`~knothole.trees.ensemble.Ensemble`: C4.5 sends a row down both sides with weights, CART
finds other columns to decide in place of the missing one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.suite.peers.base import Peer, Training
from knothole.arrays import Floats
from knothole.report.methods import Task
from knothole.trees.ensemble import Ensemble, left_codes
from knothole.trees.read import read

Rows = NDArray[np.intp]
#: From a split, the rows that reach it and their weights to the share of each that goes left.
Rule = Callable[[int, Rows, Floats], Floats]

# Bins of a numeric column between which a surrogate split may cut.
BINS = 32
# Surrogates kept of each split, as many as rpart keeps.
SURROGATES = 5


def goes_left(ensemble: Ensemble, node: int, values: Floats) -> Floats:
    """Whether each value goes left at a split: 1 or 0, NaN at a missing value."""
    missing = np.isnan(values)
    if ensemble.set_start[node] < 0:
        left = values < ensemble.threshold[node]
    else:
        left = left_codes(ensemble, node)[np.where(missing, 0, values).astype(np.int64)]
    return np.where(missing, np.nan, left)


def walk(
    ensemble: Ensemble, tree: int, n_rows: int, rule: Rule
) -> Iterator[tuple[int, Rows, Floats]]:
    """Send rows down a tree by a rule; hands out the leaves, the rows in them and their weights."""
    waiting = [(int(ensemble.roots[tree]), np.arange(n_rows), np.ones(n_rows))]
    while waiting:
        node, rows, weight = waiting.pop()
        child = int(ensemble.left[node])
        if ensemble.feature[node] < 0:
            yield child, rows, weight  # at a leaf, ``left`` is its number
            continue
        share = rule(node, rows, weight)
        for place, part in ((child, share), (child + 1, 1 - share)):
            kept = part > 0
            if kept.any():
                waiting.append((place, rows[kept], weight[kept] * part[kept]))


class TreeWalk(Peer):
    """A peer that walks the model's trees with a rule of its own at missing values."""

    def fit(self, training: Training) -> Self:
        """Fit the model as it is, and learn the rule of every split from the training rows."""
        self.task_ = training.task
        self.ensemble_ = read(training.fitted(training.table))
        matrix = self._matrix(training.table)
        rule = self._learning(matrix)
        for tree in range(self.ensemble_.n_trees):
            for _ in walk(self.ensemble_, tree, len(matrix), rule):
                pass
        return self

    def predict(self, table: pd.DataFrame) -> Floats:
        """Walk all trees and add up what the leaves reached are worth, by the rows' weights."""
        ensemble = self.ensemble_
        matrix = self._matrix(table)
        rule = self._deciding(matrix)
        margin = np.tile(ensemble.base, (len(matrix), 1))
        width = ensemble.value.shape[1]
        for tree in range(ensemble.n_trees):
            served = slice(ensemble.tree_output[tree], ensemble.tree_output[tree] + width)
            for leaf, rows, weight in walk(ensemble, tree, len(matrix), rule):
                worth = ensemble.value[leaf] * ensemble.tree_weight[tree]
                margin[rows, served] += weight[:, None] * worth
        found = ensemble.link(margin)
        if self.task_ is Task.REGRESSION:
            return found[:, 0]
        return np.column_stack([1 - found, found]) if found.shape[1] == 1 else found

    def _matrix(self, table: pd.DataFrame) -> Floats:
        return self.ensemble_.columns.matrix(table, handle_unknown="missing")

    def _known(self, node: int, rows: Rows, matrix: Floats) -> Floats:
        return goes_left(self.ensemble_, node, matrix[rows, self.ensemble_.feature[node]])

    @abstractmethod
    def _learning(self, matrix: Floats) -> Rule:
        """Make a rule for training rows that learns each split before it decides."""

    @abstractmethod
    def _deciding(self, matrix: Floats) -> Rule:
        """Make the rule for rows with missing values, from what was learned."""


class FractionalWeights(TreeWalk):
    """C4.5: at a missing value a row goes down both sides, weighted by how many training rows did.

    Training rows with a missing value are divided the same way. On a boosted model the margins are
    averaged, as in shap's ``tree_path_dependent``.
    """

    name = "C4.5 weights"

    def _learning(self, matrix: Floats) -> Rule:
        # A split that no training row with a known value reached divides evenly.
        self.left_share_ = np.full(len(self.ensemble_.feature), 0.5)

        def rule(node: int, rows: Rows, weight: Floats) -> Floats:
            known = self._known(node, rows, matrix)
            seen = ~np.isnan(known)
            total = weight[seen].sum()
            if total > 0:
                self.left_share_[node] = weight[seen] @ known[seen] / total
            return np.where(seen, known, self.left_share_[node])

        return rule

    def _deciding(self, matrix: Floats) -> Rule:
        def rule(node: int, rows: Rows, weight: Floats) -> Floats:
            known = self._known(node, rows, matrix)
            return np.where(np.isnan(known), self.left_share_[node], known)

        return rule


@dataclass(frozen=True, eq=False)
class Surrogates:
    """What decides at a split in place of its column: other columns in turn, then the majority.

    ``left[k, b]`` says whether bin ``b`` of column ``columns[k]`` goes left.
    """

    columns: NDArray[np.intp]
    left: NDArray[np.bool_]
    majority_left: bool

    def decide(self, bins: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Whether rows, given by their bins, go left."""
        out = np.full(len(bins), self.majority_left)
        undecided = np.ones(len(bins), dtype=np.bool_)
        for column, left in zip(self.columns, self.left, strict=True):
            here = undecided & (bins[:, column] >= 0)
            out[here] = left[bins[here, column]]
            undecided &= ~here
        return out


class SurrogateSplits(TreeWalk):
    """CART's surrogates: at a missing value the split that agrees best with it decides.

    For every split, each other column's best split into two (numeric columns at one of 31
    quantiles, categories by their majority) is ranked by the training rows on which it agrees; the
    five best that beat going with the majority are kept (Breiman et al. 1984, section 5.3).
    """

    name = "surrogate splits"

    def _learning(self, matrix: Floats) -> Rule:
        categorical = self.ensemble_.n_levels > 0
        levels = np.linspace(0, 1, BINS + 1)[1:-1]
        self.cuts_: list[Floats | None] = [
            None if is_set else _quantiles(values, levels)
            for values, is_set in zip(matrix.T, categorical, strict=True)
        ]
        self.surrogates_: dict[int, Surrogates] = {}
        bins = self._bins(matrix)

        def rule(node: int, rows: Rows, weight: Floats) -> Floats:
            known = self._known(node, rows, matrix)
            seen = ~np.isnan(known)
            own = int(self.ensemble_.feature[node])
            self.surrogates_[node] = find_surrogates(
                bins[rows[seen]], known[seen] == 1, own, categorical, self.width_
            )
            return np.where(seen, known, self.surrogates_[node].decide(bins[rows]))

        return rule

    def _deciding(self, matrix: Floats) -> Rule:
        bins = self._bins(matrix)

        def rule(node: int, rows: Rows, weight: Floats) -> Floats:
            known = self._known(node, rows, matrix)
            missing = np.isnan(known)
            if missing.any():
                # Where no training row came, either side is as good; trees do not go on there.
                found = self.surrogates_.get(node, _NOBODY)
                known[missing] = found.decide(bins[rows[missing]])
            return known

        return rule

    def _bins(self, matrix: Floats) -> NDArray[np.intp]:
        """Bins of all columns, -1 at missing values."""
        self.width_ = int(max(BINS, self.ensemble_.n_levels.max()))
        bins = np.empty(matrix.shape, dtype=np.intp)
        for column, cuts in enumerate(self.cuts_):
            values = matrix[:, column]
            found = values if cuts is None else np.searchsorted(cuts, values, side="right")
            bins[:, column] = np.where(np.isnan(values), -1, found)
        return bins


def _quantiles(values: Floats, levels: Floats) -> Floats:
    observed = values[~np.isnan(values)]
    return np.unique(np.quantile(observed, levels)) if len(observed) else observed


_NOBODY = Surrogates(np.empty(0, np.intp), np.empty((0, 1), np.bool_), majority_left=True)


def find_surrogates(
    bins: NDArray[np.intp],
    left: NDArray[np.bool_],
    own: int,
    categorical: NDArray[np.bool_],
    width: int,
) -> Surrogates:
    """The best surrogates of one split.

    Parameters
    ----------
    bins : int (rows, columns)
        Of the rows whose side is known; -1 at missing values.
    left : bool (rows,)
        Their side.
    own : int
        The split's own column.
    categorical : bool (columns,)
        Columns whose bins have no order.
    width : int
        How many bins there are at most.
    """
    n_columns = bins.shape[1]
    # One slot more as missing, so that all columns are counted at once.
    flat = (bins + 1 + np.arange(n_columns) * (width + 1)).ravel()
    size = n_columns * (width + 1)
    sides = np.repeat(left, n_columns)
    total = np.bincount(flat, minlength=size).reshape(n_columns, -1)[:, 1:]
    to_left = np.bincount(flat[sides], minlength=size).reshape(n_columns, -1)[:, 1:]
    to_right = total - to_left
    agreement = np.maximum(to_left, to_right).sum(axis=1)
    goes = to_left > to_right
    ordered = np.flatnonzero(~categorical)
    agreement[ordered], goes[ordered] = _best_cuts(to_left[ordered], to_right[ordered])
    gain = agreement - np.maximum(to_left.sum(axis=1), to_right.sum(axis=1))
    useful = (gain > 0) & (np.arange(n_columns) != own)
    ranked = np.argsort(-agreement, kind="stable")
    kept = ranked[useful[ranked]][:SURROGATES]
    return Surrogates(kept, goes[kept], bool(2 * left.sum() >= len(left)))


def _best_cuts(
    to_left: NDArray[np.intp], to_right: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Of each column, the rows the best cut agrees on, and which bins it sends left."""
    balance = np.cumsum(to_left - to_right, axis=1)
    # Low bins left: those of them that went left, and the others' that went right.
    low_left = to_right.sum(axis=1, keepdims=True) + balance
    low_right = to_left.sum(axis=1, keepdims=True) - balance
    best = np.maximum(low_left.max(axis=1), low_right.max(axis=1))
    is_low = low_left.max(axis=1) >= low_right.max(axis=1)
    cut = np.where(is_low, low_left.argmax(axis=1), low_right.argmax(axis=1))
    low = np.arange(to_left.shape[1]) <= cut[:, None]
    return best, low == is_low[:, None]
