"""Holes that are none: what an observed variable says of another without any doubt.

In many tables one column determines another: schooling as a word and as a number, the measures of
a few building shapes. A density only comes close to that. A row whose holes are all determined by
what was observed is complete, and its corrected answer is the model's own. (Where other holes
remain, p is asked as before: given the same twice, a mixture is too sure of its components.)

A variable that has another value in every row determines everything, and one that hardly ever
changes is determined by everything; neither says anything. What counts is how often a rule could
have failed and did not: rows that repeat a value, times the chance that two rows differ in what it
determines. "Not recorded" determines nothing and is not determined: at deployment, values may be
missing for another reason than in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from knothole.arrays import Floats, Ints, Mask
from knothole.checks import check_array, require
from knothole.columns.columns import NOT_RECORDED, Evidence, Variable

#: How often, at least, a rule that never failed would have failed by chance: with 95 % confidence
#: it fails in no more than 3 % of those cases.
FAILURES = 100.0
#: The part of rows held out that may contradict rules.
CONTRADICTED = 0.03
# In how many rows a value must have been seen with what it determines.
OFTEN = 2
# Of more rows, so many are looked at; the first few settle most pairs.
ROWS, FIRST = 20_000, 256


@dataclass(frozen=True, eq=False)
class Determined:
    """Rules by which holes become points.

    ``table`` (values, 4) has a variable, one that it determines, a value of the first, and what the
    second is then; in this order.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> shape = rng.integers(0, 2, 300)
    >>> points = np.column_stack([shape, 3.5 + 3.5 * shape, rng.normal(size=300)])
    >>> determined = Determined.learned([Variable(name) for name in "abc"], points, np.arange(1, 3))
    >>> determined.table.tolist()
    [[0.0, 1.0, 0.0, 3.5], [0.0, 1.0, 1.0, 7.0]]
    >>> rows = Evidence(np.array([[1.0, np.nan, 2.0], [1.0, np.nan, np.nan]]))
    >>> determined.complete(rows, np.arange(1, 3)).points.tolist()
    [[1.0, 7.0, 2.0], [1.0, nan, nan]]
    """

    table: Floats

    @classmethod
    def learned(cls, variables: Sequence[Variable], points: Floats, used: Ints) -> Self:
        """What of variables that are ``used`` no training row, (rows, variables), contradicts."""
        some = np.sort(np.random.default_rng(0).permutation(len(points))[:ROWS])
        points = points[some, : len(variables)]
        codes, found = np.full(points.shape, -1), [np.empty((0, 4))]
        recorded = np.zeros(points.shape, dtype=np.bool_)
        for v, variable in enumerate(variables):
            known = ~np.isnan(points[:, v])
            codes[known, v] = np.unique(points[known, v], return_inverse=True)[1]
            unrecorded = len(variable.levels) - 1 if variable.levels else NOT_RECORDED
            recorded[:, v] = known & ~(variable.nullable & (points[:, v] == unrecorded))
        for source in range(len(variables)):
            rows = np.flatnonzero(recorded[:, source])
            targets = used[used != source]
            if len(rows) - codes[:, source].max() <= FAILURES:
                continue
            for some in (rows[:FIRST], rows):
                targets = targets[_agree(codes[some, source], codes[np.ix_(some, targets)])]
            for target in targets.tolist():
                own = rows[codes[rows, target] >= 0]
                _, first, count = np.unique(codes[own, source], True, False, True)
                share = np.bincount(codes[own, target]) / max(1, len(own))
                if (len(own) - len(first)) * (1 - (share**2).sum()) >= FAILURES:
                    own = own[first[count >= OFTEN]]
                    values = points[np.ix_(own[recorded[own, target]], [source, target])]
                    pair = np.tile([source, target], (len(values), 1))
                    found.append(np.hstack([pair, values]))
        return cls(np.concatenate(found))

    @cached_property
    def targets(self) -> list[int]:
        """Variables that are determined by others."""
        return sorted({int(target) for target in self.table[:, 1]})

    def complete(self, evidence: Evidence, used: Ints) -> Evidence:
        """The same rows, with points where all holes of variables that are ``used`` are determined.

        Not where rules disagree, nor where a block is in part observed.
        """
        given = evidence.points
        if not np.isnan(given[:, self.targets]).any():
            return evidence
        low, high = np.full((2, *given.shape), np.nan)
        start = np.unique(self.table[:, :2], axis=0, return_index=True)[1]
        for rule in np.split(self.table, start[1:]):
            source, target = rule[0, :2].astype(int)
            rows = np.flatnonzero(np.isnan(given[:, target]))
            place = np.searchsorted(rule[:, 2], given[rows, source]).clip(max=len(rule) - 1)
            image = np.where(rule[place, 2] == given[rows, source], rule[place, 3], np.nan)
            low[rows, target] = np.fmin(low[rows, target], image)
            high[rows, target] = np.fmax(high[rows, target], image)
        points = np.where(low == high, low, given)
        left = np.isnan(points[:, used]).any(axis=1) | evidence.partly_observed()
        return replace(evidence, points=np.where(left[:, None], given, points))

    def check(self, n_levels: Sequence[int]) -> None:
        """Refuse what is not about variables with so many levels, 0 for numbers."""
        check_array("determined", self.table, (None, 4))
        pairs, image = self.table[:, :2], self.table[:, 3]
        require(np.isin(pairs, np.arange(len(n_levels))).all(), "determined: no such variable")
        levels = np.array(n_levels)[pairs[:, 1].astype(int)]
        codes = (image >= 0) & (image < levels) & (image == np.floor(image))
        require((codes | (levels == 0)).all(), "determined: no such level")
        order = np.lexsort(self.table[:, 2::-1].T)
        require((order == np.arange(len(order))).all(), "determined must be in order")


#: Where no variable determines another.
NOTHING = Determined(np.empty((0, 4)))


def _agree(source: Ints, targets: Ints) -> Mask:
    """Which targets (rows, targets), -1 if unknown, never differ where the source is the same."""
    order = np.argsort(source, kind="stable")
    start = np.flatnonzero(np.diff(source[order], prepend=-1))
    highest = np.maximum.reduceat(targets[order], start)
    unknown = np.iinfo(targets.dtype).max
    lowest = np.minimum.reduceat(np.where(targets < 0, unknown, targets)[order], start)
    return np.asarray((highest <= lowest).all(axis=0))
