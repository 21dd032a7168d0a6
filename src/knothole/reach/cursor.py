"""Kernels that walk with the regions of holes in hand, under a mixture of products.

A *cursor* goes through the leaves of one tree that a row can reach, depth first. It carries the
components' weights and the region of every hole, so a second cursor can start inside a leaf of the
first and walk another tree there: that is pair reach (Lemma 2). It also starts from any region,
such as a one-hot block observed in part.

Arrays travel in tuples, because kernels take many of them:

``nodes``   as in :mod:`knothole.reach.product_kernels`
``tables``  position, offset, mass, absent (:class:`~knothole.reach.tables.Tables`), n_levels, and
            set_offset, the first word of each variable in ``region``'s sets
``region``  of each variable: low and high (grid positions), recorded (whether "not recorded" is
            excluded); sets, the bits of the codes that remain
``stack``   of frames: node, phase, saved low, high, recorded and set, weight (frames + 1,
            components), and top
"""

from __future__ import annotations

import numpy as np

from knothole.compiled import inlined, njit
from knothole.reach.product_kernels import observed_right

# What is left to do in a frame.
ENTER, RIGHT, LEAVE = 0, 1, 2


@inlined
def reset_region(region, tables, allowed, row):  # type: ignore[no-untyped-def]
    """Every hole may be anything, but for what ``allowed`` (rows, words) says of its set."""
    low, high, recorded, sets = region
    _, offset, _, _, _, _ = tables
    for v in range(len(low)):
        low[v] = 0
        high[v] = offset[v + 1] - offset[v] - 1
        recorded[v] = False
    for word in range(len(sets)):
        sets[word] = allowed[row, word]


@inlined
def place(stack, root, weights, n_components):  # type: ignore[no-untyped-def]
    """Put a cursor before the first leaf below ``root``."""
    node, phase, _, _, _, _, weight, top = stack
    node[0] = root
    phase[0] = ENTER
    top[0] = 0
    for k in range(n_components):
        weight[0, k] = weights[k]


@inlined
def advance(points, row, nodes, tables, region, stack):  # type: ignore[no-untyped-def]
    """Go to the next leaf and return it, or -1 when there is none.

    At the leaf, the weights are in row ``top[0]`` of the stack's weights, and ``region`` is the
    leaf's. After the last leaf the region is what it was at the start.
    """
    _, feature, cut, left, missing_left, set_start, sets, _ = nodes
    position, offset, mass, absent, n_levels, set_offset = tables
    low, high, recorded, remaining = region
    node, phase, saved_low, saved_high, saved_recorded, saved_set, weight, top = stack
    n_components = weight.shape[1]
    found = -1
    at = top[0]
    while at >= 0 and found < 0:
        n = node[at]
        if phase[at] == ENTER:
            while feature[n] >= 0 and not np.isnan(points[row, feature[n]]):
                n = left[n] + observed_right(
                    points[row, feature[n]], n, cut, missing_left, set_start, sets
                )
            if feature[n] < 0:
                phase[at] = LEAVE
                node[at] = n
                found = left[n]
                continue
        v = feature[n]
        if v < 0:
            at -= 1
            continue
        first = offset[v]
        words = n_levels[v] // 64 + 1 if n_levels[v] > 0 else 0
        if phase[at] == ENTER:
            # Divide the weights by the masses of the two sides of what remains of variable v.
            node[at] = n
            phase[at] = RIGHT
            saved_low[at] = low[v]
            saved_high[at] = high[v]
            saved_recorded[at] = recorded[v]
            for k in range(n_components):
                weight[at + 1, k] = 0.0
            if words > 0:
                for word in range(words):
                    saved_set[at, word] = remaining[set_offset[v] + word]
                divide_set(n, first, n_levels[v], set_start[n], sets, saved_set[at], mass,
                           weight[at], weight[at + 1])  # fmt: skip
                for word in range(words):
                    remaining[set_offset[v] + word] &= sets[set_start[n] + word]
            else:
                middle = min(max(position[n], low[v]), high[v])
                for k in range(n_components):
                    part = mass[first + middle, k] - mass[first + low[v], k]
                    total = mass[first + high[v], k] - mass[first + low[v], k]
                    if not recorded[v]:
                        total += absent[v, k]
                        if missing_left[n]:
                            part += absent[v, k]
                    goes_left = weight[at, k] * part / total if total > 0.0 else 0.0
                    weight[at + 1, k] = goes_left
                    weight[at, k] -= goes_left
                high[v] = middle
                recorded[v] = recorded[v] or not missing_left[n]
            child = left[n]
        elif phase[at] == RIGHT:
            phase[at] = LEAVE
            if words > 0:
                for word in range(words):
                    remaining[set_offset[v] + word] = (
                        saved_set[at, word] & ~sets[set_start[n] + word]
                    )
            else:
                low[v] = min(max(position[n], saved_low[at]), saved_high[at])
                high[v] = saved_high[at]
                recorded[v] = saved_recorded[at] or missing_left[n]
            for k in range(n_components):
                weight[at + 1, k] = weight[at, k]
            child = left[n] + 1
        else:
            low[v] = saved_low[at]
            high[v] = saved_high[at]
            recorded[v] = saved_recorded[at]
            for word in range(words):
                remaining[set_offset[v] + word] = saved_set[at, word]
            at -= 1
            continue
        # Most pairs of regions do not meet: a side without weight is not visited.
        total = 0.0
        for k in range(n_components):
            total += weight[at + 1, k]
        if total > 0.0:
            at += 1
            node[at] = child
            phase[at] = ENTER
    top[0] = at
    return found


@njit
def divide_set(node, first, n_levels, set_start, sets, remaining, mass, weight, goes_left):  # type: ignore[no-untyped-def]
    """Move the part of ``weight`` whose code goes left into ``goes_left`` (zeros at first)."""
    for k in range(len(weight)):
        part = 0.0
        total = 0.0
        for code in range(n_levels):
            bit = np.uint64(1) << np.uint64(code & 63)
            if remaining[code >> 6] & bit:
                total += mass[first + code, k]
                if sets[set_start + (code >> 6)] & bit:
                    part += mass[first + code, k]
        if total > 0.0:
            goes_left[k] = weight[k] * part / total
            weight[k] -= goes_left[k]


@njit
def emit_restricted(  # type: ignore[no-untyped-def]
    points, weights, allowed, nodes, tables, region, stack, leaf_start, tree, row, out_row,
    out_leaf, out_reach,
):  # fmt: skip
    """Write (row, leaf, reach) of rows with restricted sets, as ``emit_reach`` does of others."""
    roots = nodes[0]
    n_components = weights.shape[1]
    weight, top = stack[6], stack[7]
    count = 0
    while row < len(points):
        reset_region(region, tables, allowed, row)
        while tree < len(roots):
            if count + leaf_start[tree + 1] - leaf_start[tree] > len(out_leaf):
                return count, tree, row
            place(stack, roots[tree], weights[row], n_components)
            while True:
                leaf = advance(points, row, nodes, tables, region, stack)
                if leaf < 0:
                    break
                reach = 0.0
                for k in range(n_components):
                    reach += weight[top[0], k]
                out_row[count] = row
                out_leaf[count] = leaf
                out_reach[count] = reach
                count += 1
            tree += 1
        tree = 0
        row += 1
    return count, tree, row


@njit
def add_squares(  # type: ignore[no-untyped-def]
    points, weights, allowed, nodes, tables, region, outer, inner, value, tree_output, out,
):  # fmt: skip
    """Add E[margin^2] of each output, without the base, to ``out`` (rows, outputs).

    The square of a sum over trees is the sum over pairs of trees: one tree with itself is
    Lemma 1, two are Lemma 2.
    """
    roots = nodes[0]
    n_components = weights.shape[1]
    width = value.shape[1]
    for row in range(len(points)):
        reset_region(region, tables, allowed, row)
        for tree in range(len(roots)):
            place(outer, roots[tree], weights[row], n_components)
            while True:
                leaf = advance(points, row, nodes, tables, region, outer)
                if leaf < 0:
                    break
                reach = 0.0
                for k in range(n_components):
                    reach += outer[6][outer[7][0], k]
                for j in range(width):
                    out[row, tree_output[tree] + j] += reach * value[leaf, j] ** 2
                for other in range(tree + 1, len(roots)):
                    if tree_output[other] != tree_output[tree]:
                        continue
                    place(inner, roots[other], outer[6][outer[7][0]], n_components)
                    while True:
                        mate = advance(points, row, nodes, tables, region, inner)
                        if mate < 0:
                            break
                        reach = 0.0
                        for k in range(n_components):
                            reach += inner[6][inner[7][0], k]
                        for j in range(width):
                            out[row, tree_output[tree] + j] += (
                                2.0 * reach * value[leaf, j] * value[mate, j]
                            )


@njit
def add_pairs(  # type: ignore[no-untyped-def]
    points, weights, allowed, row_weight, nodes, tables, region, outer, inner, out,
):  # fmt: skip
    """Add every row's pair reach, times the row's weight, to the upper part of ``out``.

    ``out`` is (leaves, leaves); entry (i, j) is filled where leaf j's tree is leaf i's or comes
    after it (M of Prop. 3).
    """
    roots = nodes[0]
    n_components = weights.shape[1]
    for row in range(len(points)):
        reset_region(region, tables, allowed, row)
        for tree in range(len(roots)):
            place(outer, roots[tree], weights[row], n_components)
            while True:
                leaf = advance(points, row, nodes, tables, region, outer)
                if leaf < 0:
                    break
                reach = 0.0
                for k in range(n_components):
                    reach += outer[6][outer[7][0], k]
                out[leaf, leaf] += row_weight[row] * reach
                for other in range(tree + 1, len(roots)):
                    place(inner, roots[other], outer[6][outer[7][0]], n_components)
                    while True:
                        mate = advance(points, row, nodes, tables, region, inner)
                        if mate < 0:
                            break
                        reach = 0.0
                        for k in range(n_components):
                            reach += inner[6][inner[7][0], k]
                        out[leaf, mate] += row_weight[row] * reach
