"""Sums over groups of draws, by the splits that part a word's own draws.

Sets of leaves (:mod:`knothole.expectation.leaf_sets`) say what is left of a tree by a row's
observed
values, and also by the least and the largest of a hole's 64 draws: most splits are settled by
that. At each of the others the draws are compared with its cut, all at once, and divided; no mask
of any other cut is made, and a tree with a single leaf left costs next to nothing.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from knothole.arrays import Floats, Words
from knothole.compiled.bits import highest_bit, lowest_bit, starts
from knothole.compiled.pointers import pointers, prefetch, shift
from knothole.compiled.policy import inlined, njit
from knothole.compiled.simd import CACHE_LINE, add_counts, below, ends, room
from knothole.compiled.sobol import GROUPS, SIZE, WORD
from knothole.expectation.cuts import CELLS, cell_of
from knothole.expectation.exact.product_kernels import several
from knothole.expectation.leaf_sets import LEAVES, TREES, LeafSets, leaf_sets, meet, read_sets
from knothole.expectation.monte_carlo.masks import ALL
from knothole.trees.ensemble import Ensemble

#: Of so many cuts one has a set of the leaves on its sides.
SHIFT = 3
EVERY = 1 << SHIFT
# A list has room for what will be overwritten.
_MOST = TREES * LEAVES // 2 + 2


class Divided(NamedTuple):
    """Some trees whose splits are all numeric; whatever is ``Any`` is an array.

    Attributes
    ----------
    trees : LeafSets
    first : int64 (variables,)
        First row of each variable in the two that follow.
    from_on, up_to : uint64 (rows, trees)
        The leaves that values from a cut on, or up to one, leave: of the first and the last of
        so many cuts (:data:`EVERY`), so that tables are small.
    parted_by : uint8 (trees, 2048)
        Where two leaves part: the first leaf on the right, which stands for the split
        (:func:`pair`).
    split : uint64 (trees, 64, 2)
        Where the draws of its variable begin, and the bits of its cut.
    value : float64 (trees, 64)
        That of each leaf.
    """

    trees: LeafSets
    first: Any
    from_on: Any
    up_to: Any
    parted_by: Any
    split: Any
    value: Any


class Lists(NamedTuple):
    """Working memory of :func:`add_groups`; not to be shared between threads.

    ``known`` and ``own`` are sets of leaves, of a row and of a word. ``left`` (2, ...) has what is
    to be divided, before and after a level: leaves, tree and draws. Of the splits that were met,
    ``right`` has the draws that went right, ``step`` what they gain by it.
    """

    known: Any
    own: Any
    left: Any
    at: Any
    right: Any
    step: Any
    total: Any


def divided(ensemble: Ensemble, value: Floats) -> list[Divided]:
    """The trees of an ensemble with numeric splits, which have these values at their leaves."""
    found = []
    for trees in leaf_sets(ensemble):
        sides = [_sides(trees.sets[a : b - 1]) for a, b in pairwise(trees.look.offset.tolist())]
        from_on, up_to = (np.concatenate(side) for side in zip(*sides, strict=True))
        first = starts(np.array([len(side) for side, _ in sides]))
        lowest = np.bitwise_count(trees.right ^ (trees.right - np.uint64(1))) - 1
        tree, node = np.nonzero(trees.right)
        split = room(len(trees.root), LEAVES, 2).view(np.uint64)
        nodes, place = trees.root[tree] + node, (tree, lowest[tree, node])
        split[*place, 0] = ensemble.feature[nodes] * WORD
        split[*place, 1] = ensemble.cut[nodes].view(np.uint64)
        high, low = np.tril_indices(LEAVES, -1)
        parted_by = np.zeros((len(trees.root), LEAVES * LEAVES // 2), dtype=np.uint8)
        parted_by[:, high * (high - 1) // 2 + low] = lowest[
            np.arange(len(lowest))[:, None], trees.parting[:, low, high]
        ]
        own = value[:, 0][trees.leaf]
        found.append(Divided(trees, first, from_on, up_to, parted_by, split, own))
    return found


def _sides(sets: Words) -> tuple[Words, Words]:
    """What is left by one of some sets or any after it, and by one or any before it."""
    after = np.bitwise_or.accumulate(sets[::-1], axis=0)[::-1]
    before = np.bitwise_or.accumulate(sets, axis=0)
    last = np.minimum(np.arange(0, len(sets), EVERY) + EVERY, len(sets)) - 1
    return after[::EVERY], before[last]


@inlined
def pair(low, high):  # type: ignore[no-untyped-def]
    """The place of two leaves of a tree among all pairs."""
    return ((high * (high - 1)) >> 1) + low


def lists() -> Lists:
    """Working memory for one thread."""
    known, own, at, right = (room(n).view(np.uint64) for n in (TREES, TREES, _MOST, 2 * _MOST))
    left = room(2, _MOST, 3).view(np.uint64)
    return Lists(known, own, left, at, right, room(2 * _MOST), room(GROUPS))


@njit
def add_groups(points, draws, divided, lists, out):  # type: ignore[no-untyped-def]
    """Add sums over the groups of draws (words, rows, ...) to ``out`` (rows, groups, outputs)."""
    trees, lists_ = divided.trees, pointers(lists)
    n_trees = len(trees.root)
    known, own, total = lists.known[:n_trees], lists.own[:n_trees], lists.total
    for row in range(len(points)):
        if row + 1 < len(points):
            fetch(points[row + 1], draws[0, row + 1])
        read_sets(points[row], trees, known)
        for word in range(len(draws)):
            narrow(points[row], draws[word, row], divided, known, own)
            n, first = divide(n_trees, pointers(draws[word, row]), divided, lists_)
            total[:] = SIZE * first
            add_counts(lists_.total, lists_.right, lists_.step, n)
            for group in range(GROUPS):
                out[row, group, trees.output] += total[group]


@inlined
def fetch(x, draws):  # type: ignore[no-untyped-def]
    """Begin to load the draws of a row's holes: there is more of them than the caches hold."""
    for v in range(len(x)):
        if np.isnan(x[v]):
            own = pointers(draws[v])
            for t in range(0, WORD, CACHE_LINE):
                prefetch(shift(own, t))


@inlined
def narrow(x, draws, divided, known, own):  # type: ignore[no-untyped-def]
    """Leave of ``known`` what the least and the largest draw of each hole leave."""
    _, start, cells, rulers, _, _, _, used = divided.trees.look
    for tree in range(len(own)):
        own[tree] = known[tree]
    for v in range(len(used)):
        if used[v] and np.isnan(x[v]):
            least, largest = ends(pointers(draws[v]))
            # All cuts of cells before that of a value are below it, those of cells after it are
            # not; a cell more on either side, since rounding may have led to the one beside.
            cell = max(cell_of(least, rulers[v, 0], rulers[v, 1]), np.uint32(1)) - 1
            row = np.int64(cells[v, cell] - start[v]) >> SHIFT
            meet(divided.from_on[divided.first[v] + row], own)
            cell = cell_of(largest, rulers[v, 0], rulers[v, 1]) + 2
            if cell < CELLS:
                row = np.int64(cells[v, cell] - start[v]) >> SHIFT
                meet(divided.up_to[divided.first[v] + row], own)


@inlined
def divide(n_trees, draws, divided, lists):  # type: ignore[no-untyped-def]
    """Divide a word's draws at all splits that part them, a level of all trees at a time.

    Returns how many there were, and the sum of the first leaves of all trees. Without branches:
    where draws go cannot be guessed. What is found of a level's splits is found first, so that
    it need not wait for draws; lists before and after it are two, so that none waits for another.
    """
    own, left, at, right, step = lists.own, lists.left, lists.at, lists.right, lists.step
    parted_by, splits, value = pointers((divided.parted_by, divided.split, divided.value))
    first, n, done, side = 0.0, np.int64(0), np.int64(0), 0
    for t in range(n_trees):
        first += value[t * LEAVES + np.int64(lowest_bit(own[t]))]
        append(left, n, own[t], np.uint64(t * LEAVES), ALL)
        n += several(own[t])
    while n > 0:
        here = shift(left, side * 3 * _MOST)
        side = 1 - side
        after = shift(left, side * 3 * _MOST)
        for i in range(n):
            word, tree = here[3 * i], np.int64(here[3 * i + 1])
            low, high = np.int64(lowest_bit(word)), np.int64(highest_bit(word))
            split = np.int64(parted_by[LEAVES // 2 * tree + pair(low, high)])
            at[i] = np.uint64(tree + split)
            above = np.int64(lowest_bit(from_bit(word, split)))
            step[done + i] = value[tree + above] - value[tree + low]
        length, n = n, np.int64(0)
        for i in range(length):
            word, tree, goes = here[3 * i], here[3 * i + 1], here[3 * i + 2]
            split = shift(splits, 2 * np.int64(at[i]))
            above = from_bit(word, at[i] & np.uint64(LEAVES - 1))
            stays = goes & ~below(shift(draws, np.int64(split[0])), shift(split, 1))
            right[done + i] = stays
            append(after, n, word ^ above, tree, goes ^ stays)
            n += several(word ^ above) & np.int64(goes != stays)
            append(after, n, above, tree, stays)
            n += several(above) & np.int64(stays != 0)
        done += length
    return done, first


@inlined
def from_bit(word, bit):  # type: ignore[no-untyped-def]
    """The bits of a word from one on."""
    return word >> np.uint64(bit) << np.uint64(bit)


@inlined
def append(left, n, leaves, tree, draws):  # type: ignore[no-untyped-def]
    """Put what is to be divided at the place ``n`` of a list."""
    left[3 * n], left[3 * n + 1], left[3 * n + 2] = leaves, tree, draws
