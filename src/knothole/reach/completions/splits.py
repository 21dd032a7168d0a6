"""Completions by the splits that are left: what is observed has settled all others.

Of each tree, sets of leaves (:mod:`knothole.reach.leaf_sets`) say which leaves a row's observed
values leave, and which splits on holes part them. These splits are found once a row, from the
roots down (:func:`fill_found`); then each word of draws is divided at one after the other, and
every split brings one leaf more: a tree with a single leaf left costs nothing.

Under a mixture, holes are independent of what is observed given the component, and all rows have
the same points: so in one component a draw has the same values for every row, and which draws go
left at a split is tabulated before any row is seen (:mod:`knothole.reach.completions.shared`). A
row then says no more than which draws are of which component.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Words
from knothole.compiled.bits import highest_bit, lowest_bit
from knothole.compiled.pointers import pointers, shift
from knothole.compiled.policy import inlined, njit
from knothole.compiled.simd import add_where
from knothole.compiled.sobol import WORD
from knothole.compiled.threads import Memory
from knothole.reach.completions.kernels import Forest, left_mask
from knothole.reach.completions.masks import ALL, fill_masks
from knothole.reach.leaf_sets import LEAVES, LeafSets, leaf_sets, read_rows
from knothole.reach.walks.product_kernels import several
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


class Found(NamedTuple):
    """The splits on holes that part the leaves of rows, parents before their children.

    A split divides the draws of one *place*, at first those of a whole tree: what goes right has a
    new place. So a draw has the value of its leaf when it has come to it.

    Attributes
    ----------
    first : int64 (rows + 1,)
        Where a row's splits begin.
    stop : int64 (rows, outputs)
        How many splits there are until those of an output end.
    start : float64 (rows, outputs)
        Margins with the first leaves of all trees.
    split : uint64 (splits,)
        Its place, and where the draws that go left stand among the masks (:func:`both`).
    step : float64 (splits,)
        What the first leaf on its right adds to the first of all that it parts.
    """

    first: Any
    stop: Any
    start: Any
    split: Any
    step: Any

    def of(self, rows: NDArray[np.intp]) -> Found:
        """Those of some rows."""
        return Found(self.first[rows], self.stop[rows], self.start[rows], self.split, self.step)


class Room(NamedTuple):
    """Working memory of words; not to be shared between threads."""

    draws: Any
    met: Any
    by: Any
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

    def found(self, sets: Words, leaves: tuple[Floats, Floats], memory: Memory) -> Found:
        """The splits of rows, by the leaves that they have left; in memory to use again."""
        first, shape = splits_before(sets), (len(sets), self.n_outputs)
        n = int(first[-1]) + 2  # what lies behind the last is written to as well
        split, step = memory.array("split", (n,), np.uint64), memory.array("step", (n,))
        found = Found(first, np.empty(shape, np.int64), np.empty(shape), split, step)
        fill_found(sets, self.trees, leaves, self.memory.once(self._left), found)
        return found

    def _left(self) -> Words:
        return np.empty(self.n_leaves + 2, dtype=np.uint64)

    def margins(
        self, points: Floats, draws: Floats, leaves: tuple[Floats, Floats], out: Floats
    ) -> None:
        """Margins of rows' own draws (words, rows, variables, 64), ``out`` (rows, words, 64, ...).

        ``leaves`` are the values of leaves and the base that they are added to.
        """
        found = self.found(self.sets(points), leaves, self.memory)
        room = self.memory.once(self._room)
        drawn_margins(points, found, draws, self.forest, self.trees, room, out)

    def margins_of_shared(
        self, points: Floats, share: Floats, found: Found, shared: Shared, out: Floats
    ) -> None:
        """Margins of shared draws, for rows' points, shares (rows, components) and splits."""
        room = self.memory.once(self._room)
        shared_margins(points, share, found, shared, self.trees, room, out)

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
            draws=np.empty(n + k, dtype=np.uint64),
            met=np.empty(n, dtype=np.uint64),
            by=np.empty(n),
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


def splits_before(sets: Words) -> NDArray[np.int64]:
    """How many splits the rows before each have, and all of them: of a tree, one less than leaves.

    Examples
    --------
    >>> splits_before(np.array([[0b1011, 0b1], [0b1, 0b11]], dtype=np.uint64)).tolist()
    [0, 2, 3]
    """
    leaves = np.bitwise_count(sets).sum(axis=1, dtype=np.int64)
    return np.append(0, np.cumsum(leaves - sets.shape[1]))


@njit
def fill_found(sets, trees, leaves, left, found):  # type: ignore[no-untyped-def]
    """Find the splits of rows, from the roots down, one output's after another's.

    Without branches: what a row has left cannot be guessed. What is still to be divided stands
    where the splits will: ``left`` are its leaves, beside its tree in the place of a row of masks.
    """
    n_trees, n_outputs = sets.shape[1], found.stop.shape[1]
    value, base = leaves
    left, parting, nodes, values = pointers((left, trees.parting, trees.node, value))
    for i in range(len(sets)):
        own, outputs, first = pointers(sets[i]), trees.output, found.first[i]
        splits, steps = pointers((found.split[first:], found.step[first:]))
        n, split, t = np.int64(0), 0, 0
        for output in range(n_outputs):
            start = base[output]
            while t < n_trees and outputs[t] == output:
                word = own[t]
                start += values[t * LEAVES + np.int64(lowest_bit(word))]
                left[n], splits[n] = word, both(t, t)
                n += several(word)
                t += 1
            while split < n:
                word, here = left[split], splits[split]
                tree = row_of(here) * LEAVES
                lowest = tree + np.int64(lowest_bit(word))
                node = 2 * tree + np.int64(parting[lowest * LEAVES + np.int64(highest_bit(word))])
                above = word & nodes[2 * node]
                below = word ^ above
                steps[split] = values[tree + np.int64(lowest_bit(above))] - values[lowest]
                splits[split] = both(place_of(here), nodes[2 * node + 1])
                left[n], splits[n] = below, here
                n += several(below)
                left[n], splits[n] = above, both(n_trees + split, row_of(here))
                n += several(above)
                split += 1
            found.start[i, output], found.stop[i, output] = start, n


@inlined
def both(place, row):  # type: ignore[no-untyped-def]
    """A place and a row of masks as the halves of a word."""
    return (np.uint64(place) << np.uint64(32)) | np.uint64(row)


@inlined
def place_of(split):  # type: ignore[no-untyped-def]
    """The place whose draws a split divides."""
    return np.int64(split >> np.uint64(32))


@inlined
def row_of(split):  # type: ignore[no-untyped-def]
    """Where the draws that go left at a split stand among the masks."""
    return np.int64(split & np.uint64(0xFFFFFFFF))


@inlined
def add_word(n_trees, masks, i, found, room, out):  # type: ignore[no-untyped-def]
    """Divide a word's draws at all splits of a row, and write their margins, (64, outputs)."""
    draws, met, by, total = pointers((room.draws, room.met, room.by, room.total))
    first = found.first[i]
    splits, steps = pointers((found.split, found.step))
    splits, steps = shift(splits, first), shift(steps, first)
    for t in range(n_trees):
        draws[t] = ALL
    split = 0
    for output in range(found.stop.shape[1]):
        n_met = np.int64(0)
        while split < found.stop[i, output]:
            at = place_of(splits[split])
            here, goes = draws[at], masks[row_of(splits[split])]
            right = here & ~goes
            draws[at] = here & goes
            draws[n_trees + split] = right
            met[n_met], by[n_met] = right, steps[split]
            n_met += np.int64(right != 0)
            split += 1
        for draw in range(WORD):
            total[draw] = found.start[i, output]
        add_where(total, met, by, n_met)
        for draw in range(WORD):
            out[draw, output] = total[draw]


@njit
def shared_margins(points, share, found, shared, trees, room, out):  # type: ignore[no-untyped-def]
    """Margins of completions that rows share, ``out`` (rows, words, 64, outputs)."""
    for i in range(len(points)):
        for word in range(len(shared.masks)):
            masks = allotted(points[i], share[i], word, shared, trees.ranges, room)
            add_word(len(trees.node), masks, i, found, room, out[i, word])


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
def drawn_margins(points, found, draws, forest, trees, room, out):  # type: ignore[no-untyped-def]
    """Margins of completions that rows have for themselves, ``out`` (rows, words, 64, outputs)."""
    masks, absent = room.masks, room.absent
    for i in range(len(points)):
        for word in range(len(draws)):
            fill_masks(points, draws[word], i, forest.look, False, room.found, masks, absent)
            for split in range(found.stop[i, found.stop.shape[1] - 1]):
                row = row_of(found.split[found.first[i] + split])
                own = row - len(masks) + len(trees.own)
                if own >= 0:
                    masks[row] = own_mask(trees.own[own], forest, masks, absent)
            add_word(len(trees.node), pointers(masks), i, found, room, out[i, word])


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
