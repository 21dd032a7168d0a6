"""All variables of a table, and all distributions, as a few plain arrays for the kernels.

The codes of all variables index one stacked table (codes, states). If a categorical variable is
only known to be in a set of levels, the set has a code of its own, whose entry in the table is the
log mass of the set; :meth:`Packed.statistics` divides its counts among the levels. A missing value
with odds of "not recorded" (``Evidence.odds``) has a code too. So the kernels need to know neither
families nor sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.columns.columns import Evidence
from knothole.densities.univariate.base import Statistics, Univariate, log_of
from knothole.densities.univariate.continuous import Gaussian, standardised
from knothole.threads import Memory, over_chunks

# Rows that are encoded at once, so that temporary arrays stay in the cache.
BLOCK = 4096
# Tables with at most so many codes are cached for the next call.
FEW = 4096
_memory = Memory()


class Values(NamedTuple):
    """Some rows of :class:`Packed` in the form for kernels."""

    code: NDArray[Any]
    z: Floats
    base: Floats
    slot: NDArray[np.int64]


class Stacked(NamedTuple):
    """Numbers for all distributions: a table (codes, states), and two per slot and state.

    Parameters are log probabilities and the factors of z and z**2; statistics are sums of shares,
    and of shares times z and z**2.
    """

    table: Floats
    linear: Floats
    square: Floats


@dataclass(frozen=True, eq=False)
class Packed:
    """Rows of all variables in the form of :mod:`knothole.densities.univariate.base`.

    Attributes
    ----------
    code : int16 or int32 (rows, variables)
        Rows of the stacked table; -1 for a missing value. The smallest type that the table allows.
    z : float64 (rows, slots)
        Standardised values of variables that have them.
    base : float64 (rows,)
        Log base measures, summed over the variables.
    slot : int64 (variables,)
        Column of ``z`` for each variable; -1 for one without.
    offset : int64 (variables + 1,)
        First row of each variable in the stacked table.
    sets : mapping from a variable to bool (sets, levels)
        Sets of levels that the codes after those of the variable's distribution stand for.
    odds : mapping from a variable to float64
        Odds of missing values that the codes after those stand for.
    """

    code: NDArray[Any]
    z: Floats
    base: Floats
    slot: NDArray[np.int64]
    offset: NDArray[np.int64]
    sets: dict[int, NDArray[np.bool_]]
    odds: dict[int, Floats]

    def __len__(self) -> int:
        return len(self.code)

    def __getitem__(self, rows: slice | NDArray[np.intp]) -> Packed:
        """Some of the rows."""
        return replace(self, code=self.code[rows], z=self.z[rows], base=self.base[rows])

    def values(self, start: int = 0, stop: int | None = None) -> Values:
        """Some of the rows, for kernels."""
        return Values(self.code[start:stop], self.z[start:stop], self.base[start:stop], self.slot)

    def nothing(self, n_states: int) -> Stacked:
        """Statistics of an empty set of rows."""
        n_slots = self.z.shape[1]
        shapes = (int(self.offset[-1]), n_states), (n_slots, n_states), (n_slots, n_states)
        return Stacked(*(np.zeros(shape) for shape in shapes))

    def parameters(self, distributions: Sequence[Univariate]) -> Stacked:
        """The parameters of all distributions, stacked."""
        if self.sets or self.odds or self.offset[-1] > FEW:
            return _stack(distributions, self.sets, self.odds)
        return _parameters(tuple(distributions))

    def statistics(self, distributions: Sequence[Univariate], sums: Stacked) -> list[Statistics]:
        """Each variable's statistics, from stacked sums."""
        count, first, second = sums
        nothing = np.zeros(count.shape[1])
        out = []
        for v, distribution in enumerate(distributions):
            own = count[self.offset[v] : self.offset[v] + distribution.n_codes]
            if v in self.sets:
                of_sets = count[self.offset[v] + distribution.n_codes : self.offset[v + 1]]
                own = own + expected_levels(distribution, self.sets[v], of_sets)
            slot = self.slot[v]
            moments = (first[slot], second[slot]) if slot >= 0 else (nothing, nothing)
            out.append(Statistics(own, *moments))
        return out


def expected_levels(distribution: Univariate, sets: NDArray[np.bool_], count: Floats) -> Floats:
    """Counts of sets, divided among their levels by the distribution's probabilities."""
    mass = distribution.set_mass(sets)
    share = np.divide(count, mass, out=np.zeros_like(count), where=mass > 0)
    return np.asarray(np.exp(distribution.form.table) * (sets.T.astype(np.float64) @ share))


def pack(
    distributions: Sequence[Univariate],
    evidence: Evidence,
    order: NDArray[np.intp] | None = None,
    *,
    passing: bool = False,
) -> Packed:
    """Encode rows: all of them, or those in ``order``.

    With ``passing``, the result is valid only until this thread packs other rows.
    """
    n_rows = len(evidence.points) if order is None else len(order)
    if order is not None and (evidence.allowed is not None or evidence.odds is not None):
        evidence, order = evidence[order], None
    sets: dict[int, NDArray[np.bool_]] = {}
    places: dict[int, list[tuple[NDArray[np.intp], NDArray[np.intp]]]] = {}
    for v, rows, allowed in evidence.restricted():
        sets[v], number = np.unique(allowed, axis=0, return_inverse=True)
        places[v] = [(rows, number.reshape(-1))]
    odds: dict[int, Floats] = {}
    for v, rows, values in evidence.missing_with_odds():
        odds[v], number = np.unique(values, return_inverse=True)
        places.setdefault(v, []).append((rows, len(sets.get(v, ())) + number))
    few = sum(one.n_codes for one in distributions) <= FEW
    order_of = (_order if few else _order.__wrapped__)(tuple(distributions))
    n_codes = order_of.n_codes + [
        len(sets.get(v, ())) + len(odds.get(v, ())) for v in range(len(distributions))
    ]
    offset = np.append(0, np.cumsum(n_codes))
    slot = order_of.slot
    small = offset[-1] <= np.iinfo(np.int16).max
    room = _memory if passing and n_rows <= BLOCK else Memory()
    code = room.array("code", (n_rows, len(distributions)), np.int16 if small else np.int32)
    z, base = room.array("z", (n_rows, order_of.n_slots)), room.array("base", (n_rows,))
    base[:] = 0.0
    normal, alike = order_of.normal, not order_of.others
    first = offset[normal].astype(code.dtype)

    def work(start: int, stop: int) -> None:
        block: Any = slice(start, stop) if order is None else order[start:stop]
        points = evidence.points[block]
        if len(normal):
            # In place if all variables are Gaussian: allocating memory is what takes time here.
            own, out = (points, z[start:stop]) if alike else (points[:, normal], None)
            found, possible = standardised(own, *order_of.standard, out)
            if not alike:
                z[start:stop, slot[normal]] = found
            code[start:stop, normal] = np.where(np.isnan(own), code.dtype.type(-1), first)
            if not possible.all():
                base[start:stop] += np.where(possible, 0.0, -np.inf).sum(axis=1)
        for v in order_of.others:
            encoded = distributions[v].encode(np.ascontiguousarray(points[:, v]))
            code[start:stop, v] = np.where(encoded.code < 0, -1, encoded.code + offset[v])
            if slot[v] >= 0:
                z[start:stop, slot[v]] = encoded.z
            if encoded.base is not None:
                base[start:stop] += encoded.base

    over_chunks(work, n_rows, BLOCK)
    for v, further in places.items():
        for rows, number in further:
            code[rows, v] = offset[v] + distributions[v].n_codes + number
    return Packed(code, z, base, slot, offset, sets, odds)


class _Order(NamedTuple):
    """Layout of distributions: Gaussians are encoded together, others one by one."""

    n_codes: NDArray[np.int64]
    slot: NDArray[np.int64]
    n_slots: int
    normal: NDArray[np.intp]
    standard: tuple[Floats, Floats]  # location and scale of the Gaussians
    others: list[int]


# Caches for small tables: distributions never change.
@lru_cache(maxsize=4)
def _order(distributions: tuple[Univariate, ...]) -> _Order:
    n_codes = np.array([one.n_codes for one in distributions], dtype=np.int64)
    with_z = np.array([one.form.linear is not None for one in distributions], dtype=np.bool_)
    is_normal = np.array([type(one) is Gaussian for one in distributions], dtype=np.bool_)
    normal = [distribution for distribution in distributions if type(distribution) is Gaussian]
    return _Order(
        n_codes=n_codes,
        slot=np.where(with_z, np.cumsum(with_z) - 1, -1),
        n_slots=int(with_z.sum()),
        normal=np.flatnonzero(is_normal),
        standard=(np.array([e.location for e in normal]), np.array([e.scale for e in normal])),
        others=np.flatnonzero(~is_normal).tolist(),
    )


@lru_cache(maxsize=4)
def _parameters(distributions: tuple[Univariate, ...]) -> Stacked:
    return _stack(distributions, {}, {})


def _stack(
    distributions: Sequence[Univariate],
    sets: Mapping[int, NDArray[np.bool_]],
    odds: Mapping[int, Floats],
) -> Stacked:
    tables, linear, square = [], [], []
    for v, distribution in enumerate(distributions):
        form = distribution.form
        tables.append(form.table)
        if v in sets:
            tables.append(log_of(distribution.set_mass(sets[v])))
        if v in odds:
            tables.append(distribution.log_missing(odds[v]))
        if form.linear is not None and form.square is not None:
            linear.append(form.linear)
            square.append(form.square)
    table = np.ascontiguousarray(np.concatenate(tables))
    shape = (len(linear), table.shape[1])
    return Stacked(table, np.array(linear).reshape(shape), np.array(square).reshape(shape))
