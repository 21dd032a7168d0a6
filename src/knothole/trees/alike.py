"""Levels that no split tells apart, taken as one: of a million, trees name a few hundred."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from knothole.arrays import Floats, Ints
from knothole.compiled.bits import set_words, unpack, unpack_at
from knothole.trees.ensemble import Ensemble
from knothole.trees.layout import pack_sides

# Below so many levels nothing is gained.
MANY = 4096


@dataclass(frozen=True, eq=False)
class Merged:
    """The same trees over fewer levels, which are numbers of classes."""

    ensemble: Ensemble
    classes: Mapping[int, Ints]  # by column, of each level and, last, of a category never seen

    @classmethod
    def of(cls, ensemble: Ensemble, but: Sequence[int] = (), least: int | None = None) -> Merged:
        """Take as one, in columns with more than ``least`` levels, those that go as unseen ones do.

        Columns that ``but`` names stay as they are.

        Examples
        --------
        >>> from sklearn.ensemble import HistGradientBoostingRegressor
        >>> from knothole.trees.read import read
        >>> X = np.repeat(np.arange(4.0), 30)[:, None]
        >>> model = HistGradientBoostingRegressor(max_iter=1, categorical_features=[0])
        >>> merged = Merged.of(read(model.fit(X, X[:, 0] == 2)), least=2)
        >>> merged.classes[0].tolist(), merged.ensemble.n_levels.tolist()  # 2, and the rest
        ([1, 1, 0, 1, 2], [2])
        """
        least = MANY if least is None else least
        many = {v: int(n) for v, n in enumerate(ensemble.n_levels) if n > least and v not in but}
        named = {v: _told_apart(ensemble, v, n) for v, n in many.items()}
        classes = {v: np.full(n + 1, len(named[v])) for v, n in many.items()}
        for v, own in named.items():
            classes[v][own] = np.arange(len(own))
            classes[v][-1] += len(own) < many[v]
        return cls(_over_classes(ensemble, named) if named else ensemble, classes)

    def points(self, points: Floats, axis: int = 1) -> Floats:
        """Points, or draws, whose ``axis`` is that of variables, with classes for levels."""
        points = points.copy() if self.classes else points
        for v, classes in self.classes.items():
            own = np.moveaxis(points, axis, 0)[v]
            known = (own >= 0) & (own < len(classes))  # what is not asked for may be anything
            own[known] = classes[own[known].astype(np.int64)]
        return points


def _told_apart(ensemble: Ensemble, v: int, n: int) -> Ints:
    """Levels of a column that go elsewhere than an unseen category at some split."""
    differs = np.zeros(set_words(n), dtype=np.uint64)
    for start in ensemble.set_start[ensemble.feature == v].tolist():
        words = ensemble.sets[start : start + len(differs)]
        differs |= ~words if words[-1] >> np.uint64(n % 64) & np.uint64(1) else words
    return np.flatnonzero(unpack(differs[None], n)[0])


def _over_classes(ensemble: Ensemble, named: Mapping[int, Ints]) -> Ensemble:
    """The trees with sets of classes at splits on these columns."""
    columns = list(ensemble.columns)
    levels = ensemble.n_levels.astype(np.int64)
    for v, own in named.items():
        levels[v] = len(own) + (len(own) < ensemble.n_levels[v])
        columns[v] = replace(columns[v], levels=tuple(range(levels[v])))
    splits = np.flatnonzero(ensemble.set_start >= 0)
    lefts = []
    for node in splits.tolist():
        v, start = int(ensemble.feature[node]), ensemble.set_start[node : node + 1]
        left = unpack_at(ensemble.sets, start, int(ensemble.n_levels[v]) + 1)[0]
        if v in named:
            rest = np.full(levels[v] + 1 - len(named[v]), left[-1])
            left = np.concatenate([left[named[v]], rest])
        lefts.append(left)
    starts, sets = pack_sides(lefts)
    set_start = ensemble.set_start.copy()
    set_start[splits] = starts
    described = replace(ensemble.columns, columns=tuple(columns))
    return replace(ensemble, columns=described, set_start=set_start, sets=sets)
