"""Positions under a latent tree.

A row's holes form a small tree (:mod:`knothole.expectation.exact.latent_reduce`) in which
messages are
passed (:mod:`knothole.expectation.exact.latent_messages`). At a split on a hole the position
brings the
hole into focus, reads off the probability of the left side, confines the hole to one side after the
other, and returns to the messages it had on arrival.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from knothole.compiled.bits import has
from knothole.compiled.exp import exponentials
from knothole.compiled.pointers import prefetch, shift
from knothole.compiled.policy import inlined, inner, njit
from knothole.compiled.simd import CACHE_LINE, add, copy, difference, dot, fill
from knothole.expectation.exact.latent_messages import (
    CONFINED,
    FOCUS,
    LENGTH,
    move_focus,
    start_messages,
    undo,
)
from knothole.expectation.exact.latent_reduce import reduce_row
from knothole.expectation.exact.product_kernels import follow
from knothole.expectation.exact.with_regions import ENTER, LEAVE, RIGHT, confine, provide, save_hole


class LatentGiven(NamedTuple):
    """What a latent tree says of rows; the records are those of their modules."""

    like: Any  # (rows, latents, states)
    used: Any  # (variables,) that trees split on
    latents: Any
    reduced: Any
    scratch: Any
    messages: Any


class LatentPosition(NamedTuple):
    """Frames (:class:`~.with_regions.Frames`), and what else a position returns to."""

    frames: Any
    e: Any  # (frames, states) of the hole on arrival
    right: Any  # (frames, states) masses of the right side
    mark: Any  # (frames,) length of the log on arrival
    focus: Any  # (frames,)
    belief: Any  # (states,) scratch
    left_mass: Any
    right_mass: Any


def place(position, root, given, row):  # type: ignore[no-untyped-def]
    """See :func:`knothole.expectation.exact.with_regions.place`."""
    start(position, root, 1.0)


def place_inside(position, root, outer, given):  # type: ignore[no-untyped-def]
    """See :func:`knothole.expectation.exact.with_regions.place_inside`."""
    # The frame above the outer position's is free: note there what to return to.
    top = outer.frames.top[0]
    outer.mark[top + 1] = given.messages.at[LENGTH]
    outer.focus[top + 1] = given.messages.at[FOCUS]
    start(position, root, outer.frames.reach[top])


def leave_inside(outer, given):  # type: ignore[no-untyped-def]
    """See :func:`knothole.expectation.exact.with_regions.leave_inside`."""
    top = outer.frames.top[0]
    undo(outer.mark[top + 1], outer.focus[top + 1], given.messages)


@inlined
def start(position, root, reach):  # type: ignore[no-untyped-def]
    """One frame at ``root``, with this reach."""
    frames = position.frames
    frames.top[0] = 0
    frames.reach[0] = reach
    frames.node[0] = root
    frames.phase[0] = ENTER


def begin_row(x, row, tables, region, given):  # type: ignore[no-untyped-def]
    """Reduce the latent tree to the row's holes, each confined to what ``region`` leaves of it."""
    reduced, messages = given.reduced, given.messages
    states = messages.states
    reduce_to_holes(x, row, tables.n_variables, given)
    for v in range(tables.n_variables):
        if given.scratch.active[v] and tables.n_levels[v] > 0:
            # A block observed in part: ones where nothing is excluded, to rounding.
            e = shift(messages.e, reduced.slot[v] * states)
            fill(e, 0.0, states)
            for code in range(tables.n_levels[v]):
                if has(region.sets, tables.set_offset[v], code):
                    add(e, shift(tables.mass, (tables.offset[v] + code) * states), states)
    start_messages(reduced, messages)
    # Here ``e`` changes where it is: what it says is never left out.
    for node in range(reduced.n[0]):
        messages.place[2 * messages.n + node] = node
        messages.count[node] = 1


@inlined
def reduce_to_holes(x, row, n_variables, given):  # type: ignore[no-untyped-def]
    """Reduce the latent tree to the row's holes, which may be anything."""
    latents, active = given.latents, given.scratch.active
    for v in range(latents.n):
        active[v] = 1 if v < n_variables and given.used[v] and np.isnan(x[v]) else 0
    like = shift(given.like, row * latents.n * latents.states)
    reduce_row(like, latents, given.reduced, given.scratch)
    fill(given.messages.e, 1.0, given.reduced.n[0] * latents.states)


def advance(x, nodes, tables, region, given, position, found):  # type: ignore[no-untyped-def]
    """See :func:`knothole.expectation.exact.with_regions.advance`."""
    feature, left = nodes.feature, nodes.left
    reduced, messages, frames = given.reduced, given.messages, position.frames
    leaves, reaches = found.leaves, found.reaches
    belief, left_mass, right_mass = position.belief, position.left_mass, position.right_mass
    states = messages.states
    # Whoever takes leaves one by one wants the leaf's region in hand, and others only its reach.
    one_by_one = found.room == 1
    count = 0
    top = frames.top[0]
    while top >= 0 and count < found.room:
        n = frames.node[top]
        phase = frames.phase[top]
        if phase == ENTER:
            n = follow(x, n, nodes, False)
            frames.node[top] = n
            if feature[n] < 0:
                frames.phase[top] = LEAVE
                leaves[count] = left[n]
                reaches[count] = frames.reach[top]
                count += 1
                continue
        v = feature[n]
        if v < 0:
            top -= 1
            continue
        i = reduced.slot[v]
        e = shift(messages.e, i * states)
        if phase == ENTER:
            if messages.at[CONFINED] == 0:
                messages.at[FOCUS] = i
            move_focus(i, reduced, messages, belief)
            share = divide(v, n, nodes, tables, region, belief, left_mass, right_mass)
            left_reach = frames.reach[top] * share
            right_reach = frames.reach[top] - left_reach
            left_node = follow(x, left[n], nodes, False)
            right_node = follow(x, left[n] + 1, nodes, False)
            left_ends = not one_by_one and (feature[left_node] < 0 or left_reach <= 0.0)
            right_ends = not one_by_one and (feature[right_node] < 0 or right_reach <= 0.0)
            if left_ends and left_reach > 0.0:
                leaves[count] = left[left_node]
                reaches[count] = left_reach
                count += 1
            if right_ends and right_reach > 0.0:
                leaves[count] = left[right_node]
                reaches[count] = right_reach
                count += 1
            if left_ends and right_ends:
                top -= 1
                continue
            expect(left_node, nodes, tables)
            expect(right_node, nodes, tables)
            position.mark[top] = messages.at[LENGTH]
            messages.at[CONFINED] += 1
            save_hole(top, v, tables, region, frames, False)
            copy(shift(position.e, top * states), e, states)
            confine(top, n, v, left_ends, nodes, tables, region, frames)
            frames.reach[top] = right_reach
            if left_ends:
                frames.phase[top] = LEAVE
                copy(e, right_mass, states)
                child, child_reach = right_node, right_reach
            else:
                frames.phase[top] = LEAVE if right_ends else RIGHT
                copy(e, left_mass, states)
                copy(shift(position.right, top * states), right_mass, states)
                child, child_reach = left_node, left_reach
        elif phase == RIGHT:
            frames.phase[top] = LEAVE
            undo(position.mark[top], i, messages)
            copy(e, shift(position.right, top * states), states)
            confine(top, n, v, True, nodes, tables, region, frames)
            child, child_reach = left[n] + 1, frames.reach[top]
        else:
            undo(position.mark[top], i, messages)
            messages.at[CONFINED] -= 1
            copy(e, shift(position.e, top * states), states)
            save_hole(top, v, tables, region, frames, True)
            top -= 1
            continue
        if child_reach > 0.0:
            top += 1
            frames.node[top] = child
            frames.reach[top] = child_reach
            frames.phase[top] = ENTER
    frames.top[0] = top
    return count


provide(LatentGiven, begin_row, place, place_inside, leave_inside, advance)


@inlined
def expect(node, nodes, tables):  # type: ignore[no-untyped-def]
    """Start to load the masses below a node's cut: their table is too large for the near caches."""
    v = nodes.feature[node]
    if v >= 0:
        below = shift(tables.mass, (tables.offset[v] + tables.position[node]) * tables.states)
        for z in range(0, tables.states, CACHE_LINE):
            prefetch(shift(below, z))


@inlined
def divide(v, node, nodes, tables, region, belief, left_mass, right_mass):  # type: ignore[no-untyped-def]
    """Masses of the two sides of a hole at a split; return the probability of the left one."""
    states = tables.states
    if tables.n_levels[v] > 0:
        divide_set(v, node, nodes, tables, region, left_mass, right_mass)
    else:
        divide_interval(v, node, nodes, tables, region, left_mass, right_mass)
    goes_left = dot(belief, left_mass, states)
    goes_right = dot(belief, right_mass, states)
    if goes_left + goes_right <= 0.0:
        # The row is impossible under the density: let the hole's own masses decide.
        for z in range(states):
            goes_left += left_mass[z]
            goes_right += right_mass[z]
    total = goes_left + goes_right
    return goes_left / total if total > 0.0 else 0.0


@inlined
def divide_interval(v, node, nodes, tables, region, left_mass, right_mass):  # type: ignore[no-untyped-def]
    """Masses of the two sides of what remains of a numeric hole."""
    states, first = tables.states, tables.offset[v]
    low, high = region.low[v], region.high[v]
    middle = min(max(tables.position[node], low), high)
    below_low = shift(tables.mass, (first + low) * states)
    below_middle = shift(tables.mass, (first + middle) * states)
    below_high = shift(tables.mass, (first + high) * states)
    difference(left_mass, below_middle, below_low, states)
    difference(right_mass, below_high, below_middle, states)
    if not region.recorded[v]:
        absent = shift(tables.absent, v * states)
        add(left_mass if nodes.missing_left[node] else right_mass, absent, states)


@inner
def divide_set(v, node, nodes, tables, region, left_mass, right_mass):  # type: ignore[no-untyped-def]
    """Masses of the two sides of what remains of a categorical hole."""
    states = tables.states
    remaining, goes = tables.set_offset[v], nodes.set_start[node]
    fill(left_mass, 0.0, states)
    fill(right_mass, 0.0, states)
    for code in range(tables.n_levels[v]):
        if has(region.sets, remaining, code):
            mass = shift(tables.mass, (tables.offset[v] + code) * states)
            add(left_mass if has(nodes.sets, goes, code) else right_mass, mass, states)


@njit
def fill_likelihood(values, parameters, hole, like, impossible):  # type: ignore[no-untyped-def]
    """Likelihood of packed values (:mod:`knothole.densities.univariate.packed`) in each state.

    ``like`` is (rows, latents * states), the same memory as int64, and what
    :func:`~knothole.compiled.exp.exponentials` writes on; each vector's largest entry becomes 1.
    Rows with values that no state can have are flagged.
    """
    code, z, slot = values
    table, linear, square = parameters
    x, bits, peak, shifts = like
    n_latents, n_states, width = code.shape[1], table.shape[1], x.shape[1]
    states = width // n_latents
    for row in range(len(x)):
        for v in range(n_latents):
            c, first = code[row, v], v * states
            out = x[row, first : first + states]
            largest = -np.inf
            out[n_states:] = largest
            if c >= 0 and not hole[row, v]:
                for k in range(n_states):
                    term = table[c, k]
                    if slot[v] >= 0:
                        at = z[row, slot[v]]
                        term += at * (linear[slot[v], k] + at * square[slot[v], k])
                    out[k] = term
                    largest = max(largest, term)
                if largest == -np.inf:
                    impossible[row] = True
            if largest == -np.inf:
                out[:n_states] = largest = 0.0
            peak[first : first + states] = largest
        exponentials(x[row], peak, shifts, bits[row], width)
