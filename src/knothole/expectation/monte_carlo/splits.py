"""Completions by the splits that are left: what is observed has settled all others.

Of each tree, sets of leaves (:mod:`knothole.expectation.leaf_sets`) say which leaves a row's
observed
values leave, and which splits on holes part them. These splits are found once a row, from the
roots down (:func:`fill_found`); then draws, four words at a time, are divided at one after the
other, and every split brings one leaf more: a tree with a single leaf left costs nothing.

Under a mixture, holes are independent of what is observed given the component, and all rows have
the same points: so in one component a draw has the same values for every row, and between which
cuts they lie is tabulated before any row is seen
(:mod:`knothole.expectation.monte_carlo.shared`). A row
then says no more than which draws are of which component.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Words
from knothole.compiled import simd
from knothole.compiled.bits import highest_bit, lowest_bit
from knothole.compiled.pointers import pointers, shift
from knothole.compiled.policy import apart, inlined, njit
from knothole.compiled.simd import add_where_of_four, fill, load, mark_below, put_where, room, store
from knothole.compiled.sobol import WORD
from knothole.compiled.threads import Memory
from knothole.expectation.cuts import Lookup
from knothole.expectation.exact.product_kernels import observed_right, several
from knothole.expectation.leaf_sets import LEAVES, LeafSets, leaf_sets, read_rows
from knothole.expectation.monte_carlo.kernels import Forest, left_mask
from knothole.expectation.monte_carlo.masks import ALL, all_first_above, fill_masks
from knothole.trees.ensemble import Ensemble

# Words that are divided together.
LANES = simd.AT_ONCE
# What rounded steps may add to the error of a margin: far less than draws do.
ROUNDED = 1e-5
# Cuts of a variable that a draw's place among them, an octet, tells of; more have more octets.
CUTS = 255
#: The values of leaves and the base that they are added to; what margins are sums of, and its unit.
Leaves = tuple[Floats, Floats]
Steps = tuple[NDArray[Any], float]


class Trees(NamedTuple):
    """All trees by their sets of leaves; whatever is ``Any`` is an array.

    Attributes
    ----------
    parting : uint8 (trees, 64, 64)
        That of :class:`~knothole.expectation.leaf_sets.LeafSets`, for all trees.
    node : uint64 (trees, 128, 2)
        The leaves on the right of a split, and where the draws that go left stand among the masks
        of a word.
    output : int64 (trees,)
    own : int64
        Splits that no cut's mask tells of, on categories or what may be not recorded: their masks
        stand behind those of the cuts, in this order.
    slots : int64 (variables + 1,)
        Where the octets of each variable's draws begin.
    cut : int64 (rows of masks,)
        The place of a cut's octets, and 256 times its slot.
    """

    parting: Any
    node: Any
    output: Any
    own: Any
    slots: Any
    cut: Any


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
    step : float64 or int32 (splits,)
        What the first leaf on its right adds to the first of its tree.
    unit : float
        Of steps.
    """

    first: Any
    stop: Any
    start: Any
    split: Any
    step: Any
    unit: float

    def of(self, rows: NDArray[np.intp]) -> Found:
        """Those of some rows."""
        return Found(self.first[rows], self.stop[rows], self.start[rows], *self[3:])


class Room(NamedTuple):
    """Working memory of words; not to be shared between threads."""

    draws: Any  # (places, LANES)
    goes: Any  # (splits, LANES) draws that go left
    chosen: Any  # (components,) those that some draws are of,
    part: Any  # (components, LANES) and which
    cells: Any  # (slots, 64 LANES) octets of draws,
    asked: Any  # (slots + 1,) and when they were asked for last; now
    total: Any  # (64 LANES,) of steps
    masks: Any  # (rows of masks,)
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
        slots, cut = _octets(forest.look, self.n_masks)
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
            slots,
            cut,
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

    def steps(self, value: Floats, rounded: bool) -> Steps:
        """What margins are sums of, by tree and bit: int32, summed up in half the time, where
        ``rounded`` says that far less than draws tell will do.
        """
        values = self.values(value)
        spread = np.bincount(self.trees.output, np.ptp(values, axis=1)).max()
        unit = max(float(spread) / (1 << 30), np.finfo(np.float64).tiny)
        if not (rounded and unit * np.sqrt(len(values)) <= ROUNDED):
            return values, 1.0
        own = (values - values.min(axis=1, keepdims=True)) / unit
        return np.rint(own).astype(np.int32), unit

    def found(self, sets: Words, leaves: Leaves, steps: Steps, memory: Memory) -> Found:
        """The splits of rows, by the leaves that they have left; in memory to use again."""
        first, shape = splits_before(sets), (len(sets), self.n_outputs)
        n = int(first[-1]) + 2  # what lies behind the last is written to as well
        by, unit = steps
        split, step = memory.array("split", (n,), np.uint64), memory.array("step", (n,), by.dtype)
        found = Found(first, np.empty(shape, np.int64), np.empty(shape), split, step, unit)
        fill_found(sets, self.trees, (*leaves, by), self.memory.once(self._left), found)
        return found

    def _left(self) -> Words:
        return np.empty(self.n_leaves + 2, dtype=np.uint64)

    def margins(
        self, points: Floats, draws: Floats, leaves: Leaves, steps: Steps, out: Floats
    ) -> None:
        """Margins of rows' own draws (words, rows, variables, 64), ``out`` (rows, words, ...)."""
        found = self.found(self.sets(points), leaves, steps, self.memory)
        drawn_margins(points, found, draws, self.forest, self.trees, self._room(found), out)

    def margins_of_shared(
        self, share: Floats, found: Found, shared: Shared, first: int, out: Floats
    ) -> None:
        """Margins of shared draws, from a word on, for rows' shares and splits."""
        shared_margins(share, found, shared, first, self.trees, self._room(found), out)

    def in_components(self, draws: Floats) -> tuple[NDArray[np.uint8], Words]:
        """Octets and own masks of draws (words, components, variables, 64), see :class:`Shared`."""
        n, trees = draws.shape[1], self.trees
        cells = room(n, trees.slots[-1], LANES * WORD // 8).view(np.uint8)
        masks = room(n, len(trees.own), LANES).view(np.uint64)
        scratch = np.empty(WORD, dtype=np.uint32)
        for word, own in enumerate(draws):
            fill_components(own, self.forest, trees, word, scratch, (cells, masks))
        return cells, masks

    def _room(self, found: Found) -> Room:
        own = self.memory.once(self._new_room)
        return own._replace(total=own.total.view(found.step.dtype)[: WORD * LANES])

    def _new_room(self) -> Room:
        n = self.n_leaves + 2 + len(self.leaf)
        draws, goes, part = (room(k, LANES).view(np.uint64) for k in (n, n, WORD * LANES + 1))
        slots = int(self.trees.slots[-1])
        return Room(
            draws=draws,
            goes=goes,
            chosen=np.empty(len(part), dtype=np.int64),
            part=part,
            cells=room(slots, LANES * WORD // 8).view(np.uint8),
            asked=np.zeros(slots + 1, dtype=np.int64),
            total=room(WORD * LANES),
            masks=np.zeros(self.width, dtype=np.uint64),
            absent=np.empty(len(self.forest.look.used), dtype=np.uint64),
            found=np.empty(WORD, dtype=np.uint32),
        )


def _octets(look: Lookup, n_masks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """``slots`` and ``cut`` of :class:`Trees`."""
    # A number has a row more than it has cuts on either side.
    n_cuts = np.where(look.n_levels > 0, 0, np.diff(look.offset) - 2)
    slots = np.append(0, np.cumsum(-(-n_cuts // CUTS)))
    row = np.arange(n_masks)
    variable = np.searchsorted(look.offset, row, side="right") - 1
    more, place = np.divmod(row - look.offset[variable] - 1, CUTS)
    return slots, 256 * (slots[variable] + more) + place + 1


class Shared(NamedTuple):
    """What the draws of some words, four together, are in each component, whatever the row.

    Attributes
    ----------
    cells : uint8 (fours, components, slots, 64 LANES)
        How many cuts are not above a draw, of as many as an octet tells of.
    masks : uint64 (fours, components, own, LANES)
        Draws that go left at splits that cuts do not tell of.
    uniform : float64 (fours, 64 LANES)
        What chooses the components of draws, sorted.
    lowest : uint64 (fours, 64 LANES + 1, LANES)
        The draws with the 0, 1, ... lowest of them.
    """

    cells: Any
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
    value, base, step = leaves
    left, parting, nodes = pointers((left, trees.parting, trees.node))
    values, by = pointers((value, step))
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
                first_leaf = tree + np.int64(lowest_bit(own[row_of(here)]))
                lowest = tree + np.int64(lowest_bit(word))
                node = 2 * tree + np.int64(parting[lowest * LEAVES + np.int64(highest_bit(word))])
                above = word & nodes[2 * node]
                below = word ^ above
                steps[split] = by[tree + np.int64(lowest_bit(above))] - by[first_leaf]
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
def add_words(n_trees, i, found, room, word, out):  # type: ignore[no-untyped-def]
    """Divide draws at all splits of a row; write the margins of words from ``word`` on to ``out``.

    ``out`` is (words, 64, outputs); words that it has no place for are left out.
    """
    draws, goes, total = pointers((room.draws, room.goes, room.total))
    first, n_outputs = found.first[i], found.stop.shape[1]
    splits, steps = pointers((found.split[first:], found.step[first:]))
    for t in range(LANES * n_trees):
        draws[t] = ALL
    for split in range(found.stop[i, n_outputs - 1]):
        at = LANES * place_of(splits[split])
        here = load(draws, at)
        left = here & load(goes, LANES * split)
        store(draws, at, left)
        store(draws, LANES * (n_trees + split), here ^ left)
    before = np.int64(0)
    for output in range(n_outputs):
        start, stop = found.start[i, output], found.stop[i, output]
        for draw in range(LANES * WORD):
            total[draw] = 0
        own = shift(draws, LANES * (n_trees + before))
        add_where_of_four(total, own, shift(steps, before), stop - before)
        before = stop
        for lane in range(max(0, -word), min(LANES, len(out) - word)):
            for draw in range(WORD):
                out[word + lane, draw, output] = start + found.unit * total[lane * WORD + draw]


@njit
def shared_margins(share, found, shared, first, trees, room, out):  # type: ignore[no-untyped-def]
    """Margins of shared completions, from a word on, ``out`` (rows, words, 64, outputs)."""
    last = found.stop.shape[1] - 1
    for i in range(len(share)):
        for four in range(first // LANES, (first + out.shape[1] + LANES - 1) // LANES):
            n = choose(share[i], shared.uniform[four], pointers(shared.lowest[four]), room)
            splits, n_splits = pointers(found.split[found.first[i] :]), found.stop[i, last]
            tell_sides(splits, n_splits, n, (shared.cells[four], shared.masks[four]), trees, room)
            add_words(len(trees.node), i, found, room, four * LANES - first, out[i])


@apart
def tell_sides(splits, n_splits, n, shared, trees, room):  # type: ignore[no-untyped-def]
    """Draws that go left at the splits of a row, of ``n`` components that are chosen."""
    cells, masks = shared
    cells_, masks_, mixed, goes = pointers((cells, masks, room.cells, room.goes))
    part, cut, asked, chosen = pointers((room.part, trees.cut, room.asked, room.chosen))
    size, n_cuts, n_own = cells.shape[1] * LANES * WORD, len(trees.cut), len(trees.own)
    first_own, now = len(room.masks) - n_own, asked[cells.shape[1]] + 1
    asked[cells.shape[1]] = now
    for split in range(n_splits):
        row, own = row_of(splits[split]), shift(goes, LANES * split)
        if row < n_cuts:
            slot = cut[row] >> 8
            at = slot * LANES * WORD
            if asked[slot] != now:
                asked[slot] = now
                for k in range(n):
                    theirs = shift(cells_, chosen[k] * size + at)
                    put_where(shift(mixed, at), theirs, shift(part, LANES * k))
            mark_below(own, shift(mixed, at), cut[row])
        else:
            fill(own, 0.0, LANES)
            for k in range(n):
                theirs = load(masks_, LANES * (chosen[k] * n_own + row - first_own))
                store(own, 0, load(own, 0) | (theirs & load(part, LANES * k)))


@inlined
def choose(share, uniform, lowest, room):  # type: ignore[no-untyped-def]
    """The components that some draws are of, and which, given their shares; returns how many.

    A component has the draws whose first coordinates lie from where the one before it ends, and the
    last that is possible at all has the rest.
    """
    part = pointers(room.part)
    last = len(share) - 1
    while last > 0 and not share[last] > 0.0:
        last -= 1
    reached, before, n = 0.0, 0, 0
    for k in range(last + 1):
        reached += share[k]
        now = len(uniform) if k == last else before
        while now < len(uniform) and uniform[now] < reached:
            now += 1
        room.chosen[n] = k
        draws = load(lowest, LANES * now) ^ load(lowest, LANES * before)
        store(part, LANES * n, draws)
        n += now > before
        before = now
    return n


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
                room.goes[split, word % LANES] = masks[row]
            if word % LANES == LANES - 1 or word == len(draws) - 1:
                add_words(len(trees.node), i, found, room, word - word % LANES, out[i])


@inlined
def own_mask(node, forest, masks, absent):  # type: ignore[no-untyped-def]
    """Draws that go left at a split that no cut's mask tells of."""
    goes = left_mask(node, forest.nodes.feature[node], forest, masks, absent)
    return goes | masks[forest.steps[node].mask_row]


@njit
def fill_components(draws, forest, trees, word, found, out):  # type: ignore[no-untyped-def]
    """What a word's draws (components, variables, 64) are in each component, see :class:`Shared`.

    ``out`` are octets and masks of four words; ``found`` (64,) is working memory.
    """
    cuts, start, cells, rulers, halvings, offset, n_levels, used = forest.look
    nodes, (octets, masks) = forest.nodes, out
    for k in range(len(draws)):
        for i in range(len(trees.own)):
            node, goes = trees.own[i], np.uint64(0)
            for draw in range(WORD):
                x = draws[k, nodes.feature[node], draw]
                right = observed_right(
                    x, node, nodes.cut, nodes.missing_left, nodes.set_start, nodes.sets
                )
                goes |= np.uint64(not right) << np.uint64(draw)
            masks[k, i, word] = goes
        for v in range(len(used)):
            if not used[v] or n_levels[v] > 0:
                continue
            all_first_above(draws[k, v], v, cuts, start, cells, rulers, halvings, found)
            for draw in range(WORD):
                place = np.int64(found[draw]) - np.int64(start[v])
                if draws[k, v, draw] == np.inf:
                    place = offset[v + 1] - offset[v]
                for slot in range(trees.slots[v], trees.slots[v + 1]):
                    octets[k, slot, word * WORD + draw] = min(max(place, 0), CUTS)
                    place -= CUTS
