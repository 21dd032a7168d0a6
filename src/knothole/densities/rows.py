"""Rows to learn from and to judge by, as the learners of all densities take them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.columns.columns import Evidence, Variable
from knothole.densities.held_out import RATE
from knothole.densities.univariate.base import Univariate
from knothole.densities.univariate.families import start_distribution
from knothole.densities.univariate.packed import Packed, pack

# Rows for the first steps of training, and to see what columns are like.
FIRST_ROWS = 8192
# Where rows have fewer missing values than this, those held out are given some at random.
HARDLY_ANY_HOLES = 0.1
# Most entries that the tables of all levels may have; training keeps some dozens of such tables.
MOST_ENTRIES = 2**21


@dataclass(frozen=True, eq=False)
class WeightedRows:
    """Some rows of evidence, which ``order`` names: in random order, each with its weight."""

    variables: Sequence[Variable]
    evidence: Evidence
    weight: Floats
    order: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, rows: slice | NDArray[Any]) -> WeightedRows:
        return replace(self, order=self.order[rows])

    def affordable(self, sizes: Sequence[int]) -> list[int]:
        """Sizes, ascending, whose tables of levels fit into memory; the first does always."""
        levels = sum(len(variable.levels) for variable in self.variables)
        return [size for size in sizes if size == sizes[0] or size * levels <= MOST_ENTRIES]

    def own_weight(self) -> Floats:
        """The weight of each of the rows."""
        return self.weight[self.order]

    def points(self) -> Floats:
        """What is known of each of the rows."""
        return self.evidence.points[self.order]

    def marginals(self, families: Mapping[str, str]) -> tuple[Univariate, ...]:
        """A distribution with one state for each variable, learned from these rows alone."""
        weight = np.zeros(len(self.weight))
        weight[self.order] = self.own_weight()
        points = self.evidence.points
        return tuple(
            start_distribution(variable, points[:, v], weight, 1, families.get(variable.name))
            for v, variable in enumerate(self.variables)
        )

    def with_holes(self, seed: int) -> WeightedRows:
        """Rows to judge by: with holes as they are, or, if there are hardly any, some at random.

        What a density is for is rows with holes; how it does on complete ones says less.
        """
        held = self.evidence[self.order]
        own = [v for v, variable in enumerate(self.variables) if variable.columns]
        if held.allowed is not None or np.isnan(held.points[:, own]).mean() >= HARDLY_ANY_HOLES:
            return self
        points = held.points.copy()
        for v in own:
            # By name, so that the order of columns does not matter.
            name = zlib.crc32(self.variables[v].name.encode())
            rng = np.random.default_rng([seed, name])
            points[rng.random(len(points)) < RATE, v] = np.nan
        masked = replace(held, points=points)
        return WeightedRows(self.variables, masked, self.own_weight(), np.arange(len(self)))


@dataclass(frozen=True, eq=False)
class EncodedRows:
    """Rows in the terms of some distributions, and their weights."""

    packed: Packed
    weight: Floats

    @classmethod
    def of(cls, rows: WeightedRows, distributions: Sequence[Univariate]) -> EncodedRows:
        """Encode rows."""
        return cls(pack(distributions, rows.evidence, rows.order), rows.own_weight())

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, rows: slice) -> EncodedRows:
        return EncodedRows(self.packed[rows], self.weight[rows])
