"""Kernels of :mod:`knothole.expectation.exact.product`.

``nodes`` is the record that :func:`knothole.expectation.engine.node_arrays` makes; functions that
are
called at every node take its arrays as pointers (:mod:`knothole.compiled.pointers`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from knothole.compiled.bits import has, highest_bit, lowest_bit, popcount
from knothole.compiled.pointers import pointers, shift
from knothole.compiled.policy import inlined, njit
from knothole.compiled.simd import AT_ONCE, dot, fill, load, spread, store, total, whole
from knothole.expectation.leaf_sets import LEAVES, TREES, read_sets

# Rows that walk a tree one after the other, so that the tree's q stays in cache.
ROWS = 256
# Splits on holes, of some of these rows, whose sides are added up together.
SPLITS = 256


@inlined
def observed_right(x, node, cut, missing_left, set_start, sets):  # type: ignore[no-untyped-def]
    """Whether an observed value of a variable goes right: number, code, or not recorded (inf)."""
    start = set_start[node]
    if start < 0:
        if x == np.inf:
            return not missing_left[node]
        return x >= cut[node]
    return not has(sets, start, int(x))


@inlined
def follow(x, node, nodes, plain):  # type: ignore[no-untyped-def]
    """The first node from ``node`` on that is a leaf, or splits on a hole of the row ``x``.

    ``plain`` says that every split is numeric and nothing is "not recorded".
    """
    while nodes.feature[node] >= 0:
        value = x[nodes.feature[node]]
        if np.isnan(value):
            break
        if plain:
            node = nodes.left[node] + (value >= nodes.cut[node])
        else:
            node = nodes.left[node] + observed_right(
                value, node, nodes.cut, nodes.missing_left, nodes.set_start, nodes.sets
            )
    return node


@inlined
def divide(weight, go_left, left, right, n):  # type: ignore[no-untyped-def]
    """Divide ``n`` weights into what goes left and what goes right at a split on a hole."""
    for k in range(0, n, AT_ONCE):
        here = load(weight, k)
        part = here * load(go_left, k)
        store(left, k, part)
        store(right, k, here - part)


class Trees(NamedTuple):
    """The trees, and what a mixture says at their nodes whatever the row."""

    nodes: Any
    go_left: Any  # (nodes, components) q
    below: Any  # (nodes, components) the value expected where both children are leaves
    plain: bool  # see `follow`
    n: int  # components, a multiple of four


class Slots(NamedTuple):
    """A stack of what goes right at holes."""

    node: Any  # (slots,)
    weight: Any  # (slots, components)


@inlined
def descend(x, node, weight, top, trees, slots, to_twins):  # type: ignore[no-untyped-def]
    """Go down to the next leaf; at a hole the right part of the weights stays in its slot.

    The left part goes on in the next slot. ``to_twins`` says to stop where both children are
    leaves. Returns where it ends, its weights, and the top of the stack.
    """
    nodes, n = trees.nodes, trees.n
    node = follow(x, node, nodes, trees.plain)
    while nodes.feature[node] >= 0 and not (to_twins and nodes.twins[node]):
        right = shift(slots.weight, top * n)
        left = shift(right, n)
        divide(weight, shift(trees.go_left, node * n), left, right, n)
        slots.node[top] = nodes.left[node] + 1
        top += 1
        weight = left
        node = follow(x, nodes.left[node], nodes, trees.plain)
    return node, weight, top


@njit
def add_margin(points, weights, trees, leaves, slots, out):  # type: ignore[no-untyped-def]
    """Add the expected margin of each row to ``out`` (rows, outputs): Prop. 1, no reach kept."""
    n_rows, n_columns = points.shape
    n, n_trees = trees.n, len(trees.nodes.roots)
    width, n_outputs = leaves.value.shape[1], out.shape[1]
    points_, weights_, trees_, leaves_ = pointers((points, weights, trees, leaves))
    slots_, out_ = pointers((slots, out))
    nodes = trees_.nodes
    for start in range(0, n_rows, ROWS):
        stop = min(start + ROWS, n_rows)
        for tree in range(n_trees):
            for row in range(start, stop):
                x = shift(points_, row * n_columns)
                margin = shift(out_, row * n_outputs + leaves_.output[tree])
                node, weight, top = nodes.roots[tree], shift(weights_, row * n), 0
                expected = 0.0
                while True:
                    node, weight, top = descend(x, node, weight, top, trees_, slots_, width == 1)
                    if nodes.feature[node] >= 0:
                        expected += dot(weight, shift(trees_.below, node * n), n)
                    else:
                        reach = whole(weight, n)
                        leaf = nodes.left[node] * width
                        expected += reach * leaves_.value[leaf]
                        for j in range(1, width):
                            margin[j] += reach * leaves_.value[leaf + j]
                    top -= 1
                    if top < 0:
                        break
                    node, weight = slots_.node[top], shift(slots_.weight, top * n)
                margin[0] += expected


@njit
def emit_reach(points, weights, trees, leaves, slots, at, out):  # type: ignore[no-untyped-def]
    """Write (row, leaf, reach) of a chunk of rows, tree by tree, until ``out`` is full.

    The walk of :func:`add_margin`, with the reach of leaves kept. Starts ``at`` (tree, row);
    returns the number of entries and where to go on.
    """
    tree, row = at
    n_rows, n_columns = points.shape
    n, n_trees, capacity = trees.n, len(trees.nodes.roots), len(out[0])
    points_, weights_, trees_, slots_, out_ = pointers((points, weights, trees, slots, out))
    rows, leaf, reach = out_
    nodes = trees_.nodes
    count = 0
    while tree < n_trees:
        room = leaves.start[tree + 1] - leaves.start[tree]
        while row < n_rows:
            if count + room > capacity:
                return count, (tree, row)
            x = shift(points_, row * n_columns)
            node, weight, top = nodes.roots[tree], shift(weights_, row * n), 0
            while True:
                node, weight, top = descend(x, node, weight, top, trees_, slots_, False)
                rows[count] = row
                leaf[count] = nodes.left[node]
                reach[count] = whole(weight, n)
                count += 1
                top -= 1
                if top < 0:
                    break
                node, weight = slots_.node[top], shift(slots_.weight, top * n)
            row += 1
        row = 0
        tree += 1
    return count, (tree, row)


class Room(NamedTuple):
    """Working memory of :func:`add_expected`, :func:`add_sums` and :func:`place_reach`.

    What rows have left of a tree is divided split by split, those of some rows together: ``word``
    are the leaves that a split parts, ``step`` what the first of them on its right adds to the
    first of all. ``left`` and ``right`` are where its sides are divided further, 0 for a leaf.
    """

    sets: Any  # (ROWS, trees) see `read_sets`
    known: Any  # (ROWS,) the first leaves of all trees
    given: Any  # (ROWS, components) what holes are expected to add to them, given the component
    value: Any  # (LEAVES,) of a tree's leaves
    row: Any  # (SPLITS,) of the first splits of trees
    word: Any  # (SPLITS,)
    node: Any
    step: Any
    left: Any
    right: Any
    added: Any  # (SPLITS, components) what is expected to be added below a split; nothing at 0
    part: Any  # (SPLITS, components) what comes to a split of the row's weights
    sums: Any  # (LEAVES, 2) of what comes to a tree's leaves, and of it times the target
    first: Any  # (ROWS,) where the reach of each row begins
    reach: Any  # (ROWS * LEAVES,) of the leaves that rows have left of a tree


@njit
def add_expected(points, weights, trees, go_left, value, room, out):  # type: ignore[no-untyped-def]
    """Add the expected margin of each row to ``out`` (rows, outputs): Prop. 1, by sets of leaves.

    What a tree is expected to give, given the component, comes from its leaves upwards. It does
    not depend on the row's weights: they meet the sum over all trees.
    """
    n_rows, n, n_trees = len(points), go_left.shape[1], len(trees.root)
    weights_, go_left_, value_, room_ = pointers((weights, go_left, value, room))
    leaves, given = pointers(trees.leaf), room_.given
    for start in range(0, n_rows, ROWS):
        n_block = min(ROWS, n_rows - start)
        for i in range(n_block):
            read_sets(points[start + i], trees, room.sets[i, :n_trees])
            room.known[i] = 0.0
        fill(given, 0.0, n_block * n)
        for tree in range(n_trees):
            for bit in range(LEAVES):
                room_.value[bit] = value_[leaves[tree * LEAVES + bit]]
            i = 0
            while i < n_block:
                i, first = begin(i, n_block, tree, room_)
                last = find_splits(first, tree, trees, room_)
                go = shift(go_left_, trees.root[tree] * n)
                for split in range(last - 1, first - 1, -1):
                    join_sides(shift(room_.added, split * n), split, go, room_, n, False)
                for split in range(1, first):
                    join_sides(shift(given, room_.row[split] * n), split, go, room_, n, True)
        for i in range(n_block):
            of_holes = dot(shift(weights_, (start + i) * n), shift(given, i * n), n)
            out[start + i, trees.output] += room.known[i] + of_holes


@inlined
def begin(i, n_rows, tree, room):  # type: ignore[no-untyped-def]
    """Start with what rows from ``i`` on have left of a tree, as many as there is room for.

    Returns the next row, and how many splits there are, with that at 0 which is none.
    """
    n, left = np.int64(1), np.int64(SPLITS - 1)
    while i < n_rows and left >= LEAVES:
        word = room.sets[i * TREES + tree]
        room.known[i] += room.value[lowest_bit(word)]
        room.word[n], room.row[n] = word, i
        n += several(word)
        left -= np.int64(popcount(word)) - 1
        i += 1
    return i, n


@inlined
def several(word):  # type: ignore[no-untyped-def]
    """1 where a set has more than one leaf, else 0."""
    return np.int64(word & (word - np.uint64(1)) != 0)


@inlined
def find_splits(n, tree, trees, room):  # type: ignore[no-untyped-def]
    """Find all splits below the ``n`` first ones, parents before their children.

    Without branches: what a row has left cannot be guessed. Returns how many there are.
    """
    parting, beyond = pointers((trees.parting, trees.right))
    parting, beyond = shift(parting, tree * LEAVES * LEAVES), shift(beyond, 2 * tree * LEAVES)
    split = 1
    while split < n:
        word = room.word[split]
        first = np.int64(lowest_bit(word))
        node = np.int64(parting[first * LEAVES + np.int64(highest_bit(word))])
        above = word & beyond[node]
        below = word ^ above
        room.node[split] = node
        room.step[split] = room.value[lowest_bit(above)] - room.value[first]
        room.word[n] = below
        room.left[split] = n * several(below)
        n += several(below)
        room.word[n] = above
        room.right[split] = n * several(above)
        n += several(above)
        split += 1
    return n


@inlined
def join_sides(out, split, go_left, room, n, adds):  # type: ignore[no-untyped-def]
    """What both sides of a split are expected to add, for each component, to or into ``out``."""
    step, go = spread(room.step[split]), shift(go_left, room.node[split] * n)
    left, right = shift(room.added, room.left[split] * n), shift(room.added, room.right[split] * n)
    for k in range(0, n, AT_ONCE):
        there = load(right, k) + step
        both = there + load(go, k) * (load(left, k) - there)
        if adds:
            both = load(out, k) + both
        store(out, k, both)


@njit
def add_sums(points, weights, trees, go_left, rows, room, out):  # type: ignore[no-untyped-def]
    """Add rows' weighted reach, and reach times target, to ``out`` (leaves, 2): Prop. 2, by sets.

    ``rows`` (rows, 2) are the rows' own weights, and those times their targets.
    """
    n_rows, n, n_trees = len(points), go_left.shape[1], len(trees.root)
    weights_, go_left_, room_ = pointers((weights, go_left, room))
    for start in range(0, n_rows, ROWS):
        n_block = min(ROWS, n_rows - start)
        for i in range(n_block):
            read_sets(points[start + i], trees, room.sets[i, :n_trees])
        own = shift(weights_, start * n)
        for tree in range(n_trees):
            count = np.int64(0)
            for i in range(n_block):
                room_.first[i] = count
                count += np.int64(popcount(room_.sets[i * TREES + tree]))
            fill(room_.reach, 0.0, count)
            fill(room_.sums, 0.0, 2 * LEAVES)
            out_ = room_.first, room_.reach
            find_reach(n_block, tree, trees, own, go_left_, room_, out_, n)
            e = 0
            for i in range(n_block):
                word = room_.sets[i * TREES + tree]
                while word != 0:
                    bit = lowest_bit(word)
                    room.sums[bit, 0] += room_.reach[e] * rows[start + i, 0]
                    room.sums[bit, 1] += room_.reach[e] * rows[start + i, 1]
                    word &= word - np.uint64(1)
                    e += 1
            for bit in range(LEAVES):
                for j in range(2):
                    out[trees.leaf[tree, bit], j] += room.sums[bit, j]


@njit
def place_reach(weights, trees, go_left, room, start, first, leaf, reach):  # type: ignore[no-untyped-def]
    """Write the leaves of ROWS rows from ``start`` on, or fewer, and add their reach.

    Their sets are in ``room``; ``first`` (trees, all rows) is where those of a row and tree begin.
    """
    n_rows, n = len(weights), go_left.shape[1]
    weights_, go_left_, room_, leaf_, reach_ = pointers((weights, go_left, room, leaf, reach))
    for tree in range(len(trees.root)):
        own = shift(pointers(first), tree * first.shape[1] + start)
        find_reach(n_rows, tree, trees, weights_, go_left_, room_, (own, reach_), n)
        for row in range(n_rows):
            word, e = room_.sets[row * TREES + tree], own[row]
            while word != 0:
                leaf_[e] = trees.leaf[tree, lowest_bit(word)]
                word &= word - np.uint64(1)
                e += 1


@inlined
def find_reach(n_rows, tree, trees, weights, go_left, room, out, n):  # type: ignore[no-untyped-def]
    """Add the reach of the leaves that rows have left of a tree, from left to right.

    ``out`` is where those of each row begin, and what they are added to.
    """
    first, reach = out
    go = shift(go_left, trees.root[tree] * n)
    i, known = 0, 0
    while i < n_rows:
        i, roots = begin(i, n_rows, tree, room)
        last = find_splits(roots, tree, trees, room)
        for row in range(known, i):  # all of a row comes to a leaf that is the only one
            reach[first[row]] += float(1 - several(room.sets[row * TREES + tree]))
        known = i
        for split in range(1, roots):
            weight = shift(weights, room.row[split] * n)
            part_sides(weight, split, tree, trees, go, room, out, n)
        for split in range(roots, last):
            weight = shift(room.part, split * n)
            part_sides(weight, split, tree, trees, go, room, out, n)


@inlined
def part_sides(weight, split, tree, trees, go_left, room, out, n):  # type: ignore[no-untyped-def]
    """Part what comes to a split into what goes left and right: to other splits, or to leaves."""
    node, word, row = room.node[split], room.word[split], room.row[split]
    left, right = room.left[split], room.right[split]
    go = shift(go_left, node * n)
    below, above = shift(room.part, left * n), shift(room.part, right * n)
    reach_below, reach_above = spread(0.0), spread(0.0)
    for k in range(0, n, AT_ONCE):
        here = load(weight, k)
        goes = here * load(go, k)
        stays = here - goes
        store(below, k, goes)
        store(above, k, stays)
        reach_below, reach_above = reach_below + goes, reach_above + stays
    room.row[left], room.row[right] = row, row
    among, reach = room.sets[row * TREES + tree], shift(out[1], out[0][row])
    reach[rank(word, among)] += total(reach_below) if left == 0 else 0.0
    last = word & trees.right[tree, node]
    reach[rank(last, among)] += total(reach_above) if right == 0 else 0.0


@inlined
def rank(word, among):  # type: ignore[no-untyped-def]
    """How many leaves of a set come before the first of another one in it."""
    return np.int64(popcount(among & ((word & -word) - np.uint64(1))))
