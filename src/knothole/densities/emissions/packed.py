"""All variables of a table, and all leaves, as the few plain arrays that kernels work on.

The codes of all variables index one stacked table (codes, states). A categorical variable that
is known only to lie in a set of levels has a code of its own for each such set, whose entry of
the table is the log mass of the set; :meth:`Packed.statistics` gives its counts back to the
levels. So kernels need to know neither families nor sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.compiled.policy import over_blocks
from knothole.densities.emissions.base import Floats, Leaf, Statistics
from knothole.densities.emissions.table import log_of
from knothole.tables.columns import Evidence

# Rows that are encoded at once: all temporary arrays stay in the cache.
BLOCK = 4096


@dataclass(frozen=True, eq=False)
class Packed:
    """Rows of all variables in the form of :mod:`knothole.densities.emissions.base`.

    Attributes
    ----------
    code : int16 or int32 (rows, variables)
        Rows of the stacked table; -1 for a hole. As small as the table allows.
    z : float64 (rows, slots)
        Standardised values of the variables that have them.
    base : float64 (rows,)
        Log base measures, summed over the variables.
    slot : int64 (variables,)
        Column of ``z`` for each variable; -1 for one without.
    offset : int64 (variables + 1,)
        First row of each variable in the stacked table.
    sets : mapping from a variable to bool (sets, levels)
        What the further codes of a variable, after its leaf's own, stand for.
    """

    code: NDArray[Any]
    z: Floats
    base: Floats
    slot: NDArray[np.int64]
    offset: NDArray[np.int64]
    sets: dict[int, NDArray[np.bool_]]

    def __len__(self) -> int:
        return len(self.code)

    def __getitem__(self, rows: slice | NDArray[np.intp]) -> Packed:
        """Some of the rows."""
        return replace(self, code=self.code[rows], z=self.z[rows], base=self.base[rows])

    def parameters(self, leaves: Sequence[Leaf]) -> tuple[Floats, Floats, Floats]:
        """The stacked table (codes, states), and ``linear`` and ``square`` (slots, states)."""
        n_states = leaves[0].n_states
        table = np.empty((int(self.offset[-1]), n_states))
        linear = np.zeros((self.z.shape[1], n_states))
        square = np.zeros((self.z.shape[1], n_states))
        for v, leaf in enumerate(leaves):
            natural = leaf.form
            start = self.offset[v]
            table[start : start + leaf.n_codes] = natural.table
            if v in self.sets:
                masses = leaf.set_mass(self.sets[v])
                table[start + leaf.n_codes : self.offset[v + 1]] = log_of(masses)
            if self.slot[v] >= 0:
                linear[self.slot[v]] = natural.linear
                square[self.slot[v]] = natural.square
        return table, linear, square

    def statistics(
        self, leaves: Sequence[Leaf], count: Floats, first: Floats, second: Floats
    ) -> list[Statistics]:
        """Each variable's statistics from the stacked ones, which ``leaves`` gave rise to."""
        nothing = np.zeros(count.shape[1])
        out = []
        for v, leaf in enumerate(leaves):
            own = count[self.offset[v] : self.offset[v] + leaf.n_codes]
            if v in self.sets:
                of_sets = count[self.offset[v] + leaf.n_codes : self.offset[v + 1]]
                own = own + expected_levels(leaf, self.sets[v], of_sets)
            slot = self.slot[v]
            moments = (first[slot], second[slot]) if slot >= 0 else (nothing, nothing)
            out.append(Statistics(own, *moments))
        return out


def expected_levels(leaf: Leaf, sets: NDArray[np.bool_], count: Floats) -> Floats:
    """Counts of sets, given to their levels as the leaf's probabilities have it."""
    mass = leaf.set_mass(sets)
    share = np.divide(count, mass, out=np.zeros_like(count), where=mass > 0)
    return np.asarray(np.exp(leaf.form.table) * (sets.T.astype(np.float64) @ share))


def pack(
    leaves: Sequence[Leaf], evidence: Evidence, order: NDArray[np.intp] | None = None
) -> Packed:
    """Encode rows: all, or those that ``order`` names."""
    n_rows = len(evidence.points) if order is None else len(order)
    if order is not None and evidence.allowed is not None:
        evidence, order = evidence[order], None
    sets, places = {}, {}
    for v, rows, allowed in evidence.restricted():
        sets[v], number = np.unique(allowed, axis=0, return_inverse=True)
        places[v] = (rows, number.reshape(-1))
    n_codes = [leaf.n_codes + len(sets.get(v, ())) for v, leaf in enumerate(leaves)]
    offset = np.cumsum([0, *n_codes], dtype=np.int64)
    with_z = np.array([leaf.form.linear is not None for leaf in leaves], dtype=np.bool_)
    slot = np.where(with_z, np.cumsum(with_z) - 1, -1)
    small = offset[-1] <= np.iinfo(np.int16).max
    code = np.empty((n_rows, len(leaves)), dtype=np.int16 if small else np.int32)
    z = np.empty((n_rows, int(with_z.sum())))
    base = np.zeros(n_rows)

    def work(start: int, stop: int) -> None:
        block: Any = slice(start, stop) if order is None else order[start:stop]
        points = np.ascontiguousarray(evidence.points[block].T)
        for v, leaf in enumerate(leaves):
            encoded = leaf.encode(points[v])
            code[start:stop, v] = np.where(encoded.code < 0, -1, encoded.code + offset[v])
            if slot[v] >= 0:
                z[start:stop, slot[v]] = encoded.z
            if encoded.base is not None:
                base[start:stop] += encoded.base

    over_blocks(work, n_rows, BLOCK)
    for v, (rows, number) in places.items():
        code[rows, v] = offset[v] + leaves[v].n_codes + number
    return Packed(code, z, base, slot, offset, sets)
