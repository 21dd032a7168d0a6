"""Cursors under a mixture of products: the walk is the responsibilities (rows, components).

A frame's weights are what each component has left of the row's probability; at a split on a hole
they divide by the masses of the two sides of what remains of the hole, read off the tables.

``stack``: top, reach, node, phase, saved low, high, recorded and set, weight (frames, components).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import overload

from knothole.compiled import njit
from knothole.reach import walks
from knothole.reach.product_kernels import follow
from knothole.reach.walks import ENTER, LEAVE, RIGHT, confine, restore_region, save_region


def is_product(walk: Any) -> bool:
    """Whether a walk (its numba type) is that of a mixture of products."""
    return len(walk) == 1


@overload(walks.begin_row)
def _begin_row(points, row, tables, region, walk):  # type: ignore[no-untyped-def]
    if not is_product(walk):
        return None

    def begin_row(points, row, tables, region, walk):  # type: ignore[no-untyped-def]
        pass

    return begin_row


@overload(walks.place)
def _place(stack, root, walk, row):  # type: ignore[no-untyped-def]
    if not is_product(walk):
        return None

    def place(stack, root, walk, row):  # type: ignore[no-untyped-def]
        start(stack, root, walk[0][row])

    return place


@overload(walks.place_inside)
def _place_inside(stack, root, outer, walk):  # type: ignore[no-untyped-def]
    if not is_product(walk):
        return None

    def place_inside(stack, root, outer, walk):  # type: ignore[no-untyped-def]
        start(stack, root, outer[8][outer[0][0]])

    return place_inside


@overload(walks.leave_inside)
def _leave_inside(outer, walk):  # type: ignore[no-untyped-def]
    if not is_product(walk):
        return None

    def leave_inside(outer, walk):  # type: ignore[no-untyped-def]
        pass

    return leave_inside


@njit
def start(stack, root, weights):  # type: ignore[no-untyped-def]
    """One frame at ``root``, with these weights."""
    top, reach, node, phase, _, _, _, _, weight = stack
    node[0] = root
    phase[0] = ENTER
    top[0] = 0
    reach[0] = 0.0
    for k in range(len(weights)):
        weight[0, k] = weights[k]
        reach[0] += weights[k]


@overload(walks.advance)
def _advance(points, row, nodes, tables, region, walk, stack, leaves, reaches):  # type: ignore[no-untyped-def]
    return advance if is_product(walk) else None


def advance(points, row, nodes, tables, region, walk, stack, leaves, reaches):  # type: ignore[no-untyped-def]
    """See :func:`knothole.reach.walks.advance`."""
    feature, left = nodes[1], nodes[3]
    top, reach, node, phase = stack[:4]
    weight = stack[8]
    n_components = weight.shape[1]
    found = 0
    at = top[0]
    while at >= 0 and found < len(leaves):
        n = node[at]
        if phase[at] == ENTER:
            n = follow(points, row, n, nodes)
            node[at] = n
            if feature[n] < 0:
                phase[at] = LEAVE
                leaves[found] = left[n]
                reaches[found] = reach[at]
                found += 1
                continue
        v = feature[n]
        if v < 0:
            at -= 1
            continue
        if phase[at] == ENTER:
            phase[at] = RIGHT
            divide(n, v, nodes, tables, region, weight[at], weight[at + 1])
            save_region(at, v, tables, region, stack)
            confine(at, n, v, False, nodes, tables, region, stack)
            child = left[n]
        elif phase[at] == RIGHT:
            phase[at] = LEAVE
            confine(at, n, v, True, nodes, tables, region, stack)
            for k in range(n_components):
                weight[at + 1, k] = weight[at, k]
            child = left[n] + 1
        else:
            restore_region(at, v, tables, region, stack)
            at -= 1
            continue
        # Most pairs of regions do not meet: a side without weight is not visited.
        reach[at + 1] = 0.0
        for k in range(n_components):
            reach[at + 1] += weight[at + 1, k]
        if reach[at + 1] > 0.0:
            at += 1
            node[at] = child
            phase[at] = ENTER
    top[0] = at
    return found


@njit
def divide(node, v, nodes, tables, region, weight, goes_left):  # type: ignore[no-untyped-def]
    """Move the part of ``weight`` that goes left at a split on hole ``v`` into ``goes_left``."""
    missing_left, set_start, sets = nodes[4], nodes[5], nodes[6]
    position, offset, mass, absent, n_levels, set_offset = tables
    low, high, recorded, remaining = region
    first = offset[v]
    middle = min(max(position[node], low[v]), high[v])
    for k in range(len(weight)):
        part = 0.0
        total = 0.0
        if n_levels[v] > 0:
            for code in range(n_levels[v]):
                bit = np.uint64(1) << np.uint64(code & 63)
                if remaining[set_offset[v] + (code >> 6)] & bit:
                    total += mass[first + code, k]
                    if sets[set_start[node] + (code >> 6)] & bit:
                        part += mass[first + code, k]
        else:
            part = mass[first + middle, k] - mass[first + low[v], k]
            total = mass[first + high[v], k] - mass[first + low[v], k]
            if not recorded[v]:
                total += absent[v, k]
                if missing_left[node]:
                    part += absent[v, k]
        goes_left[k] = weight[k] * part / total if total > 0.0 else 0.0
        weight[k] -= goes_left[k]
