"""Completions by the splits that are left: what is observed has settled all others.

Of each tree, sets of leaves (:mod:`knothole.reach.leaf_sets`) say which leaves a row's observed
values leave, and which splits on holes part them. These splits are found once a row, from the
roots down (:func:`find_splits`); then each word of draws is divided at one after the other, and
every split brings one leaf more: a tree with a single leaf left costs nothing.

Under a mixture, holes are independent of what is observed given the component, and all rows have
the same points: so in one component a draw has the same values for every row, and which draws go
left at a split is tabulated before any row is seen (:mod:`knothole.reach.completions.shared`). A
row then says no more than which draws are of which component.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from knothole.arrays import Floats, Words
from knothole.compiled.bits import highest_bit, lowest_bit
from knothole.compiled.pointers import pointers
from knothole.compiled.policy import inlined, inner, njit
from knothole.compiled.simd import add_where
from knothole.compiled.sobol import WORD
from knothole.compiled.threads import Memory
from knothole.reach.completions.kernels import Forest, left_mask
from knothole.reach.completions.masks import ALL, fill_masks
from knothole.reach.leaf_sets import LEAVES, LeafSets, leaf_sets, read_sets
from knothole.trees.ensemble import Ensemble


class Trees(NamedTuple):
    """All trees by their sets of leaves; whatever is ``Any`` is an array.

    Attributes
    ----------
    parting : uint8 (trees, 64, 64)
        That of :class:`~knothole.reach.leaf_sets.LeafSets`, for all trees.
    node : uint64 (trees, 128, 2)
        The leaves on the right of a split, and where the draws that go left stand among the masks
        of a word.
    output : int64 (trees,)
    own : int64
        Splits that no cut's mask tells of, on categories or what may be not recorded: their masks
        stand behind those of the cuts, in this order.
    ranges : int64 (variables, 4)
        Where a variable's masks begin and end, those of its cuts and those of its own splits.
    """

    parting: Any
    node: Any
    output: Any
    own: Any
    ranges: Any


class Room(NamedTuple):
    """Working memory of a row; not to be shared between threads.

    A split divides the draws of one ``place``, at first those of a whole tree: what goes right has
    a new place. ``left`` are the leaves it parts, ``step`` what the first of them on the right adds
    to the first of all; so a draw has the value of its leaf when it has come to it.
    """

    left: Any
    tree: Any
    place: Any
    row: Any
    step: Any
    draws: Any
    met: Any
    by: Any
    start: Any
    stop: Any
    total: Any
    masks: Any
    absent: Any
    found: Any


class Splits:
    """An ensemble's trees as words of draws are divided at their splits."""

    def __init__(self, ensemble: Ensemble, forest: Forest, groups: list[LeafSets]) -> None:
        self.groups, self.forest = groups, forest
        self.n_masks = int(forest.look.offset[-1])
        feature = ensemble.feature
        nullable = ensemble.columns.nullable[feature]
        alone = (feature >= 0) & ((ensemble.set_start >= 0) | (ensemble.missing_left & nullable))
        own = np.flatnonzero(alone)
        own = own[np.argsort(feature[own], kind="stable")]
        mask_row = forest.steps["mask_row"].astype(np.uint64)
        first = self.n_masks + 2
        mask_row[own] = first + np.arange(len(own))
        offset = forest.look.offset
        ends = [
            first + np.searchsorted(feature[own], np.arange(len(offset) - 1), side)
            for side in ("left", "right")
        ]
        sizes = [len(group.root) for group in groups]
        self.leaf = np.concatenate([group.leaf for group in groups])
        right = np.concatenate([group.right for group in groups])
        nodes = np.concatenate([group.root for group in groups])[:, None] + np.arange(2 * LEAVES)
        rows = mask_row[np.minimum(nodes, len(mask_row) - 1)]
        self.trees = Trees(
            np.concatenate([group.parting for group in groups]),
            np.ascontiguousarray(np.stack([right, rows], axis=2)),
            np.repeat([group.output for group in groups], sizes).astype(np.int64),
            own,
            np.stack([offset[:-1], offset[1:], *ends], axis=1),
        )
        self.width = first + len(own)
        self.n_leaves, self.n_outputs = ensemble.n_leaves, ensemble.n_outputs
        self.memory = Memory()

    @classmethod
    def of(cls, ensemble: Ensemble, forest: Forest) -> Splits | None:
        """Of an ensemble, where its trees are small enough."""
        groups = leaf_sets(ensemble)
        return cls(ensemble, forest, groups) if groups else None

    def values(self, value: Floats) -> Floats:
        """The values of leaves by tree and bit, (trees, 64), from those of all leaves."""
        return np.ascontiguousarray(value[:, 0][self.leaf])

    def sets(self, points: Floats) -> Words:
        """The leaves of each tree that what is observed leaves, (rows, trees)."""
        out = np.empty((len(points), len(self.leaf)), dtype=np.uint64)
        first = 0
        for group in self.groups:
            read_rows(points, group, out[:, first : first + len(group.root)])
            first += len(group.root)
        return out

    def margins(
        self, points: Floats, draws: Floats, leaves: tuple[Floats, Floats], out: Floats
    ) -> None:
        """Margins of rows' own draws (words, rows, variables, 64), ``out`` (rows, words, 64, ...).

        ``leaves`` are the values of leaves and the base that they are added to.
        """
        room = self.memory.once(self._room)
        drawn_margins(points, self.sets(points), draws, self.forest, self.trees, leaves, room, out)

    def margins_of_shared(
        self,
        rows: tuple[Floats, Words, Floats],
        shared: Shared,
        leaves: tuple[Floats, Floats],
        out: Floats,
    ) -> None:
        """Margins of shared draws, for rows' points, sets and shares (rows, components)."""
        room = self.memory.once(self._room)
        shared_margins(*rows, shared, self.trees, leaves, room, out)

    def masks_of_components(self, draws: Floats) -> Words:
        """Masks of a word's draws (components, variables, 64), (components, rows of masks)."""
        nothing = np.full(draws.shape[:2], np.nan)
        out = self._masks(len(draws))
        room = self.memory.once(self._room)
        fill_components(nothing, draws, self.forest, self.trees.own, room, out)
        return out

    def _room(self) -> Room:
        n, k = self.n_leaves + 2, len(self.leaf)
        return Room(
            left=np.empty(n, dtype=np.uint64),
            tree=np.empty(n, dtype=np.int32),
            place=np.empty(n, dtype=np.int32),
            row=np.empty(n, dtype=np.int32),
            step=np.empty(n),
            draws=np.empty(n + k, dtype=np.uint64),
            met=np.empty(n, dtype=np.uint64),
            by=np.empty(n),
            start=np.empty(self.n_outputs),
            stop=np.empty(self.n_outputs, dtype=np.int64),
            total=np.empty(WORD),
            masks=self._masks(1)[0],
            absent=np.empty(len(self.forest.look.used), dtype=np.uint64),
            found=np.empty(WORD, dtype=np.uint32),
        )

    def _masks(self, n: int) -> Words:
        """Room for the masks of ``n`` words."""
        masks = np.zeros((n, self.width), dtype=np.uint64)
        masks[:, self.n_masks + 1] = ALL
        return masks


class Shared(NamedTuple):
    """What the draws of some words are in each component, whatever the row.

    Attributes
    ----------
    masks : uint64 (words, components, rows of masks)
    uniform : float64 (words, 64)
        What chooses the components of a word's draws, sorted.
    lowest : uint64 (words, 65)
        The draws with the 0 to 64 lowest of them.
    """

    masks: Any
    uniform: Any
    lowest: Any


@njit
def read_rows(points, trees, out):  # type: ignore[no-untyped-def]
    """The leaves that what is observed leaves, ``out`` (rows, trees)."""
    for row in range(len(points)):
        read_sets(points[row], trees, out[row])


@inner
def find_splits(sets, trees, leaves, room):  # type: ignore[no-untyped-def]
    """The splits on holes that part a row's leaves, from the roots down, one output's first.

    Without branches: what a row has left cannot be guessed. ``room.stop`` is where the splits of
    each output end, ``room.start`` what its margin is with all trees' first leaves.
    """
    one, n_trees = np.uint64(1), len(sets)
    value, base = leaves
    sets_, parting, nodes, outputs = pointers((sets, trees.parting, trees.node, trees.output))
    value_, room_ = pointers((value, room))
    left, tree, place = room_.left, room_.tree, room_.place
    n, split, t = np.int64(0), 0, 0
    for output in range(len(base)):
        start = base[output]
        while t < n_trees and outputs[t] == output:
            word = sets_[t]
            start += value_[t * LEAVES + np.int64(lowest_bit(word))]
            left[n], tree[n], place[n] = word, t, t
            n += np.int64(word & (word - one) != 0)
            t += 1
        while split < n:
            word, own = left[split], np.int64(tree[split])
            first = own * LEAVES + np.int64(lowest_bit(word))
            node = np.int64(parting[first * LEAVES + np.int64(highest_bit(word))])
            node += 2 * own * LEAVES
            above = word & nodes[2 * node]
            below = word ^ above
            room_.row[split] = nodes[2 * node + 1]
            new = own * LEAVES + np.int64(lowest_bit(above))
            room_.step[split] = value_[new] - value_[first]
            left[n], tree[n], place[n] = below, own, place[split]
            n += np.int64(below & (below - one) != 0)
            left[n], tree[n], place[n] = above, own, n_trees + split
            n += np.int64(above & (above - one) != 0)
            split += 1
        room.start[output] = start
        room.stop[output] = n
    return n


@inlined
def add_word(n_trees, masks, room, out):  # type: ignore[no-untyped-def]
    """Divide a word's draws at all splits, and write their margins, ``out`` (64, outputs)."""
    room_ = pointers(room)
    place, row, draws, total = room_.place, room_.row, room_.draws, room_.total
    for t in range(n_trees):
        draws[t] = ALL
    split = 0
    for output in range(len(room.start)):
        n_met = np.int64(0)
        while split < room.stop[output]:
            at = np.int64(place[split])
            here, goes = draws[at], masks[np.int64(row[split])]
            right = here & ~goes
            draws[at] = here & goes
            draws[n_trees + split] = right
            room_.met[n_met], room_.by[n_met] = right, room_.step[split]
            n_met += np.int64(right != 0)
            split += 1
        for draw in range(WORD):
            total[draw] = room.start[output]
        add_where(total, room_.met, room_.by, n_met)
        for draw in range(WORD):
            out[draw, output] = total[draw]


@njit
def shared_margins(points, sets, share, shared, trees, leaves, room, out):  # type: ignore[no-untyped-def]
    """Margins of completions that rows share, ``out`` (rows, words, 64, outputs)."""
    for i in range(len(sets)):
        find_splits(sets[i], trees, leaves, room)
        for word in range(len(shared.masks)):
            masks = allotted(points[i], share[i], word, shared, trees.ranges, room)
            add_word(sets.shape[1], masks, room, out[i, word])


@inlined
def allotted(x, share, word, shared, ranges, room):  # type: ignore[no-untyped-def]
    """The masks of a row's holes, given the shares of its components.

    A component has the draws whose first coordinates lie from where the one before it ends, and the
    last that is possible at all has the rest.
    """
    uniform, lowest = shared.uniform[word], shared.lowest[word]
    masks = pointers(room.masks)
    last = 0
    for k in range(len(share)):
        if share[k] > 0.0:
            last = k
    reached, before, k = 0.0, 0, 0
    while before < WORD:
        reached += share[k]
        now = before
        while now < WORD and (k == last or uniform[now] < reached):
            now += 1
        if now > before:
            theirs = pointers(shared.masks[word, k])
            if now - before == WORD:
                return theirs
            draws = lowest[now] ^ lowest[before]
            kept = np.uint64(0) if before == 0 else ALL
            for v in range(len(ranges)):
                if np.isnan(x[v]):
                    for row in range(ranges[v, 0], ranges[v, 1]):
                        masks[row] = (masks[row] & kept) | (theirs[row] & draws)
                    for row in range(ranges[v, 2], ranges[v, 3]):
                        masks[row] = (masks[row] & kept) | (theirs[row] & draws)
        before = now
        k += 1
    return masks


@njit
def drawn_margins(points, sets, draws, forest, trees, leaves, room, out):  # type: ignore[no-untyped-def]
    """Margins of completions that rows have for themselves, ``out`` (rows, words, 64, outputs)."""
    masks, absent = room.masks, room.absent
    for i in range(len(sets)):
        n = find_splits(sets[i], trees, leaves, room)
        for word in range(len(draws)):
            fill_masks(points, draws[word], i, forest.look, False, room.found, masks, absent)
            for split in range(n):
                row = room.row[split]
                own = row - len(masks) + len(trees.own)
                if own >= 0:
                    masks[row] = own_mask(trees.own[own], forest, masks, absent)
            add_word(sets.shape[1], pointers(masks), room, out[i, word])


@inlined
def own_mask(node, forest, masks, absent):  # type: ignore[no-untyped-def]
    """Draws that go left at a split that no cut's mask tells of."""
    goes = left_mask(node, forest.nodes.feature[node], forest, masks, absent)
    return goes | masks[forest.steps[node].mask_row]


@njit
def fill_components(points, draws, forest, own, room, out):  # type: ignore[no-untyped-def]
    """Masks of a word in each component, ``out`` (components, rows of masks).

    ``points`` are holes; ``draws`` is (components, variables, 64).
    """
    for k in range(len(out)):
        fill_masks(points, draws, k, forest.look, False, room.found, out[k], room.absent)
        for i in range(len(own)):
            row = out.shape[1] - len(own) + i
            out[k, row] = own_mask(own[i], forest, out[k], room.absent)
