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
from knothole.reach.product_kernels import observed_right
from knothole.reach.walks import ENTER, LEAVE, RIGHT


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
    _, feature, cut, left, missing_left, set_start, sets, _ = nodes
    position, offset, mass, absent, n_levels, set_offset = tables
    low, high, recorded, remaining = region
    top, reach, node, phase, saved_low, saved_high, saved_recorded, saved_set, weight = stack
    n_components = weight.shape[1]
    found = 0
    at = top[0]
    while at >= 0 and found < len(leaves):
        n = node[at]
        if phase[at] == ENTER:
            while feature[n] >= 0 and not np.isnan(points[row, feature[n]]):
                n = left[n] + observed_right(
                    points[row, feature[n]], n, cut, missing_left, set_start, sets
                )
            if feature[n] < 0:
                phase[at] = LEAVE
                node[at] = n
                leaves[found] = left[n]
                reaches[found] = reach[at]
                found += 1
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
