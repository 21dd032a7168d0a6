"""Kernels of :mod:`knothole.reach.product`.

``nodes`` is the record that :func:`knothole.reach.engine.node_arrays` makes; functions that are
called at every node take its arrays as pointers (:mod:`knothole.reach.pointers`).
"""

from __future__ import annotations

import numpy as np

from knothole.compiled import inlined, njit

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
    code = int(x)
    return (sets[start + (code >> 6)] >> np.uint64(code & 63)) & np.uint64(1) == 0


@inlined
def follow(x, node, nodes):  # type: ignore[no-untyped-def]
    """The first node from ``node`` on that is a leaf, or splits on a hole of the row ``x``."""
    while nodes.feature[node] >= 0:
        value = x[nodes.feature[node]]
        if np.isnan(value):
            break
        node = nodes.left[node] + observed_right(
            value, node, nodes.cut, nodes.missing_left, nodes.set_start, nodes.sets
        )
    return node


@njit
def add_margin(  # type: ignore[no-untyped-def]
    points, weights, nodes, plain, go_left, below, value, tree_output, slot_node, slot_weight, out,
):  # fmt: skip
    """Add the expected margin of each row to ``out`` (rows, outputs): Prop. 1, no reach kept.

    ``slot_weight`` is a stack of weight vectors: at a hole the right part stays in its slot and
    the left part goes on in the next. ``below`` holds, for nodes whose children are both leaves,
    the value that each component expects there. ``plain`` says that every split is numeric and
    nothing is "not recorded".
    """
    roots, feature, cut, left, missing_left, set_start, sets, twins = nodes
    n_rows, n_components = weights.shape
    width = value.shape[1]
    for start in range(0, n_rows, ROWS):
        stop = min(start + ROWS, n_rows)
        for tree in range(len(roots)):
            output = tree_output[tree]
            for row in range(start, stop):
                slot_node[0] = roots[tree]
                for k in range(n_components):
                    slot_weight[0, k] = weights[row, k]
                expected = 0.0
                top = 0
                while top >= 0:
                    node = slot_node[top]
                    while True:
                        v = feature[node]
                        if v < 0:
                            reach = 0.0
                            for k in range(n_components):
                                reach += slot_weight[top, k]
                            expected += reach * value[left[node], 0]
                            for j in range(1, width):
                                out[row, output + j] += reach * value[left[node], j]
                            top -= 1
                            break
                        x = points[row, v]
                        if np.isnan(x):
                            if twins[node] and width == 1:
                                for k in range(n_components):
                                    expected += slot_weight[top, k] * below[node, k]
                                top -= 1
                                break
                            for k in range(n_components):
                                part = slot_weight[top, k] * go_left[node, k]
                                slot_weight[top + 1, k] = part
                                slot_weight[top, k] -= part
                            slot_node[top] = left[node] + 1
                            node = left[node]
                            top += 1
                        elif plain:
                            node = left[node] + (x >= cut[node])
                        else:
                            node = left[node] + observed_right(
                                x, node, cut, missing_left, set_start, sets
                            )
                out[row, output] += expected


@njit
def emit_reach(  # type: ignore[no-untyped-def]
    points, weights, nodes, leaf_start, go_left, tree, row, slot_node, slot_weight, out_row,
    out_leaf, out_reach,
):  # fmt: skip
    """Write (row, leaf, reach) of a block of rows, tree by tree, until ``out`` is full.

    The walk of :func:`add_margin`, with the reach of leaves kept. Starts at (``tree``, ``row``);
    returns the number of entries and where to go on.
    """
    roots, feature, cut, left, missing_left, set_start, sets, _ = nodes
    n_rows, n_components = weights.shape
    count = 0
    while tree < len(roots):
        room = leaf_start[tree + 1] - leaf_start[tree]
        while row < n_rows:
            if count + room > len(out_leaf):
                return count, tree, row
            slot_node[0] = roots[tree]
            for k in range(n_components):
                slot_weight[0, k] = weights[row, k]
            top = 0
            while top >= 0:
                node = slot_node[top]
                while True:
                    v = feature[node]
                    if v < 0:
                        reach = 0.0
                        for k in range(n_components):
                            reach += slot_weight[top, k]
                        out_row[count] = row
                        out_leaf[count] = left[node]
                        out_reach[count] = reach
                        count += 1
                        top -= 1
                        break
                    x = points[row, v]
                    if np.isnan(x):
                        for k in range(n_components):
                            part = slot_weight[top, k] * go_left[node, k]
                            slot_weight[top + 1, k] = part
                            slot_weight[top, k] -= part
                        slot_node[top] = left[node] + 1
                        node = left[node]
                        top += 1
                    else:
                        node = left[node] + observed_right(
                            x, node, cut, missing_left, set_start, sets
                        )
            row += 1
        row = 0
        tree += 1
    return count, tree, row
