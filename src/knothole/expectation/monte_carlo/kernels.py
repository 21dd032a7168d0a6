"""Kernels of the Monte Carlo engine: the draws of a row go through all trees as bits of words.

Four words of 64 draws are handled together. For every threshold of a missing number, and every
code of a missing category, :func:`fill_masks` finds which draws go left; a split is then one AND.

Of trees with at most 64 leaves, sets of leaves (:mod:`knothole.expectation.tables`) say which
leaves the observed values of a row leave, and which splits on missing values part them. These
splits are listed once a row, parents before their children (:func:`list_splits`); then words of
draws are divided at one split after the other (:func:`divide`). Larger trees are walked from their
roots (:func:`walk`). Both end with the leaves that some draw reaches and the words of those draws.

Of expected margins only the sums over groups of draws are asked for. Where all splits are plain,
they are had word by word (:func:`fill_group_sums`): the least and the largest draw of a word leave
few splits of a row, so that no masks are made, and bits are counted.

Under a mixture, missing values are independent of observed ones given the component, and all rows
have the same points: in one component a draw has the same values for every row, and on which side
of each split it lies is tabulated before any row is seen (:class:`SharedDraws`). A row then says
only which draws are of which component.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.compiled import simd
from knothole.compiled.bits import has, highest_bit, lowest_bit, popcount
from knothole.compiled.pointers import pointers, shift
from knothole.compiled.policy import apart, inlined, inner, njit
from knothole.compiled.simd import (
    add_counts,
    add_where,
    add_where_of_four,
    below,
    load,
    mark_below,
    put_where,
    room,
    spread,
    store,
)
from knothole.compiled.sobol import GROUPS, SIZE, WORD
from knothole.expectation.tables import (
    LEAVES,
    Grid,
    LeafSets,
    Lookup,
    NodeArrays,
    cell_of,
    follow,
    halved,
    lookup,
    node_arrays,
    observed_right,
    settled,
    several,
)
from knothole.trees.ensemble import Ensemble
from knothole.trees.traverse import tree_depths

ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
# Words that are divided together.
LANES = simd.AT_ONCE
# Thresholds that one byte of a draw's place among them can count; more thresholds need more bytes.
PER_BYTE = 255
# "Not recorded" is infinite; a search for it must not go on among the infinite thresholds.
LARGEST = np.finfo(np.float64).max
# What rounded steps may add to the error of a margin: far less than draws do.
ROUNDED = 1e-5
# Components with less than this share of a row are left out of a mean over cells.
LEAST_SHARE = 1e-10


class Forest(NamedTuple):
    """The trees as draws go through them; whatever is ``Any`` is an array.

    Attributes
    ----------
    nodes : NodeArrays
    cut_row : uint32 (nodes,)
        Row of masks with the draws below a node's threshold; one that is always 0 at sets.
    mask_row : uint32 (nodes,)
        Row of masks with the draws that go left. It differs from ``cut_row`` at splits on
        categories, and where values that are not recorded go left: these have rows of their own.
    row_variable, row_cut : int64, float64 (rows of thresholds,)
        What the first rows of masks are of.
    set_nodes : int64
        The nodes with rows of their own, in their order.
    look : Lookup
    plain : bool
        Whether splits are numeric and nothing, observed or drawn, is "not recorded".
    tree_output : int64 (trees,)
    depth : int
        Of the deepest tree.
    """

    nodes: NodeArrays
    cut_row: Any
    mask_row: Any
    row_variable: Any
    row_cut: Any
    set_nodes: Any
    look: Lookup
    plain: bool
    tree_output: Any
    depth: int

    @classmethod
    def of(cls, ensemble: Ensemble) -> Forest:
        """The trees of an ensemble over variables."""
        grid, feature = Grid.of(ensemble), ensemble.feature
        n_rows, leaf = int(grid.offset[-1]), feature < 0
        numeric = ~leaf & (ensemble.set_start < 0)
        rows = grid.offset[np.where(numeric, feature, 0)] + grid.position
        cut_row = np.where(numeric, rows, n_rows).astype(np.uint32)
        goes_left = ensemble.missing_left & ensemble.columns.nullable[feature]
        set_nodes = np.flatnonzero(~leaf & ((ensemble.set_start >= 0) | goes_left))
        set_nodes = set_nodes[np.argsort(feature[set_nodes], kind="stable")]
        mask_row = cut_row.copy()
        mask_row[set_nodes] = n_rows + 1 + np.arange(len(set_nodes))
        row_cut = np.zeros(n_rows)
        row_cut[rows[numeric]] = ensemble.cut[numeric]
        return cls(
            node_arrays(ensemble),
            cut_row,
            mask_row,
            np.repeat(np.arange(len(grid.cuts)), np.diff(grid.offset)),
            row_cut,
            set_nodes,
            lookup(ensemble, grid),
            not len(ensemble.sets) and not bool(ensemble.columns.nullable.any()),
            ensemble.tree_output.astype(np.int64),
            int(tree_depths(ensemble.roots, feature, ensemble.left).max(initial=0)),
        )

    @property
    def n_masks(self) -> int:
        """Rows of masks."""
        return int(self.look.offset[-1]) + 1 + len(self.set_nodes)


class SmallTrees(NamedTuple):
    """All trees by their sets of leaves, those of one output after those of another.

    Attributes
    ----------
    parting : uint8 (trees, 64, 64)
        That of :class:`~knothole.expectation.tables.LeafSets`, for all trees.
    node : uint64 (trees, 128, 2)
        The leaves on the right of a split, and its row of masks.
    output : int64 (trees,)
    leaf : int64 (trees, 64)
        The leaf of each bit.
    place : int64 (trees,)
        Where each tree of the ensemble stands in this order.
    """

    parting: Any
    node: Any
    output: Any
    leaf: Any
    place: Any

    @classmethod
    def of(cls, groups: list[LeafSets], forest: Forest) -> SmallTrees:
        """Of sets of leaves, of which there must be some."""
        right, roots = (np.concatenate([g[i] for g in groups]) for i in (3, 4))
        nodes = np.minimum(roots[:, None] + np.arange(2 * LEAVES), len(forest.mask_row) - 1)
        rows = forest.mask_row[nodes].astype(np.uint64)
        sizes = [len(group.root) for group in groups]
        return cls(
            np.concatenate([group.parting for group in groups]),
            np.ascontiguousarray(np.stack([right, rows], axis=2)),
            np.repeat([group.output for group in groups], sizes).astype(np.int64),
            np.concatenate([group.leaf for group in groups]),
            np.argsort(roots),
        )


class LeafValues(NamedTuple):
    """What margins are sums of.

    Attributes
    ----------
    value : float64
        Weighted leaf values: (trees, 64) by tree and bit of small trees, else (leaves, width).
    rounded : float64 or int32 (trees, 64)
        The same, or what they are in whole units: summed in half the time.
    unit : float
    base : float64 (outputs,)
    """

    value: Any
    rounded: Any
    unit: float
    base: Any

    @classmethod
    def of(cls, value: Floats, base: Floats, small: SmallTrees | None, rounded: bool) -> LeafValues:
        """Values of leaves, rounded if asked for and if far less than draws can tell is lost."""
        if small is None:
            return cls(value, value, 1.0, base)
        values = np.ascontiguousarray(value[:, 0][small.leaf])
        if not rounded:
            return cls(values, values, 1.0, base)
        spread = np.bincount(small.output, np.ptp(values, axis=1)).max()
        unit = max(float(spread) / (1 << 30), np.finfo(np.float64).tiny)
        if not unit * np.sqrt(len(values)) <= ROUNDED:
            return cls(values, values, 1.0, base)
        steps = np.rint((values - values.min(axis=1, keepdims=True)) / unit)
        return cls(values, steps.astype(np.int32), unit, base)


class Scratch(NamedTuple):
    """Working memory of one thread.

    After a division, ``draws`` holds the words of the trees' first leaves, then those of the leaves
    beyond the first of each tree, tree by tree from ``first[tree]`` on. After a walk it holds
    those of all leaves that some draw reaches, tree by tree, before ``first[tree + 1]``.
    """

    masks: Any  # uint64 (rows of masks, LANES)
    absent: Any  # uint64 (variables, LANES) draws in which a number is not recorded
    found: Any  # uint32 (64,)
    queue: Any  # uint64: sets of leaves that are still to be parted
    split: Any  # uint64 (splits, 2): entries from and to (see `both`), row of masks
    first: Any  # int64 (trees + 1,)
    leaf: Any  # int32 (entries,)
    draws: Any  # uint64 (entries, LANES)
    step: Any  # float64 or int32 (entries,)
    word: Any  # uint64 (entries,): one lane of draws
    node: Any  # int64: nodes that are still to be visited, and
    waiting: Any  # uint64 (.., LANES) their draws
    start: Any  # float64 (outputs,): margins with the first leaves of all trees
    total: Any  # float64 or int32 (64 LANES,)


def scratch_for(ensemble: Ensemble, forest: Forest, small: SmallTrees | None) -> Scratch:
    """Working memory for one thread."""
    leaves = np.diff(ensemble.leaf_start)
    divided = 2 + ensemble.n_leaves if small is not None else 0
    # A walk has no more entries of a tree than draws; a division has one of each leaf.
    n = max(divided, int(np.minimum(leaves, LANES * WORD).sum())) + 1
    return Scratch(
        masks=room(forest.n_masks, LANES).view(np.uint64),
        absent=room(len(forest.look.used), LANES).view(np.uint64),
        found=np.empty(WORD, dtype=np.uint32),
        queue=np.empty(divided, dtype=np.uint64),
        split=np.empty((divided, 2), dtype=np.uint64),
        first=np.zeros(ensemble.n_trees + 1, dtype=np.int64),
        leaf=np.empty(n, dtype=np.int32),
        draws=room(n, LANES).view(np.uint64),
        step=np.empty(n),
        word=np.empty(n, dtype=np.uint64),
        node=np.empty(forest.depth + 2, dtype=np.int64),
        waiting=np.empty((forest.depth + 2, LANES), dtype=np.uint64),
        start=np.empty(ensemble.n_outputs),
        total=room(LANES * WORD),
    )


class Reached(NamedTuple):
    """Leaves that the draws of some rows reach: the entries of all rows, tree by tree.

    ``stop`` (rows, trees) is where the entries of each row's trees end.
    """

    leaf: Any
    mask: Any
    stop: Any


# ---- masks: which draws go left ----------------------------------------------------------------


@inlined
def all_first_above(draws, v, cuts, start, cells, rulers, halvings, found):  # type: ignore[no-untyped-def]
    """The first threshold above each of 64 draws; of an infinite one the first infinite."""
    lowest, scale = rulers[v]
    first_of = cells[v]
    for draw in range(WORD):
        found[draw] = first_of[cell_of(draws[draw], lowest, scale)]
    for power in range(halvings[v] - 1, -1, -1):
        for draw in range(WORD):
            found[draw] = halved(min(draws[draw], LARGEST), found[draw], power, cuts)
    first = np.int64(start[v])
    for draw in range(WORD):
        found[draw] = settled(min(draws[draw], LARGEST), np.int64(found[draw]), first, cuts)


@inner
def fill_masks(x, draws, first_word, lanes, look, found, work):  # type: ignore[no-untyped-def]
    """Masks of some words of a row's draws (variables, draws), up to four together.

    Of a missing number: the draws below each threshold; of a missing category: those with each
    code. Masks of observed variables are not written. ``work`` is a scratch of pointers.
    """
    cuts, start, cells, rulers, halvings, offset, n_levels, used = look
    masks, absent, drawn = work.masks, work.absent, pointers(draws)
    for v in range(len(n_levels)):
        if not used[v] or not np.isnan(x[v]):
            continue
        first, stop = offset[v], offset[v + 1]
        simd.fill(shift(masks, LANES * first), 0.0, LANES * (stop - first))
        simd.fill(shift(absent, LANES * v), 0.0, LANES)
        to_row = first + 1 - np.int64(start[v])
        for lane in range(lanes):
            values = shift(drawn, v * draws.shape[1] + (first_word + lane) * WORD)
            if n_levels[v] > 0:
                for draw in range(WORD):
                    row = first + int(values[draw])
                    masks[LANES * row + lane] |= np.uint64(1) << np.uint64(draw)
                continue
            all_first_above(values, v, cuts, start, cells, rulers, halvings, found)
            for draw in range(WORD):
                bit = np.uint64(1) << np.uint64(draw)
                if values[draw] == np.inf:
                    absent[LANES * v + lane] |= bit
                else:
                    masks[LANES * (np.int64(found[draw]) + to_row) + lane] |= bit
        if n_levels[v] == 0:
            below = spread(0.0)
            for row in range(first, stop):
                below = below | load(masks, LANES * row)
                store(masks, LANES * row, below)


@inner
def fill_set_mask(node, forest, work):  # type: ignore[no-untyped-def]
    """The mask of a split with a row of its own, from those of codes, or of its threshold.

    ``forest`` and ``work`` are records of pointers.
    """
    nodes, masks = forest.nodes, work.masks
    v, set_start = np.int64(nodes.feature[node]), np.int64(nodes.set_start[node])
    goes = load(masks, LANES * np.int64(forest.cut_row[node]))
    if nodes.missing_left[node]:
        goes = goes | load(work.absent, LANES * v)
    for code in range(forest.look.n_levels[v]):
        if has(nodes.sets, set_start, code):
            goes = goes | load(masks, LANES * (forest.look.offset[v] + code))
    store(masks, LANES * np.int64(forest.mask_row[node]), goes)


# ---- small trees: draws are divided at the splits that a row has left ----------------------------


@inlined
def both(first, second):  # type: ignore[no-untyped-def]
    """Two numbers as the halves of a word."""
    return (np.uint64(first) << np.uint64(32)) | np.uint64(second)


@inlined
def first_of(word):  # type: ignore[no-untyped-def]
    """The first of :func:`both`."""
    return np.int64(word >> np.uint64(32))


@inlined
def second_of(word):  # type: ignore[no-untyped-def]
    """The second of :func:`both`."""
    return np.int64(word & np.uint64(0xFFFFFFFF))


@inner
def list_splits(sets, n_trees, small, leaves, work):  # type: ignore[no-untyped-def]
    """List the splits of a row by its sets of leaves, from the roots down; returns their number.

    A split divides the draws of one entry, at first those of a tree's first leaf: what goes right
    becomes the entry of the first leaf there, whose value beyond the first leaf's is a step. The
    values of first leaves are added to ``work.start``. Branch-free: branches would be mispredicted.
    What is still to be parted stands, with its entry and tree, where its split will be listed. All
    arguments are pointers.
    """
    parting, nodes, output = small.parting, small.node, small.output
    queue, split, step, first, start = work.queue, work.split, work.step, work.first, work.start
    values, rounded = leaves.value, leaves.rounded
    end, n, total = np.int64(n_trees), np.int64(0), 0.0
    for t in range(n_trees):
        first[t] = end
        end += np.int64(popcount(sets[t])) - 1
        queue[n], split[2 * n] = sets[t], both(t, t)
        n += several(sets[t])
        total += values[t * LEAVES + np.int64(lowest_bit(sets[t]))]
        if t + 1 == n_trees or output[t + 1] != output[t]:
            start[output[t]] += total
            total = 0.0
    first[n_trees] = end
    n_splits = end - n_trees
    for s in range(n_splits):
        part, here = queue[s], split[2 * s]
        t = second_of(here)
        tree, own = t * LEAVES, sets[t]
        lowest, highest = np.int64(lowest_bit(part)), np.int64(highest_bit(part))
        node = 2 * tree + np.int64(parting[(tree + lowest) * LEAVES + highest])
        above = part & nodes[2 * node]
        below = part ^ above
        bit = lowest_bit(above)
        before = own & ((np.uint64(1) << bit) - np.uint64(1))
        to = first[t] + np.int64(popcount(before)) - 1
        step[to] = rounded[tree + np.int64(bit)] - rounded[tree + np.int64(lowest_bit(own))]
        split[2 * s], split[2 * s + 1] = both(first_of(here), to), nodes[2 * node + 1]
        queue[n], split[2 * n] = below, here
        n += several(below)
        queue[n], split[2 * n] = above, both(to, t)
        n += several(above)
    return n_splits


@inner
def fill_set_masks(n_splits, n_masks, n_set_nodes, forest, work):  # type: ignore[no-untyped-def]
    """Masks of those listed splits that have rows of their own."""
    first = n_masks - n_set_nodes
    for s in range(n_splits if n_set_nodes > 0 else 0):
        row = np.int64(work.split[2 * s + 1])
        if row >= first:
            fill_set_mask(forest.set_nodes[row - first], forest, work)


@inner
def divide(n_trees, n_splits, lanes, work):  # type: ignore[no-untyped-def]
    """Divide the draws of some words, up to four, at all listed splits."""
    draws, masks, split = work.draws, work.masks, work.split
    for t in range(n_trees):
        for lane in range(LANES):
            draws[LANES * t + lane] = ALL if lane < lanes else np.uint64(0)
    for s in range(n_splits):
        entry, to = LANES * first_of(split[2 * s]), LANES * second_of(split[2 * s])
        here = load(draws, entry)
        left = here & load(masks, LANES * np.int64(split[2 * s + 1]))
        store(draws, entry, left)
        store(draws, to, here ^ left)


# ---- other trees: draws walk from the roots ------------------------------------------------------


@inner
def walk(x, lanes, n_trees, first_own, forest, work):  # type: ignore[no-untyped-def]
    """Find the leaves that a row's draws reach, tree by tree.

    Rows of masks from ``first_own`` on are those of set nodes; all else is pointers.
    """
    masks, draws, node, waiting = work.masks, work.draws, work.node, work.waiting
    nodes, mask_row, plain = forest.nodes, forest.mask_row, forest.plain
    count = 0
    for tree in range(n_trees):
        node[0], top = nodes.roots[tree], 0
        for lane in range(LANES):
            waiting[lane] = ALL if lane < lanes else np.uint64(0)
        while top >= 0:
            here, at = follow(x, node[top], nodes, plain), LANES * top
            a, b, c, d = waiting[at], waiting[at + 1], waiting[at + 2], waiting[at + 3]
            while nodes.feature[here] >= 0:
                row = np.int64(mask_row[here])
                if row >= first_own:
                    fill_set_mask(here, forest, work)
                left, row = np.int64(nodes.left[here]), LANES * row
                e, f = masks[row] & a, masks[row + 1] & b
                g, h = masks[row + 2] & c, masks[row + 3] & d
                goes, stays = e | f | g | h, (a ^ e) | (b ^ f) | (c ^ g) | (d ^ h)
                if goes != 0 and stays != 0:
                    node[top], at = left + 1, LANES * top
                    waiting[at], waiting[at + 1] = a ^ e, b ^ f
                    waiting[at + 2], waiting[at + 3] = c ^ g, d ^ h
                    top += 1
                    a, b, c, d = e, f, g, h
                here = follow(x, left + np.int64(goes == 0), nodes, plain)
            work.leaf[count], at = nodes.left[here], LANES * count
            draws[at], draws[at + 1], draws[at + 2], draws[at + 3] = a, b, c, d
            count += 1
            top -= 1
        work.first[tree + 1] = count


# ---- margins ------------------------------------------------------------------------------------


@inner
def add_steps(first, stop, first_lane, last_lane, work):  # type: ignore[no-untyped-def]
    """Sum the steps of entries over the draws of some lanes, to ``work.total``."""
    draws, word, total = shift(work.draws, LANES * first), work.word, work.total
    step, n = shift(work.step, first), stop - first
    for draw in range(LANES * WORD):
        total[draw] = 0
    if last_lane - first_lane == LANES:
        add_where_of_four(total, draws, step, n)
        return
    for lane in range(first_lane, last_lane):
        for entry in range(n):
            word[entry] = draws[LANES * entry + lane]
        add_where(shift(total, lane * WORD), word, step, n)


@inner
def write_divided(n_trees, output_of, unit, lanes, word, work, out):  # type: ignore[no-untyped-def]
    """Margins of divided draws; ``out`` (words, 64, outputs) has place for some of the words."""
    t = 0
    for output in range(out.shape[2]):
        first = work.first[t]
        while t < n_trees and output_of[t] == output:
            t += 1
        first_lane, last_lane = max(0, -word), min(lanes, len(out) - word)
        add_steps(first, work.first[t], first_lane, last_lane, work)
        for lane in range(first_lane, last_lane):
            for draw in range(WORD):
                steps = unit * work.total[lane * WORD + draw]
                out[word + lane, draw, output] = work.start[output] + steps


@inner
def write_walked(values, n_trees, output_of, lanes, word, work, out):  # type: ignore[no-untyped-def]
    """Margins of draws that have walked; ``values`` are (leaves, width)."""
    for lane in range(lanes):
        for draw in range(WORD):
            for output in range(out.shape[2]):
                out[word + lane, draw, output] = work.start[output]
    t = 0
    while t < n_trees:
        first, output = work.first[t], output_of[t]
        while t < n_trees and output_of[t] == output:
            t += 1
        for j in range(values.shape[1]):
            for entry in range(first, work.first[t]):
                work.step[entry] = values[work.leaf[entry], j]
            add_steps(first, work.first[t], 0, lanes, work)
            for lane in range(lanes):
                for draw in range(WORD):
                    out[word + lane, draw, output + j] += work.total[lane * WORD + draw]


@njit
def fill_margins(points, sets, draws, forest, small, leaves, scratch, out):  # type: ignore[no-untyped-def]
    """Margins of rows' own draws (rows, variables, draws), ``out`` (rows, words, 64, outputs).

    ``small`` and ``sets`` (rows, trees) are None where trees are walked.
    """
    n_words, n_splits, n_trees = out.shape[1], 0, len(forest.tree_output)
    n_masks, n_set_nodes = len(scratch.masks), len(forest.set_nodes)
    trees, work, look, found = pointers(forest), pointers(scratch), forest.look, scratch.found
    for row in range(len(points)):
        for output in range(len(leaves.base)):
            scratch.start[output] = leaves.base[output]
        if small is not None:
            own = pointers(small)
            n_splits = list_splits(pointers(sets[row]), n_trees, own, pointers(leaves), work)
        for word in range(0, n_words, LANES):
            lanes = min(LANES, n_words - word)
            fill_masks(points[row], draws[row], word, lanes, look, found, work)
            if small is not None:
                fill_set_masks(n_splits, n_masks, n_set_nodes, trees, work)
                divide(n_trees, n_splits, lanes, work)
                outputs = pointers(small.output)
                write_divided(n_trees, outputs, leaves.unit, lanes, word, work, out[row])
            else:
                walk(pointers(points[row]), lanes, n_trees, n_masks - n_set_nodes, trees, work)
                outputs = trees.tree_output
                write_walked(leaves.value, n_trees, outputs, lanes, word, work, out[row])


@njit
def fill_group_sums(sets, draws, forest, small, leaves, scratch, out):  # type: ignore[no-untyped-def]
    """Margins of rows' own draws, summed over groups of draws: ``out`` (rows, groups, outputs).

    Of small trees whose splits are plain, by the leaves that each word may reach, ``sets`` (rows,
    words, trees): draws are compared with the thresholds that part them, and the bits of each
    group are counted.
    """
    n_trees, own, work = len(small.output), pointers(small), pointers(scratch)
    n_draws, rows = draws.shape[2], pointers((forest.row_variable, forest.row_cut))
    for row in range(len(sets)):
        for group in range(GROUPS):
            for output in range(len(leaves.base)):
                out[row, group, output] = 0.0
        for word in range(sets.shape[1]):
            for output in range(len(leaves.base)):
                scratch.start[output] = leaves.base[output]
            known, drawn = pointers(sets[row, word]), shift(pointers(draws[row]), word * WORD)
            n_splits = list_splits(known, n_trees, own, pointers(leaves), work)
            divide_word(n_trees, n_splits, drawn, n_draws, rows, work)
            t = 0
            for output in range(len(leaves.base)):
                entry = scratch.first[t]
                while t < n_trees and small.output[t] == output:
                    t += 1
                for group in range(GROUPS):
                    scratch.total[group] = SIZE * scratch.start[output]
                n = scratch.first[t] - entry
                add_counts(work.total, shift(work.word, entry), shift(work.step, entry), n)
                for group in range(GROUPS):
                    out[row, group, output] += scratch.total[group]


@inlined
def divide_word(n_trees, n_splits, draws, n_draws, rows, work):  # type: ignore[no-untyped-def]
    """Divide one word of draws, (variables, n_draws) from there on, at all listed splits."""
    word, split, (variable, cut) = work.word, work.split, rows
    for t in range(n_trees):
        word[t] = ALL
    for s in range(n_splits):
        entry, row = split[2 * s], np.int64(split[2 * s + 1])
        here = word[first_of(entry)]
        left = here & below(shift(draws, n_draws * variable[row]), shift(cut, row))
        word[first_of(entry)] = left
        word[second_of(entry)] = here ^ left


@njit
def fill_reached(points, sets, draws, word, forest, small, leaves, row, scratch, out):  # type: ignore[no-untyped-def]
    """Write the leaves that a word of each row's draws reaches, with the words of those that do.

    From ``row`` on until there may be no room for another. Returns the number of entries and the
    next row.
    """
    count, n_trees, n_splits = 0, out.stop.shape[1], 0
    n_masks, n_set_nodes = len(scratch.masks), len(forest.set_nodes)
    trees, work, look, found = pointers(forest), pointers(scratch), forest.look, scratch.found
    while row < len(points) and count + len(scratch.leaf) <= len(out.leaf):
        fill_masks(points[row], draws[row], word, 1, look, found, work)
        if small is not None:
            own = pointers(small)
            n_splits = list_splits(pointers(sets[row]), n_trees, own, pointers(leaves), work)
            fill_set_masks(n_splits, n_masks, n_set_nodes, trees, work)
            divide(n_trees, n_splits, 1, work)
        else:
            walk(pointers(points[row]), 1, n_trees, n_masks - n_set_nodes, trees, work)
        for tree in range(n_trees):
            if small is not None:
                t = small.place[tree]
                rest, entry, after = sets[row, t], t, scratch.first[t]
                while rest != 0:
                    out.leaf[count] = small.leaf[t, lowest_bit(rest)]
                    out.mask[count] = scratch.draws[entry, 0]
                    count += scratch.draws[entry, 0] != 0
                    rest &= rest - np.uint64(1)
                    entry, after = after, after + 1
            else:
                for entry in range(scratch.first[tree], scratch.first[tree + 1]):
                    out.leaf[count], out.mask[count] = scratch.leaf[entry], scratch.draws[entry, 0]
                    count += 1
            out.stop[row, tree] = count
        row += 1
    return count, row


# ---- draws that all rows share ------------------------------------------------------------------


class SharedDraws(NamedTuple):
    """What the draws of some words, four together, are in each component, whatever the row.

    Attributes
    ----------
    cells : uint8 (fours, components, slots, 64 LANES)
        How many thresholds are not above a draw, as far as a byte counts.
    masks : uint64 (fours, components, set nodes, LANES)
        Draws that go left at splits with masks of their own.
    uniform : float64 (fours, 64 LANES)
        What chooses the components of draws, sorted.
    lowest : uint64 (fours, 64 LANES + 1, LANES)
        The draws with the 0, 1, ... lowest of them.
    status, below : float64, uint64 (fours, nullable variables, ...)
        The same of what chooses values that are not recorded because a missing value says so.
    """

    cells: Any
    masks: Any
    uniform: Any
    lowest: Any
    status: Any
    below: Any


class DrawOdds(NamedTuple):
    """What missing values of some rows say of nullable variables, and which splits are on these.

    Attributes
    ----------
    odds : float64 (rows, hypotheses, nullable variables)
        Those of :class:`~knothole.columns.evidence.Evidence`, infinite where a variable is not
        recorded. (0, 0, 0) where nothing is said.
    not_recorded : float64 (nullable variables, components)
        The probability of it.
    variable : int64 (rows of masks,)
        The nullable variable that a split is on, or -1.
    goes_left : bool (rows of masks,)
        Where "not recorded" goes.
    forced : uint64 (nullable variables, LANES)
        Working memory: draws in which a variable is not recorded because its missing value says so.
    """

    odds: Any
    not_recorded: Any
    variable: Any
    goes_left: Any
    forced: Any


class Slots(NamedTuple):
    """Bytes of a draw's place among thresholds, and working memory of one thread.

    Attributes
    ----------
    first : int64 (variables + 1,)
        Where the bytes of each variable's draws begin.
    cut : int64 (rows of thresholds,)
        The place of a threshold in its byte, and 256 times its slot.
    """

    first: Any
    cut: Any
    mixed: Any  # uint8 (slots, 64 LANES): bytes of the draws of a row
    asked: Any  # int64 (slots + 1,): when they were asked for last; now
    chosen: Any  # int64: components that some draws are of,
    case: Any  # int64: hypotheses that they are of,
    part: Any  # uint64 (.., LANES) and which


def slots_of(look: Lookup) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """``first`` and ``cut`` of :class:`Slots`."""
    # A number has a row more than it has thresholds on either side.
    n_cuts = np.where(look.n_levels > 0, 0, np.diff(look.offset) - 2)
    first = np.append(0, np.cumsum(-(-n_cuts // PER_BYTE)))
    row = np.arange(look.offset[-1])
    variable = np.searchsorted(look.offset, row, side="right") - 1
    more, place = np.divmod(row - look.offset[variable] - 1, PER_BYTE)
    return first, 256 * (first[variable] + more) + place + 1


def new_slots(look: Lookup) -> Slots:
    """For one thread."""
    first, cut = slots_of(look)
    return Slots(
        first,
        cut,
        mixed=room(int(first[-1]), LANES * WORD // 8).view(np.uint8),
        asked=np.zeros(int(first[-1]) + 1, dtype=np.int64),
        chosen=np.empty(WORD * LANES + 1, dtype=np.int64),
        case=np.empty(WORD * LANES + 1, dtype=np.int64),
        part=room(WORD * LANES + 1, LANES).view(np.uint64),
    )


def draws_in_components(
    uniform: Floats, status: Floats, draws: Floats, forest: Forest
) -> SharedDraws:
    """Of four words, of draws (components, variables, draws).

    ``uniform`` (draws,) chooses components, ``status`` (nullable variables, draws) what is not
    recorded; where there are none, it has one row all the same.
    """
    n, (first, _) = len(draws), slots_of(forest.look)
    cells = room(n, int(first[-1]), LANES * WORD // 8).view(np.uint8)
    masks = room(n, len(forest.set_nodes), LANES).view(np.uint64)
    found = np.empty(WORD, dtype=np.uint32)
    for word, part in enumerate(np.split(draws, LANES, axis=2)):
        fill_components(np.ascontiguousarray(part), forest, first, word, found, (cells, masks))
    uniform, lowest = _sorted(uniform)
    told, of_told = (np.stack(each) for each in zip(*map(_sorted, status), strict=True))
    arrays = cells, masks, uniform, lowest, told, of_told
    return SharedDraws(*(each[None] for each in arrays))


def _sorted(uniform: Floats) -> tuple[Floats, NDArray[np.uint64]]:
    """Numbers of the draws of four words in their order, and the draws with the lowest of them."""
    order = np.argsort(uniform, kind="stable")
    lowest = np.zeros((len(order) + 1, LANES), dtype=np.uint64)
    bits = np.uint64(1) << (order % WORD).astype(np.uint64)
    lowest[1 + np.arange(len(order)), order // WORD] = bits
    return uniform[order], np.bitwise_or.accumulate(lowest, axis=0)


@njit
def fill_components(draws, forest, slots, word, found, out):  # type: ignore[no-untyped-def]
    """What a word's draws (components, variables, 64) are in each component.

    ``out`` are bytes and masks of four words, see :class:`SharedDraws`.
    """
    cuts, start, cells, rulers, halvings, offset, n_levels, used = forest.look
    nodes, (places, masks) = forest.nodes, out
    for k in range(len(draws)):
        for i in range(len(forest.set_nodes)):
            node, goes = forest.set_nodes[i], np.uint64(0)
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
                for slot in range(slots[v], slots[v + 1]):
                    places[k, slot, word * WORD + draw] = min(max(place, 0), PER_BYTE)
                    place -= PER_BYTE


@njit
def fill_shared_margins(share, sets, shared, first, telling, slots, small, leaves, scratch, out):  # type: ignore[no-untyped-def]
    """Margins of shared draws, from a word on, ``out`` (rows, words, 64, outputs).

    ``share`` (rows, hypotheses x components) says how probable each is.
    """
    components = shared.cells.shape[1]
    n_trees, first_own = sets.shape[1], len(scratch.masks) - shared.masks.shape[2]
    work, own = pointers(scratch), pointers(small)
    for i in range(len(share)):
        for output in range(len(leaves.base)):
            scratch.start[output] = leaves.base[output]
        n_splits = list_splits(pointers(sets[i]), n_trees, own, pointers(leaves), work)
        for four in range(first // LANES, (first + out.shape[1] + LANES - 1) // LANES):
            lowest = pointers(shared.lowest[four])
            n = choose(share[i], components, shared.uniform[four], lowest, slots)
            tell_sides(n_splits, n, first_own, shared.cells[four], shared.masks[four], slots, work)
            if len(telling.odds) > 0:
                force(n, telling.odds[i], shared.status[four], shared.below[four], slots, telling)
                tell_forced(n_splits, telling, work)
            divide(n_trees, n_splits, LANES, work)
            word = four * LANES - first
            write_divided(n_trees, own.output, leaves.unit, LANES, word, work, out[i])


@apart
def tell_sides(n_splits, n, first_own, cells, masks, slots, work):  # type: ignore[no-untyped-def]
    """Masks of the splits of a row, of ``n`` components that are chosen."""
    cells_, masks_, mixed = pointers((cells, masks, slots.mixed))
    part, cut, asked, chosen = pointers((slots.part, slots.cut, slots.asked, slots.chosen))
    size, n_own = cells.shape[1] * LANES * WORD, masks.shape[1]
    now = asked[cells.shape[1]] + 1
    asked[cells.shape[1]] = now
    for s in range(n_splits):
        row = np.int64(work.split[2 * s + 1])
        goes = shift(work.masks, LANES * row)
        if row < first_own:
            slot = cut[row] >> 8
            at = slot * LANES * WORD
            if asked[slot] != now:
                asked[slot] = now
                for k in range(n):
                    theirs = shift(cells_, chosen[k] * size + at)
                    put_where(shift(mixed, at), theirs, shift(part, LANES * k))
            mark_below(goes, shift(mixed, at), cut[row])
        else:
            below = spread(0.0)
            for k in range(n):
                theirs = load(masks_, LANES * (chosen[k] * n_own + row - first_own))
                below = below | (theirs & load(part, LANES * k))
            store(goes, 0, below)


@apart
def force(n, odds, status, below, slots, telling):  # type: ignore[no-untyped-def]
    """Choose the draws in which a variable is not recorded because its missing value says so.

    Given the component, a missing value says with probability 1 / (1 + odds of the rest) that
    nothing was recorded, and otherwise nothing: then the component's own draw stands.
    """
    part, forced = pointers((slots.part, telling.forced))
    for u in range(odds.shape[1]):
        told = spread(0.0)
        for i in range(n):
            more = (odds[slots.case[i], u] - 1.0) * telling.not_recorded[u, slots.chosen[i]]
            if more <= 0.0:
                continue
            share = 1.0 if more == np.inf else more / (1.0 + more)
            count = np.searchsorted(status[u], share)
            told = told | (load(part, LANES * i) & load(pointers(below[u]), LANES * count))
        store(forced, LANES * u, told)


@apart
def tell_forced(n_splits, telling, work):  # type: ignore[no-untyped-def]
    """Let draws that are not recorded go where such values go, at the splits of a row."""
    forced = pointers(telling.forced)
    for s in range(n_splits):
        row = np.int64(work.split[2 * s + 1])
        u = telling.variable[row]
        if u >= 0:
            draws, goes = load(forced, LANES * u), load(work.masks, LANES * row)
            with_them = goes | draws
            store(
                work.masks, LANES * row, with_them if telling.goes_left[row] else with_them ^ draws
            )


@inlined
def choose(share, components, uniform, lowest, slots):  # type: ignore[no-untyped-def]
    """The components that some draws are of, and which, given their shares; returns how many.

    A component has the draws whose first coordinates lie from where the one before it ends, and the
    last that is possible at all has the rest.
    """
    part = pointers(slots.part)
    last = len(share) - 1
    while last > 0 and not share[last] > 0.0:
        last -= 1
    reached, before, n = 0.0, 0, 0
    for k in range(last + 1):
        reached += share[k]
        now = len(uniform) if k == last else before
        while now < len(uniform) and uniform[now] < reached:
            now += 1
        slots.chosen[n], slots.case[n] = k % components, k // components
        draws = load(lowest, LANES * now) ^ load(lowest, LANES * before)
        store(part, LANES * n, draws)
        n += now > before
        before = now
    return n


# ---- a single missing number under a mixture: no draws, and no error -----------------------------


@njit
def fill_cells(sets, share, small, leaf_values, first, mass, margins, weight):  # type: ignore[no-untyped-def]
    """Margins (rows, cells, outputs) and masses (rows, cells) of rows that lack one number.

    Between two thresholds all values of the number have the same margin. From one leaf of a tree's
    set to the next, it changes at the threshold where they part. ``first`` is the first of the
    number's masks, ``mass`` (components, cells) what each component gives to its cells.
    """
    values, base = leaf_values.value, leaf_values.base
    n_rows, n_cells, n_outputs = margins.shape
    for i in range(n_rows):
        for cell in range(n_cells):
            weight[i, cell] = 0.0
            for output in range(n_outputs):
                margins[i, cell, output] = base[output] if cell == 0 else 0.0
        for k in range(len(mass)):
            if share[i, k] >= LEAST_SHARE:
                for cell in range(n_cells):
                    weight[i, cell] += share[i, k] * mass[k, cell]
        for t in range(sets.shape[1]):
            output, leaves = small.output[t], sets[i, t]
            last = np.int64(lowest_bit(leaves))
            margins[i, 0, output] += values[t, last]
            leaves &= leaves - np.uint64(1)
            while leaves != 0:
                bit = np.int64(lowest_bit(leaves))
                node = np.int64(small.parting[t, last, bit])
                cell = np.int64(small.node[t, node, 1]) - first
                margins[i, cell, output] += values[t, bit] - values[t, last]
                last = bit
                leaves &= leaves - np.uint64(1)
        for cell in range(1, n_cells):
            for output in range(n_outputs):
                margins[i, cell, output] += margins[i, cell - 1, output]


@njit
def add_cells(weight, values, out):  # type: ignore[no-untyped-def]
    """Means of values (rows, cells, outputs), weighted (rows, cells)."""
    for i in range(len(out)):
        total = 0.0
        for cell in range(weight.shape[1]):
            total += weight[i, cell]
        for cell in range(weight.shape[1]):
            part = weight[i, cell] / total
            for output in range(out.shape[1]):
                out[i, output] += part * values[i, cell, output]
