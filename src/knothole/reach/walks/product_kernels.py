"""Kernels of :mod:`knothole.reach.walks.product`.

``nodes`` is the record that :func:`knothole.reach.engine.node_arrays` makes; functions that are
called at every node take its arrays as pointers (:mod:`knothole.compiled.pointers`).
"""

from __future__ import annotations

import numpy as np

from knothole.compiled.bits import has
from knothole.compiled.pointers import pointers, shift
from knothole.compiled.policy import inlined, njit
from knothole.compiled.simd import LANES, dot, load, store, whole

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
    for k in range(0, n, LANES):
        here = load(weight, k)
        part = here * load(go_left, k)
        store(left, k, part)
        store(right, k, here - part)


@njit
def add_margin(  # type: ignore[no-untyped-def]
    points, weights, nodes, plain, go_left, below, value, tree_output, slot_node, slot_weight, out,
):  # fmt: skip
    """Add the expected margin of each row to ``out`` (rows, outputs): Prop. 1, no reach kept.

    ``slot_weight`` is a stack of weight vectors: at a hole the right part stays in its slot and
    the left part goes on in the next. ``below`` holds, for nodes whose children are both leaves,
    the value that each component expects there. The number of components is a multiple of four.
    """
    n_rows, n_columns = points.shape
    n, n_trees = weights.shape[1], len(nodes.roots)
    width, n_outputs = value.shape[1], out.shape[1]
    points_, weights_, nodes_, q, below_ = pointers((points, weights, nodes, go_left, below))
    value_, slot_node_, slots, out_ = pointers((value, slot_node, slot_weight, out))
    for start in range(0, n_rows, ROWS):
        stop = min(start + ROWS, n_rows)
        for tree in range(n_trees):
            output = tree_output[tree]
            for row in range(start, stop):
                x = shift(points_, row * n_columns)
                margin = shift(out_, row * n_outputs + output)
                node = nodes_.roots[tree]
                weight = shift(weights_, row * n)
                expected = 0.0
                top = 0
                while True:
                    node = follow(x, node, nodes_, plain)
                    if nodes_.feature[node] >= 0 and not (nodes_.twins[node] and width == 1):
                        slot = shift(slots, top * n)
                        divide(weight, shift(q, node * n), shift(slot, n), slot, n)
                        slot_node_[top] = nodes_.left[node] + 1
                        node = nodes_.left[node]
                        top += 1
                        weight = shift(slot, n)
                        continue
                    if nodes_.feature[node] >= 0:
                        expected += dot(weight, shift(below_, node * n), n)
                    else:
                        reach = whole(weight, n)
                        leaf = nodes_.left[node] * width
                        expected += reach * value_[leaf]
                        for j in range(1, width):
                            margin[j] += reach * value_[leaf + j]
                    top -= 1
                    if top < 0:
                        break
                    node = slot_node_[top]
                    weight = shift(slots, top * n)
                margin[0] += expected


@njit
def emit_reach(  # type: ignore[no-untyped-def]
    points, weights, nodes, leaf_start, plain, go_left, tree, row, slot_node, slot_weight,
    out_row, out_leaf, out_reach,
):  # fmt: skip
    """Write (row, leaf, reach) of a block of rows, tree by tree, until ``out`` is full.

    The walk of :func:`add_margin`, with the reach of leaves kept. Starts at (``tree``, ``row``);
    returns the number of entries and where to go on.
    """
    n_rows, n_columns = points.shape
    n, n_trees, capacity = weights.shape[1], len(nodes.roots), len(out_leaf)
    points_, weights_, nodes_, q = pointers((points, weights, nodes, go_left))
    slot_node_, slots = pointers((slot_node, slot_weight))
    rows, leaves, reaches = pointers((out_row, out_leaf, out_reach))
    count = 0
    while tree < n_trees:
        room = leaf_start[tree + 1] - leaf_start[tree]
        while row < n_rows:
            if count + room > capacity:
                return count, tree, row
            x = shift(points_, row * n_columns)
            node = nodes_.roots[tree]
            weight = shift(weights_, row * n)
            top = 0
            while True:
                node = follow(x, node, nodes_, plain)
                if nodes_.feature[node] >= 0:
                    slot = shift(slots, top * n)
                    divide(weight, shift(q, node * n), shift(slot, n), slot, n)
                    slot_node_[top] = nodes_.left[node] + 1
                    node = nodes_.left[node]
                    top += 1
                    weight = shift(slot, n)
                    continue
                rows[count] = row
                leaves[count] = nodes_.left[node]
                reaches[count] = whole(weight, n)
                count += 1
                top -= 1
                if top < 0:
                    break
                node = slot_node_[top]
                weight = shift(slots, top * n)
            row += 1
        row = 0
        tree += 1
    return count, tree, row
