"""Players: what is told or not told as one, when a prediction is taken apart.

A *player* is a variable, together with the density's indicator of whether it is missing where there
is one; or, on request, a group of columns. A *coalition* is a set of players, and its value

    v(S) = E[f(X) | what the players of S say]

is the expected output where all others are holes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from knothole.arrays import Floats, Mask
from knothole.columns.columns import NOT_RECORDED, Columns, Kind, Variable, variable_of
from knothole.columns.evidence import Evidence
from knothole.errors import InvalidInput
from knothole.expectation.expectation import Expectation
from knothole.expectation.replicates import replicates

#: How groups of columns are given: by name, with the names (or positions) of their columns.
Groups = Mapping[str, Sequence[str | int]]

# Rows of evidence that are held at once.
_ROWS = 1 << 14


@dataclass(frozen=True, eq=False)
class Players:
    """The players of a model's rows.

    Attributes
    ----------
    names : tuple of str
    variables : tuple of tuple of int
        The columns' variables that each has.
    members : bool (players, variables of the density)
        All that is told with a player.
    """

    names: tuple[str, ...]
    variables: tuple[tuple[int, ...], ...]
    members: Mask

    @classmethod
    def of(cls, expectation: Expectation, groups: Groups | None = None) -> Players:
        """Every variable is a player by itself, unless a group has it."""
        columns, density = expectation.columns, expectation.density
        grouped = {name: _variables(columns, name, own) for name, own in (groups or {}).items()}
        owner = _owners(columns.variables, grouped)
        players = dict.fromkeys(owner)
        variables = tuple(
            tuple(v for v, name in enumerate(owner) if name == player) for player in players
        )
        members = np.zeros((len(players), len(density.variables_)), dtype=np.bool_)
        indicated = np.asarray(getattr(density, "indicated_", ()), dtype=np.intp)
        for player, own in enumerate(variables):
            members[player, list(own)] = True
            indicators = np.flatnonzero(np.isin(indicated, own))
            members[player, len(columns.variables) + indicators] = True
        return cls(tuple(players), variables, members)

    def known(self, evidence: Evidence) -> Mask:
        """Players that say anything, (rows, players)."""
        told = ~np.isnan(evidence.points)
        for v, rows, _ in evidence.restricted():
            told[rows, v] = True
        return np.stack([told[:, own].any(axis=1) for own in self.members], axis=1)

    def values(
        self,
        expectation: Expectation,
        evidence: Evidence,
        coalitions: Mask,
        *,
        margins: bool,
        words: range,
        threads: int | None = None,
    ) -> Floats:
        """v(S) of coalitions (coalitions, players) of rows: (rows, groups, outputs, coalitions).

        The groups are those of :func:`~knothole.expectation.replicates.replicates`. Rows of one
        coalition stand together: what a density says of a pattern of holes serves all of them.
        """
        n = len(evidence.points)
        step = max(1, _ROWS // max(1, n))
        parts = []
        for start in range(0, len(coalitions), step):
            some = coalitions[start : start + step]
            hide = (~some[:, :, None] & self.members).any(axis=1)
            told = evidence[np.tile(np.arange(n), len(some))].hidden(np.repeat(hide, n, axis=0))
            parts.append(replicates(expectation, told, margins, words, threads))
        found = np.concatenate(parts)
        shaped = found.reshape(len(coalitions), n, *found.shape[1:])
        return np.ascontiguousarray(np.moveaxis(shaped, 0, 3))

    def codes(self, evidence: Evidence) -> Floats:
        """Points of the players that are variables, (rows, players); NaN for groups."""
        single = [own[0] if len(own) == 1 else -1 for own in self.variables]
        points = np.where(np.isinf(evidence.points), np.nan, evidence.points)
        return np.where(np.array(single) < 0, np.nan, points[:, single])

    def described(self, evidence: Evidence, columns: Columns) -> list[list[Any]]:
        """What each player says in each row, for readers; NaN where it says nothing."""
        sets: dict[tuple[int, int], str] = {}
        for v, rows, allowed in evidence.restricted():
            levels = columns.variables[v].levels
            for row, own in zip(rows.tolist(), allowed, strict=True):
                sets[row, v] = " or ".join(str(levels[c]) for c in np.flatnonzero(own))
        return [
            [
                _joined([sets.get((row, v), _shown(columns.variables[v], x[v])) for v in own])
                for own in self.variables
            ]
            for row, x in enumerate(evidence.points)
        ]


def _variables(columns: Columns, name: str, own: Any) -> list[int]:
    """The variables of a group, which is given by columns or blocks."""
    if isinstance(own, str) or not isinstance(own, Sequence) or not own:
        raise InvalidInput(
            f"groups must give the columns of each group by name or position, as in "
            f"{{{name!r}: [...]}}; got {own!r}."
        )
    known, what = (columns.names, columns.variables), f"groups[{name!r}]"
    return sorted({variable_of(column, *known, what) for column in own})


def _owners(variables: Sequence[Variable], grouped: Mapping[str, list[int]]) -> list[str]:
    """The player that has each variable."""
    owner = [variable.name for variable in variables]
    taken: dict[int, str] = {}
    for name, own in grouped.items():
        for v in own:
            if v in taken:
                raise InvalidInput(
                    f"groups: {variables[v].name!r} must be in one group; it is in {taken[v]!r} "
                    f"and {name!r}."
                )
            taken[v] = name
            owner[v] = name
    for v, variable in enumerate(variables):
        if v not in taken and variable.name in grouped:
            raise InvalidInput(
                f"groups: {variable.name!r} is a column that is not in the group of that name; "
                f"give the group another name."
            )
    return owner


def _shown(variable: Variable, point: float) -> Any:
    if np.isnan(point):
        return np.nan
    if variable.kind is Kind.CATEGORICAL:
        level = variable.levels[int(point)]
        return "not recorded" if level is None else level
    if point == NOT_RECORDED:
        return "not recorded"
    return int(point) if variable.kind is Kind.INTEGER and point.is_integer() else float(point)


def _joined(parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    known = [part for part in parts if part == part]
    return (
        ", ".join(f"{part:.4g}" if isinstance(part, float) else str(part) for part in known)
        or np.nan
    )
