"""All variables' values and parameters side by side, as compiled kernels want them.

Values are encoded once (see :mod:`knothole.densities.leaves.base`). The codes of all variables
share one table: those of variable v begin at ``start[v]``. A one-hot block observed in part is
known to be in a set of categories; every set that occurs has a code of its own, after all others,
whose entry in the table is the log mass of the set. Kernels need not know: what they sum up for
such a code is split among the set's categories afterwards (:func:`spread_sets`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole.columns import Evidence
from knothole.densities.leaves.base import Leaf

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sets:
    """Sets of categories that one variable is known to be in: codes from ``start`` on."""

    variable: int
    start: int
    allowed: NDArray[np.bool_]


class Values(NamedTuple):
    """Encoded rows, for kernels.

    Attributes
    ----------
    code : int32 (rows, variables)
        Row of the common table; -1 for a hole.
    z : float64 (rows, variables that use it)
        Standardised values.
    which : int64 (variables,)
        The column of ``z`` of a variable, -1 for none.
    """

    code: NDArray[np.int32]
    z: Floats
    which: Ints


class Tables(NamedTuple):
    """Parameters of all leaves, for kernels.

    log p(x | k) = base + table[c, k] + z * linear[v, k] + z**2 * square[v, k]. ``peak`` is the
    largest entry of a code; ``factor = exp(table - peak)`` serves variables without ``z``.
    """

    table: Floats
    linear: Floats
    square: Floats
    peak: Floats
    factor: Floats


@dataclass(frozen=True, eq=False)
class Packed:
    """Encoded rows.

    Attributes
    ----------
    values : Values
    base : float64 (rows,)
        Sum of the log base measures.
    start : int64 (variables + 1,)
        First code of each variable, and of the sets.
    sets : tuple of Sets
    n_codes : int
        Rows of the common table.
    """

    values: Values
    base: Floats
    start: Ints
    sets: tuple[Sets, ...]
    n_codes: int


def pack(leaves: Sequence[Leaf], evidence: Evidence) -> Packed:
    """Encode rows for these leaves, or any that :meth:`Leaf.maximise` makes of them."""
    rows = len(evidence.points)
    uses_z = np.array([leaf.natural().linear is not None for leaf in leaves])
    which = np.where(uses_z, np.cumsum(uses_z) - 1, -1)
    start = np.cumsum([0] + [leaf.n_codes for leaf in leaves])
    code = np.empty((rows, len(leaves)), dtype=np.int32)
    z = np.empty((rows, int(uses_z.sum())))
    base = np.zeros(rows)
    for v, leaf in enumerate(leaves):
        encoded = leaf.encode(evidence.points[:, v])
        code[:, v] = np.where(encoded.code < 0, -1, encoded.code + start[v])
        if uses_z[v]:
            z[:, which[v]] = encoded.z
        if encoded.base is not None:
            base += encoded.base
    sets, n_codes = [], int(start[-1])
    for v, which_rows, allowed in evidence.restricted():
        distinct, position = np.unique(allowed, axis=0, return_inverse=True)
        code[which_rows, v] = n_codes + position.ravel()
        sets.append(Sets(v, n_codes, distinct))
        n_codes += len(distinct)
    values = Values(code, z, which.astype(np.int64))
    return Packed(values, base, start, tuple(sets), n_codes)


def tabulate(leaves: Sequence[Leaf], packed: Packed) -> Tables:
    """The leaves' parameters in the layout of packed rows."""
    n_states = leaves[0].n_states
    table = np.empty((packed.n_codes, n_states))
    linear, square = np.zeros((2, len(leaves), n_states))
    for v, leaf in enumerate(leaves):
        natural = leaf.natural()
        table[packed.start[v] : packed.start[v + 1]] = natural.table
        if natural.linear is not None and natural.square is not None:
            linear[v], square[v] = natural.linear, natural.square
    with np.errstate(divide="ignore"):
        for sets in packed.sets:
            mass = leaves[sets.variable].set_mass(sets.allowed)
            table[sets.start : sets.start + len(mass)] = np.log(mass)
    peak = table.max(axis=1)
    # A code that is impossible in every state has factor 0 (and peak -inf).
    factor = np.exp(table - np.where(np.isfinite(peak), peak, 0.0)[:, None])
    return Tables(table, linear, square, peak, factor)


def spread_sets(leaves: Sequence[Leaf], packed: Packed, count: Floats) -> Floats:
    """Sums per code, (codes, states), with those of sets given to the categories in them.

    ``leaves`` are those that the sums were computed with: within a set, a state's share goes to
    the categories as their probabilities there.
    """
    plain = count[: packed.start[-1]].copy()
    for sets in packed.sets:
        leaf = leaves[sets.variable]
        here = count[sets.start : sets.start + len(sets.allowed)]
        mass = leaf.set_mass(sets.allowed)
        share = np.divide(here, mass, out=np.zeros_like(here), where=mass > 0)
        level = leaf.set_mass(np.eye(sets.allowed.shape[1], dtype=np.bool_))
        first, last = packed.start[sets.variable : sets.variable + 2]
        plain[first:last] += level * (sets.allowed.T.astype(np.float64) @ share)
    return plain
