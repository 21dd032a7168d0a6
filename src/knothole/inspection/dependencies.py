"""Functional dependencies: variables that are determined by one observed variable.

In many tables one column determines another: schooling as a word and as a number, the measures of
a few building shapes. A density only approximates that. A row whose missing values are all
determined by observed ones is complete, and its corrected answer is the model's own. (If others
remain missing, the density is asked as usual: given the same information twice, a mixture would be
too sure of its components.)

A variable with a different value in every row determines everything, and one that hardly ever
changes is determined by everything; neither is meaningful. What counts is how often a dependency
could have failed and did not: the number of rows that repeat a value, times the probability that
two rows differ in the variable it determines. "Not recorded" neither determines anything nor is
determined: at deployment, values may be missing for other reasons than in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from knothole.arrays import Floats, Ints, Mask
from knothole.cached import cached_property
from knothole.checks import check_array, require
from knothole.columns.columns import NOT_RECORDED, Evidence, Variable

#: A dependency counts if chance alone would have contradicted it at least this often: with 95 %
#: confidence it then fails in at most 3 % of such cases.
FAILURES = 100.0
# In how many rows a value and what it determines must have been seen.
OFTEN = 2
# The most rows that are examined; the first few settle most pairs.
ROWS, FIRST = 20_000, 256


@dataclass(frozen=True, eq=False)
class FunctionalDependencies:
    """Which values of variables determine values of other variables.

    ``table`` (values, 4): a variable, a variable that it determines, a value of the first, and the
    value of the second that it implies.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> shape = rng.integers(0, 2, 300)
    >>> points = np.column_stack([shape, 3.5 + 3.5 * shape, rng.normal(size=300)])
    >>> variables = [Variable(name) for name in "abc"]
    >>> dependencies = FunctionalDependencies.learned(variables, points, np.arange(1, 3))
    >>> dependencies.table.tolist()
    [[0.0, 1.0, 0.0, 3.5], [0.0, 1.0, 1.0, 7.0]]
    >>> rows = Evidence(np.array([[1.0, np.nan, 2.0], [1.0, np.nan, np.nan]]))
    >>> dependencies.complete(rows, np.arange(1, 3)).points.tolist()
    [[1.0, 7.0, 2.0], [1.0, nan, nan]]
    """

    table: Floats

    @classmethod
    def none(cls) -> Self:
        """No variable determines another."""
        return cls(np.empty((0, 4)))

    @classmethod
    def learned(cls, variables: Sequence[Variable], points: Floats, used: Ints) -> Self:
        """The dependencies between ``used`` variables that no training row contradicts."""
        drawn = np.sort(np.random.default_rng(0).permutation(len(points))[:ROWS])
        points = points[drawn, : len(variables)]
        codes, recorded = np.full(points.shape, -1), ~np.isnan(points)
        for v, variable in enumerate(variables):
            known = recorded[:, v].copy()
            codes[known, v] = np.unique(points[known, v], return_inverse=True)[1]
            unrecorded = len(variable.levels) - 1 if variable.levels else NOT_RECORDED
            recorded[:, v] &= ~(variable.nullable & (points[:, v] == unrecorded))
        tables = [np.empty((0, 4))]
        for source in range(len(variables)):
            rows, targets = np.flatnonzero(recorded[:, source]), used[used != source]
            if len(rows) - codes[:, source].max() <= FAILURES:
                continue
            for some in (rows[:FIRST], rows):
                targets = targets[_agree(codes[some, source], codes[np.ix_(some, targets)])]
            for target in targets.tolist():
                both = rows[codes[rows, target] >= 0]
                _, first, count = np.unique(codes[both, source], True, False, True)
                share = np.bincount(codes[both, target]) / max(1, len(both))
                if (len(both) - len(first)) * (1 - (share**2).sum()) >= FAILURES:
                    often = both[first[count >= OFTEN]]
                    values = points[np.ix_(often[recorded[often, target]], [source, target])]
                    tables.append(np.insert(values, [0, 0], [source, target], axis=1))
        return cls(np.concatenate(tables))

    @cached_property
    def targets(self) -> list[int]:
        """Variables that are determined by other variables."""
        return sorted({int(target) for target in self.table[:, 1]})

    def complete(self, evidence: Evidence, used: Ints) -> Evidence:
        """The same rows, with points filled in if all missing ``used`` values are determined.

        Rows in which dependencies disagree, or with a partly observed one-hot group, stay as they
        are.
        """
        given = evidence.points
        if not np.isnan(given[:, self.targets]).any():
            return evidence
        low, high = np.full((2, *given.shape), np.nan)
        start = np.unique(self.table[:, :2], axis=0, return_index=True)[1]
        for pair in np.split(self.table, start[1:]):
            source, target = pair[0, :2].astype(int)
            rows = np.flatnonzero(np.isnan(given[:, target]))
            place = np.searchsorted(pair[:, 2], given[rows, source]).clip(max=len(pair) - 1)
            image = np.where(pair[place, 2] == given[rows, source], pair[place, 3], np.nan)
            low[rows, target] = np.fmin(low[rows, target], image)
            high[rows, target] = np.fmax(high[rows, target], image)
        points = np.where(low == high, low, given)
        left = np.isnan(points[:, used]).any(axis=1) | evidence.partly_observed()
        return replace(evidence, points=np.where(left[:, None], given, points))

    def check(self, n_levels: Sequence[int]) -> None:
        """Refuse a table for other variables; they have so many levels (0: numeric)."""
        check_array("determined", self.table, (None, 4))
        pairs, image = self.table[:, :2], self.table[:, 3]
        require(np.isin(pairs, np.arange(len(n_levels))).all(), "determined: no such variable")
        levels = np.array(n_levels)[pairs[:, 1].astype(int)]
        codes = (image >= 0) & (image < levels) & (image == np.floor(image))
        require((codes | (levels == 0)).all(), "determined: no such level")
        order = np.lexsort(self.table[:, 2::-1].T)
        require((order == np.arange(len(order))).all(), "determined must be in order")


def _agree(source: Ints, targets: Ints) -> Mask:
    """Targets (rows, targets), -1 if unknown, that never differ where the source is equal."""
    order = np.argsort(source, kind="stable")
    start = np.flatnonzero(np.diff(source[order], prepend=-1))
    highest = np.maximum.reduceat(targets[order], start)
    unknown = np.iinfo(targets.dtype).max
    lowest = np.minimum.reduceat(np.where(targets < 0, unknown, targets)[order], start)
    return np.asarray((highest <= lowest).all(axis=0))
