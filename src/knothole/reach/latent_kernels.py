"""Kernels of :mod:`knothole.reach.latent`: what is left of a latent tree once a row is known.

**Reducing.** Given x_o, every latent without a hole below it is summed out, and so is every chain
of latents that lead from one kept latent to the next. What remains is a small tree over the latents
of the holes (and of their branching points): node i has a constant vector ``g[i]``, the likelihood
``e[i]`` of the region that its hole is confined to, and a matrix ``c[i]`` between it and its
parent, both ways round.

**Focus.** Messages are kept in both directions along every edge, ``up[i]`` from i to its parent and
``down[i]`` to i from its parent. One node is in focus: all messages directed towards it are valid.
Then the probability of any region of its own hole is one dot product, and changing ``e`` there
spoils nothing. Moving the focus to a neighbour costs one product of a matrix and a vector. What a
move overwrites goes to a log, so that a walk can return to where it branched. At the root of a
decision tree nothing has changed yet: all messages are valid, and any node is in focus for free.

The number of states is a multiple of four (:class:`~knothole.reach.latent.LatentEngine` pads it).

Arrays travel in tuples (see :mod:`knothole.reach.walks`):

``walk``     like (rows, variables, states), used (variables that the trees split on), tree,
             reduced, log, scratch
``tree``     parent, order, child_start, children, transition, prior of the latent tree
``reduced``  parent, slot (of each variable, -1 if not kept), g, e, c, up, down, and n_focus: the
             number of kept nodes, the node in focus, and how many holes are confined just now
``log``      edge (negative for ``down``), old message, and the log's length
``scratch``  path, active, message, local, with_hole, buffer, vector
``stack``    top, reach, node, phase, saved low, high, recorded and set, saved e, right e, mark
             (length of the log when the frame was entered), belief, left and right mass (scratch)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import overload

from knothole.compiled import inlined, njit
from knothole.reach import walks
from knothole.reach.product_kernels import follow
from knothole.reach.walks import ENTER, LEAVE, RIGHT, confine, restore_region, save_region


@njit
def scale(vector):  # type: ignore[no-untyped-def]
    """Divide by the sum, which carries no information here; leave zeros alone."""
    total = 0.0
    for z in range(len(vector)):
        total += vector[z]
    if total > 0.0:
        for z in range(len(vector)):
            vector[z] /= total


@njit
def reduce_row(like, active, tree, message, local, with_hole, buffer, reduced):  # type: ignore[no-untyped-def]
    """Sum out everything but the latents of active holes and their branching points.

    ``like`` (variables, states) is the likelihood of what is known of each variable, ones for
    active holes. ``message`` and ``local`` (variables, states), ``with_hole`` (variables,) and
    ``buffer`` (states, states) are scratch.
    """
    parent, order, child_start, children, transition, prior = tree
    new_parent, slot, g, _, c, _, _, n_focus = reduced
    n, states = like.shape
    # Upwards: messages, and which subtrees hold a hole.
    for i in range(n - 1, -1, -1):
        v = order[i]
        with_hole[v] = 1 if active[v] else 0
        for z in range(states):
            local[v, z] = like[v, z]
        below = 0
        for j in range(child_start[v], child_start[v + 1]):
            child = children[j]
            if with_hole[child] > 0:
                below += 1
            else:
                for z in range(states):
                    local[v, z] *= message[child, z]
        scale(local[v])
        slot[v] = -1
        if active[v] or below > 1:
            slot[v] = -2  # kept
        if below > 0:
            with_hole[v] = 1
        if with_hole[v] == 0:
            for a in range(states):
                total = 0.0
                for z in range(states):
                    total += transition[v, a, z] * local[v, z]
                message[v, a] = total
            scale(message[v])
    # Downwards: numbers of kept nodes, parents first; what lies above the first is a vector.
    kept = 0
    for i in range(n):
        v = order[i]
        if with_hole[v] == 0:
            continue
        if kept == 0:
            # message[v] is p(z_v, what is known outside of v's subtree), as far as seen.
            if parent[v] < 0:
                for z in range(states):
                    message[v, z] = prior[z]
            else:
                above = parent[v]
                for z in range(states):
                    total = 0.0
                    for a in range(states):
                        total += message[above, a] * local[above, a] * transition[v, a, z]
                    message[v, z] = total
                scale(message[v])
        if slot[v] != -2:
            continue
        slot[v] = kept
        for z in range(states):
            g[kept, z] = local[v, z]
        if kept == 0:
            new_parent[0] = -1
            for z in range(states):
                g[0, z] *= message[v, z]
            scale(g[0])
        else:
            for a in range(states):
                for z in range(states):
                    c[kept, 0, a, z] = transition[v, a, z]
            above = parent[v]
            while slot[above] < 0:
                contract(transition[above], local[above], c[kept, 0], buffer)
                above = parent[above]
            new_parent[kept] = slot[above]
            for a in range(states):
                for z in range(states):
                    c[kept, 1, z, a] = c[kept, 0, a, z]
        kept += 1
    n_focus[0] = kept


@njit
def contract(transition, local, matrix, buffer):  # type: ignore[no-untyped-def]
    """``matrix`` = transition @ diag(local) @ matrix, scaled."""
    states = len(local)
    total = 0.0
    for a in range(states):
        for z in range(states):
            buffer[a, z] = 0.0
        for b in range(states):
            weight = transition[a, b] * local[b]
            for z in range(states):
                buffer[a, z] += weight * matrix[b, z]
        for z in range(states):
            total += buffer[a, z]
    for a in range(states):
        for z in range(states):
            matrix[a, z] = buffer[a, z] / total if total > 0.0 else buffer[a, z]


@njit
def start_messages(reduced, log, vector):  # type: ignore[no-untyped-def]
    """Messages along every edge in both directions; ``e`` is set. Any node may be in focus."""
    n_focus = reduced[7]
    for i in range(n_focus[0] - 1, 0, -1):
        send_up(i, reduced, vector)
    for i in range(1, n_focus[0]):
        send_down(i, reduced, vector)
    n_focus[1] = 0
    log[2][0] = 0


@inlined
def gather(node, without, reduced, vector):  # type: ignore[no-untyped-def]
    """Product of what reaches a node, but for the child ``without``, into ``vector``.

    The node's own region is not in it; its parent's message is.
    """
    parent, _, g, _, _, up, down, n_focus = reduced
    states = g.shape[1]
    if parent[node] >= 0:
        for z in range(states):
            vector[z] = g[node, z] * down[node, z]
    else:
        for z in range(states):
            vector[z] = g[node, z]
    for child in range(node + 1, n_focus[0]):
        if parent[child] == node and child != without:
            for z in range(states):
                vector[z] *= up[child, z]


@inlined
def multiply(matrix, row, vector, out):  # type: ignore[no-untyped-def]
    """``out[row]`` = matrix @ vector, scaled to sum to 1.

    Four rows at a time, without a store among the products: short loops of one row each would
    spend most of their time getting started.
    """
    states = len(vector)
    whole = 0.0
    for a in range(0, states, 4):
        first, second, third, fourth = 0.0, 0.0, 0.0, 0.0
        for z in range(states):
            x = vector[z]
            first += matrix[a, z] * x
            second += matrix[a + 1, z] * x
            third += matrix[a + 2, z] * x
            fourth += matrix[a + 3, z] * x
        out[row, a] = first
        out[row, a + 1] = second
        out[row, a + 2] = third
        out[row, a + 3] = fourth
        whole += first + second + third + fourth
    if whole > 0.0:
        share = 1.0 / whole
        for a in range(states):
            out[row, a] *= share


@njit
def send_up(node, reduced, vector):  # type: ignore[no-untyped-def]
    """Message from a node to its parent."""
    parent, _, g, e, c, up, _, n_focus = reduced
    states = g.shape[1]
    for z in range(states):
        vector[z] = g[node, z] * e[node, z]
    for child in range(node + 1, n_focus[0]):
        if parent[child] == node:
            for z in range(states):
                vector[z] *= up[child, z]
    multiply(c[node, 0], node, vector, up)


@njit
def send_down(node, reduced, vector):  # type: ignore[no-untyped-def]
    """Message to a node from its parent."""
    parent, _, g, e, c, _, down, _ = reduced
    above = parent[node]
    gather(above, node, reduced, vector)
    for z in range(g.shape[1]):
        vector[z] *= e[above, z]
    multiply(c[node, 1], node, vector, down)


@njit
def move_focus(target, reduced, log, path, vector):  # type: ignore[no-untyped-def]
    """Bring a node into focus, one edge at a time; overwritten messages go to the log."""
    parent, _, g, _, _, up, down, n_focus = reduced
    edge, old, length = log
    states = g.shape[1]
    # Ancestors of the target up to the root of the reduced tree.
    steps = 0
    node = target
    while node >= 0:
        path[steps] = node
        steps += 1
        node = parent[node]
    at = n_focus[1]
    # Children have larger numbers than their parents: climb until `at` is on the path.
    place = steps - 1
    while True:
        while place >= 0 and path[place] < at:
            place -= 1
        if place >= 0 and path[place] == at:
            break
        n = length[0]
        edge[n] = at
        for z in range(states):
            old[n, z] = up[at, z]
        length[0] = n + 1
        send_up(at, reduced, vector)
        at = parent[at]
        place = steps - 1
    for i in range(place - 1, -1, -1):
        node = path[i]
        n = length[0]
        edge[n] = -1 - node
        for z in range(states):
            old[n, z] = down[node, z]
        length[0] = n + 1
        send_down(node, reduced, vector)
    n_focus[1] = target


@inlined
def undo(mark, reduced, log):  # type: ignore[no-untyped-def]
    """Put back all messages that were overwritten since the log had length ``mark``."""
    _, _, g, _, _, up, down, _ = reduced
    edge, old, length = log
    states = g.shape[1]
    for n in range(length[0] - 1, mark - 1, -1):
        if edge[n] >= 0:
            for z in range(states):
                up[edge[n], z] = old[n, z]
        else:
            for z in range(states):
                down[-1 - edge[n], z] = old[n, z]
    length[0] = mark


@inlined
def masses(v, node, nodes, tables, region, left_mass, right_mass):  # type: ignore[no-untyped-def]
    """Mass in every state of the two sides of what remains of a hole at a split."""
    _, _, _, _, missing_left, set_start, sets, _ = nodes
    position, offset, mass, absent, n_levels, set_offset = tables
    low, high, recorded, remaining = region
    states = mass.shape[1]
    first = offset[v]
    if n_levels[v] > 0:
        for z in range(states):
            left_mass[z] = 0.0
            right_mass[z] = 0.0
        for code in range(n_levels[v]):
            word = code >> 6
            bit = np.uint64(1) << np.uint64(code & 63)
            if remaining[set_offset[v] + word] & bit:
                if sets[set_start[node] + word] & bit:
                    for z in range(states):
                        left_mass[z] += mass[first + code, z]
                else:
                    for z in range(states):
                        right_mass[z] += mass[first + code, z]
        return
    middle = min(max(position[node], low[v]), high[v])
    for z in range(states):
        left_mass[z] = mass[first + middle, z] - mass[first + low[v], z]
        right_mass[z] = mass[first + high[v], z] - mass[first + middle, z]
    if not recorded[v]:
        for z in range(states):
            if missing_left[node]:
                left_mass[z] += absent[v, z]
            else:
                right_mass[z] += absent[v, z]


def is_latent(walk: Any) -> bool:
    """Whether a walk (its numba type) is that of a latent tree."""
    return len(walk) == 6


@overload(walks.begin_row)
def _begin_row(points, row, tables, region, walk):  # type: ignore[no-untyped-def]
    if not is_latent(walk):
        return None

    def begin_row(points, row, tables, region, walk):  # type: ignore[no-untyped-def]
        like, used, tree, reduced, log, scratch = walk
        start_row(points, row, tables, region, like, used, tree, reduced, log, scratch)

    return begin_row


@njit
def start_row(points, row, tables, region, like, used, tree, reduced, log, scratch):  # type: ignore[no-untyped-def]
    """Reduce the latent tree to the row's holes, each confined to what ``region`` leaves of it."""
    _, offset, mass, _, n_levels, set_offset = tables
    remaining = region[3]
    active = scratch[1]
    for v in range(len(used)):
        active[v] = used[v] and np.isnan(points[row, v])
    for v in range(len(used), like.shape[1]):
        active[v] = False
    reduce_row(like[row], active, tree, scratch[2], scratch[3], scratch[4], scratch[5], reduced)
    _, slot, _, e, _, _, _, _ = reduced
    for i in range(reduced[7][0]):
        for z in range(e.shape[1]):
            e[i, z] = 1.0
    for v in range(len(used)):
        if active[v] and n_levels[v] > 0:
            # A block observed in part: ones where nothing is excluded, to rounding.
            for z in range(e.shape[1]):
                e[slot[v], z] = 0.0
            for code in range(n_levels[v]):
                bit = np.uint64(1) << np.uint64(code & 63)
                if remaining[set_offset[v] + (code >> 6)] & bit:
                    for z in range(e.shape[1]):
                        e[slot[v], z] += mass[offset[v] + code, z]
    start_messages(reduced, log, scratch[6])


@overload(walks.place)
def _place(stack, root, walk, row):  # type: ignore[no-untyped-def]
    if not is_latent(walk):
        return None

    def place(stack, root, walk, row):  # type: ignore[no-untyped-def]
        walk[4][2][0] = 0
        walk[3][7][2] = 0
        start(stack, root, 1.0)

    return place


@overload(walks.place_inside)
def _place_inside(stack, root, outer, walk):  # type: ignore[no-untyped-def]
    if not is_latent(walk):
        return None

    def place_inside(stack, root, outer, walk):  # type: ignore[no-untyped-def]
        # The frame above the outer cursor's is free: note there what to return to.
        outer[10][outer[0][0] + 1] = walk[4][2][0]
        outer[4][outer[0][0] + 1] = walk[3][7][1]
        start(stack, root, outer[1][outer[0][0]])

    return place_inside


@overload(walks.leave_inside)
def _leave_inside(outer, walk):  # type: ignore[no-untyped-def]
    if not is_latent(walk):
        return None

    def leave_inside(outer, walk):  # type: ignore[no-untyped-def]
        undo(outer[10][outer[0][0] + 1], walk[3], walk[4])
        walk[3][7][1] = outer[4][outer[0][0] + 1]

    return leave_inside


@inlined
def start(stack, root, reach):  # type: ignore[no-untyped-def]
    """One frame at ``root``, with this reach."""
    stack[0][0] = 0
    stack[1][0] = reach
    stack[2][0] = root
    stack[3][0] = ENTER


@overload(walks.advance)
def _advance(points, row, nodes, tables, region, walk, stack, leaves, reaches):  # type: ignore[no-untyped-def]
    return advance if is_latent(walk) else None


def advance(points, row, nodes, tables, region, walk, stack, leaves, reaches):  # type: ignore[no-untyped-def]
    """See :func:`knothole.reach.walks.advance`."""
    feature, left = nodes[1], nodes[3]
    _, _, _, reduced, log, scratch = walk
    slot, e, n_focus = reduced[1], reduced[3], reduced[7]
    top, reach, node, phase = stack[:4]
    saved_e, right_e, mark, belief, left_mass, right_mass = stack[8:]
    states = e.shape[1]
    # A caller with room for one leaf wants the leaf's region in hand; others only its reach.
    one_by_one = len(leaves) == 1
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
        i = slot[v]
        if phase[at] == ENTER:
            if n_focus[2] == 0:
                n_focus[1] = i
            elif n_focus[1] != i:
                move_focus(i, reduced, log, scratch[0], belief)
            mark[at] = log[2][0]
            gather(i, -1, reduced, belief)
            masses(v, n, nodes, tables, region, left_mass, right_mass)
            reach[at + 1] = reach[at] * left_share(belief, left_mass, right_mass)
            reach[at] -= reach[at + 1]
            left_node = follow(points, row, left[n], nodes)
            right_node = follow(points, row, left[n] + 1, nodes)
            left_ends = not one_by_one and (feature[left_node] < 0 or reach[at + 1] <= 0.0)
            right_ends = not one_by_one and (feature[right_node] < 0 or reach[at] <= 0.0)
            if left_ends and reach[at + 1] > 0.0:
                leaves[found] = left[left_node]
                reaches[found] = reach[at + 1]
                found += 1
            if right_ends and reach[at] > 0.0:
                leaves[found] = left[right_node]
                reaches[found] = reach[at]
                found += 1
            if left_ends and right_ends:
                at -= 1
                continue
            n_focus[2] += 1
            save_region(at, v, tables, region, stack)
            for z in range(states):
                saved_e[at, z] = e[i, z]
            if left_ends:
                phase[at] = LEAVE
                reach[at + 1] = reach[at]
                for z in range(states):
                    e[i, z] = right_mass[z]
            else:
                phase[at] = LEAVE if right_ends else RIGHT
                for z in range(states):
                    e[i, z] = left_mass[z]
                    right_e[at, z] = right_mass[z]
            confine(at, n, v, left_ends, nodes, tables, region, stack)
            child = right_node if left_ends else left_node
        elif phase[at] == RIGHT:
            phase[at] = LEAVE
            undo(mark[at], reduced, log)
            n_focus[1] = i
            for z in range(states):
                e[i, z] = right_e[at, z]
            confine(at, n, v, True, nodes, tables, region, stack)
            reach[at + 1] = reach[at]
            child = left[n] + 1
        else:
            undo(mark[at], reduced, log)
            n_focus[1] = i
            n_focus[2] -= 1
            for z in range(states):
                e[i, z] = saved_e[at, z]
            restore_region(at, v, tables, region, stack)
            at -= 1
            continue
        if reach[at + 1] > 0.0:
            at += 1
            node[at] = child
            phase[at] = ENTER
    top[0] = at
    return found


@inlined
def left_share(belief, left_mass, right_mass):  # type: ignore[no-untyped-def]
    """Probability of the left side, given that the hole is on one of the two."""
    goes_left = 0.0
    goes_right = 0.0
    for z in range(len(belief)):
        goes_left += belief[z] * left_mass[z]
        goes_right += belief[z] * right_mass[z]
    if goes_left + goes_right <= 0.0:
        # The row is impossible under the density: let the hole's own masses decide.
        for z in range(len(belief)):
            goes_left += left_mass[z]
            goes_right += right_mass[z]
    total = goes_left + goes_right
    return goes_left / total if total > 0.0 else 0.0
