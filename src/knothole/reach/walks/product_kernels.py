"""Kernels of :mod:`knothole.reach.walks.product`.

``nodes`` is the record that :func:`knothole.reach.engine.node_arrays` makes; functions that are
called at every node take its arrays as pointers (:mod:`knothole.compiled.pointers`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from knothole.compiled.bits import has, lowest_bit
from knothole.compiled.pointers import pointers, shift
from knothole.compiled.policy import inlined, njit
from knothole.compiled.simd import AT_ONCE, add, dot, fill, load, spread, store, whole
from knothole.reach.leaf_sets import LEAVES, read_sets

# Rows that walk a tree one after the other, so that the tree's q stays in cache.
ROWS = 64


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
    """Working memory of :func:`add_expected`."""

    sets: Any  # (ROWS, trees) see `read_sets`
    known: Any  # (ROWS,) of leaves that rows are sure to reach
    given: Any  # (ROWS, components) expected values of other trees, given the component
    node: Any  # (LEAVES,) a stack: the hole whose right side is being looked at,
    leaf: Any  # and the leaf on its left, or -1 where there are several:
    left: Any  # (LEAVES, components) what is expected there
    same: Any  # (2, AT_ONCE) of leaves: the same number for all components


@njit
def add_expected(points, weights, trees, go_left, value, room, out):  # type: ignore[no-untyped-def]
    """Add the expected margin of each row to ``out`` (rows, outputs): Prop. 1, by sets of leaves.

    What a tree is expected to give, given the component, comes from its leaves upwards. It does
    not depend on the row's weights: they meet the sum over all trees.
    """
    n_rows, n, n_trees = len(points), go_left.shape[1], len(trees.root)
    weights_, go_left_, value_, room_ = pointers((weights, go_left, value, room))
    leaves, parting = pointers((trees.leaf, trees.parting))
    for start in range(0, n_rows, ROWS):
        n_block = min(ROWS, n_rows - start)
        for i in range(n_block):
            read_sets(points[start + i], trees, room.sets[i, :n_trees])
            room.known[i] = 0.0
        fill(room_.given, 0.0, n_block * n)
        for tree in range(n_trees):
            leaf = shift(leaves, tree * LEAVES)
            parts = shift(parting, tree * LEAVES * LEAVES)
            below = shift(go_left_, trees.root[tree] * n)
            for i in range(n_block):
                word = room.sets[i, tree]
                if word & (word - np.uint64(1)) == 0:
                    room.known[i] += value_[leaf[lowest_bit(word)]]
                else:
                    found = fold(word, leaf, parts, below, value_, room_, n)
                    add(shift(room_.given, i * n), found, n)
        for i in range(n_block):
            given = dot(shift(weights_, (start + i) * n), shift(room_.given, i * n), n)
            out[start + i, trees.output] += room.known[i] + given


@inlined
def fold(word, leaf, parting, go_left, value, room, n):  # type: ignore[no-untyped-def]
    """What the leaves of a set are expected to give, for each component.

    From left to right: once all leaves below a hole have been met, its two sides are one.
    """
    last, top = np.int64(lowest_bit(word)), 0
    right = room.left
    single = True  # whether what was found last is a leaf
    while True:
        word &= word - np.uint64(1)
        next_leaf, node = np.int64(0), np.int64(-1)
        if word != 0:
            next_leaf = np.int64(lowest_bit(word))
            node = np.int64(parting[last * LEAVES + next_leaf])
        while top > 0 and room.node[top - 1] > node:
            top -= 1
            both = shift(room.left, top * n)
            left, left_step, right_step = both, 1, 1
            if room.leaf[top] >= 0:
                left, left_step = room.same, 0
                store(left, 0, spread(value[room.leaf[top]]))
            if single:
                right, right_step = shift(room.same, AT_ONCE), 0
                store(right, 0, spread(value[leaf[last]]))
            go = shift(go_left, room.node[top] * n)
            for k in range(0, n, AT_ONCE):
                there = load(right, k * right_step)
                store(both, k, there + load(go, k) * (load(left, k * left_step) - there))
            right, single = both, False
        if node < 0:
            return right
        room.node[top] = node
        room.leaf[top] = leaf[last] if single else -1
        top += 1
        last, single = next_leaf, True
