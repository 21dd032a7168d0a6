"""Positions under a mixture of products, given the responsibilities of rows.

A frame's weights are what each component has left of the row's probability; at a split on a hole
they divide by the masses of the two sides of what remains of the hole, read off the tables.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from knothole.compiled.bits import has
from knothole.compiled.pointers import shift
from knothole.compiled.policy import inlined, inner
from knothole.compiled.simd import copy, whole
from knothole.expectation.exact.product_kernels import follow
from knothole.expectation.exact.with_regions import ENTER, LEAVE, RIGHT, confine, provide, save_hole


class ProductGiven(NamedTuple):
    """Responsibilities: p(component | x_o)."""

    weights: Any  # (rows, components)
    components: int


class ProductPosition(NamedTuple):
    """Frames (:class:`~knothole.expectation.exact.with_regions.Frames`), and the weights of
    each.
    """

    frames: Any
    weight: Any  # (frames, components)


def begin_row(x, row, tables, region, given):  # type: ignore[no-untyped-def]
    """See :func:`knothole.expectation.exact.with_regions.begin_row`; the weights are all there
    is.
    """


def place(position, root, given, row):  # type: ignore[no-untyped-def]
    """See :func:`knothole.expectation.exact.with_regions.place`."""
    start(position, root, shift(given.weights, row * given.components), given.components)


def place_inside(position, root, outer, given):  # type: ignore[no-untyped-def]
    """See :func:`knothole.expectation.exact.with_regions.place_inside`."""
    weights = shift(outer.weight, outer.frames.top[0] * given.components)
    start(position, root, weights, given.components)


def leave_inside(outer, given):  # type: ignore[no-untyped-def]
    """See :func:`knothole.expectation.exact.with_regions.leave_inside`: there is nothing to
    forget.
    """


@inlined
def start(position, root, weights, components):  # type: ignore[no-untyped-def]
    """One frame at ``root``, with these weights."""
    frames = position.frames
    frames.top[0] = 0
    frames.node[0] = root
    frames.phase[0] = ENTER
    copy(position.weight, weights, components)
    frames.reach[0] = whole(weights, components)


def advance(x, nodes, tables, region, given, position, found):  # type: ignore[no-untyped-def]
    """See :func:`knothole.expectation.exact.with_regions.advance`."""
    frames, components = position.frames, given.components
    count = 0
    top = frames.top[0]
    while top >= 0 and count < found.room:
        n = frames.node[top]
        if frames.phase[top] == ENTER:
            n = follow(x, n, nodes, False)
            frames.node[top] = n
            if nodes.feature[n] < 0:
                frames.phase[top] = LEAVE
                found.leaves[count] = nodes.left[n]
                found.reaches[count] = frames.reach[top]
                count += 1
                continue
        v = nodes.feature[n]
        if v < 0:
            top -= 1
            continue
        weight = shift(position.weight, top * components)
        child_weight = shift(weight, components)
        child_reach = 0.0
        if frames.phase[top] == ENTER:
            frames.phase[top] = RIGHT
            child_reach = divide(n, v, nodes, tables, region, weight, child_weight)
            save_hole(top, v, tables, region, frames, False)
            confine(top, n, v, False, nodes, tables, region, frames)
            child = nodes.left[n]
        elif frames.phase[top] == RIGHT:
            frames.phase[top] = LEAVE
            confine(top, n, v, True, nodes, tables, region, frames)
            copy(child_weight, weight, components)
            child_reach = whole(weight, components)
            child = nodes.left[n] + 1
        else:
            save_hole(top, v, tables, region, frames, True)
            top -= 1
            continue
        # Most pairs of regions do not meet: a side without weight is not visited.
        if child_reach > 0.0:
            top += 1
            frames.reach[top] = child_reach
            frames.node[top] = child
            frames.phase[top] = ENTER
    frames.top[0] = top
    return count


provide(ProductGiven, begin_row, place, place_inside, leave_inside, advance)


@inlined
def divide(node, v, nodes, tables, region, weight, goes_left):  # type: ignore[no-untyped-def]
    """Move the part of ``weight`` that goes left at a split on hole ``v``; return its sum.

    The sum has an order of its own: a compiler's would depend on where arrays lie in memory.
    """
    components = tables.states
    if tables.n_levels[v] > 0:
        return divide_set(node, v, nodes, tables, region, weight, goes_left)
    first = tables.offset[v]
    low, high = region.low[v], region.high[v]
    middle = min(max(tables.position[node], low), high)
    below_low = shift(tables.mass, (first + low) * components)
    below_middle = shift(tables.mass, (first + middle) * components)
    below_high = shift(tables.mass, (first + high) * components)
    absent = shift(tables.absent, v * components)
    may_be_absent = 1.0 - region.recorded[v]
    absent_left = may_be_absent * nodes.missing_left[node]
    for k in range(components):
        part = below_middle[k] - below_low[k] + absent_left * absent[k]
        total = below_high[k] - below_low[k] + may_be_absent * absent[k]
        moved = weight[k] * (part / total) if total > 0.0 else 0.0
        goes_left[k] = moved
        weight[k] -= moved
    return whole(goes_left, components)


@inner
def divide_set(node, v, nodes, tables, region, weight, goes_left):  # type: ignore[no-untyped-def]
    """:func:`divide` where the hole is categorical."""
    components = tables.states
    remaining, goes = tables.set_offset[v], nodes.set_start[node]
    for k in range(components):
        part = 0.0
        total = 0.0
        for code in range(tables.n_levels[v]):
            if has(region.sets, remaining, code):
                mass = tables.mass[(tables.offset[v] + code) * components + k]
                total += mass
                if has(nodes.sets, goes, code):
                    part += mass
        moved = weight[k] * (part / total) if total > 0.0 else 0.0
        goes_left[k] = moved
        weight[k] -= moved
    return whole(goes_left, components)
