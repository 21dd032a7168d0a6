"""Walks with the regions of holes in hand: reach, second moments and pair reach.

A *cursor* goes through the leaves of one tree that a row can reach, depth first. It carries the
region of every hole, so a second cursor can start inside a leaf of the first and walk another
tree there: that is pair reach (Lemma 2). It also starts from any region, such as a one-hot block
observed in part.

The kernels here do not know the density. What differs is in five functions that
:mod:`knothole.reach.cursor` (mixtures of products) and :mod:`knothole.reach.latent_kernels`
(latent trees) provide for their own kind of ``walk``; numba picks them by its type.

Arrays travel in tuples, because kernels take many of them:

``nodes``   as in :mod:`knothole.reach.product_kernels`
``tables``  position, offset, mass, absent (:class:`~knothole.reach.tables.Tables`), n_levels, and
            set_offset, the first word of each variable in ``region``'s sets
``region``  of each variable: low and high (grid positions), recorded (whether "not recorded" is
            excluded); sets, the bits of the codes that remain
``walk``    what the density says of the rows
``stack``   frames of a cursor: top (the frame in use), reach, node, phase, saved low, high,
            recorded and set; then the walk's own arrays
"""

from __future__ import annotations

from typing import Any

from knothole.compiled import inlined, njit

# What is left to do in a frame.
ENTER, RIGHT, LEAVE = 0, 1, 2


def begin_row(points: Any, row: Any, tables: Any, region: Any, walk: Any) -> None:
    """Get ready for a row; ``region`` has been reset."""
    raise NotImplementedError


def place(stack: Any, root: Any, walk: Any, row: Any) -> None:
    """Put a cursor before the first leaf below ``root``, with all of the row's probability."""
    raise NotImplementedError


def place_inside(stack: Any, root: Any, outer: Any, walk: Any) -> None:
    """Put a cursor before the first leaf below ``root``, inside the leaf of another cursor."""
    raise NotImplementedError


def advance(
    points: Any, row: Any, nodes: Any, tables: Any, region: Any, walk: Any, stack: Any,
    leaves: Any, reaches: Any,
) -> int:  # fmt: skip
    """Go on to the next leaves, as many as ``leaves`` has room for; return how many there were.

    When it stops for want of room, ``region`` is the last leaf's. When there are no more leaves,
    the region is what it was at the start.
    """
    raise NotImplementedError


def leave_inside(outer: Any, walk: Any) -> None:
    """Forget a cursor that was placed inside another's leaf and has no more leaves."""
    raise NotImplementedError


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
def save_region(frame, v, tables, region, stack):  # type: ignore[no-untyped-def]
    """Note in a frame what is left of variable ``v``."""
    n_levels, set_offset = tables[4], tables[5]
    low, high, recorded, remaining = region
    stack[4][frame] = low[v]
    stack[5][frame] = high[v]
    stack[6][frame] = recorded[v]
    if n_levels[v] > 0:
        for word in range(n_levels[v] // 64 + 1):
            stack[7][frame, word] = remaining[set_offset[v] + word]


@inlined
def restore_region(frame, v, tables, region, stack):  # type: ignore[no-untyped-def]
    """Put back what :func:`save_region` noted."""
    n_levels, set_offset = tables[4], tables[5]
    low, high, recorded, remaining = region
    low[v] = stack[4][frame]
    high[v] = stack[5][frame]
    recorded[v] = stack[6][frame]
    if n_levels[v] > 0:
        for word in range(n_levels[v] // 64 + 1):
            remaining[set_offset[v] + word] = stack[7][frame, word]


@inlined
def confine(frame, node, v, right, nodes, tables, region, stack):  # type: ignore[no-untyped-def]
    """Confine variable ``v`` to the left or right side of what the frame noted, at a split."""
    missing_left, set_start, sets = nodes[4], nodes[5], nodes[6]
    position, n_levels, set_offset = tables[0], tables[4], tables[5]
    low, high, recorded, remaining = region
    if n_levels[v] > 0:
        for word in range(n_levels[v] // 64 + 1):
            bits = sets[set_start[node] + word]
            remaining[set_offset[v] + word] = stack[7][frame, word] & (~bits if right else bits)
        return
    middle = min(max(position[node], stack[4][frame]), stack[5][frame])
    low[v] = middle if right else stack[4][frame]
    high[v] = stack[5][frame] if right else middle
    recorded[v] = stack[6][frame] or (missing_left[node] == right)


@njit
def emit_reach(  # type: ignore[no-untyped-def]
    points, allowed, nodes, leaf_start, tables, region, walk, stack, tree, row, out_row,
    out_leaf, out_reach,
):  # fmt: skip
    """Write (row, leaf, reach) of a block of rows, row by row, until ``out`` is full.

    Starts at (``tree``, ``row``); returns the number of entries and where to go on.
    """
    roots = nodes[0]
    count = 0
    while row < len(points):
        reset_region(region, tables, allowed, row)
        begin_row(points, row, tables, region, walk)
        while tree < len(roots):
            # One to spare: an array that is full means that the cursor is not done.
            if count + leaf_start[tree + 1] - leaf_start[tree] >= len(out_leaf):
                return count, tree, row
            place(stack, roots[tree], walk, row)
            found = advance(
                points, row, nodes, tables, region, walk, stack, out_leaf[count:],
                out_reach[count:],
            )  # fmt: skip
            for i in range(count, count + found):
                out_row[i] = row
            count += found
            tree += 1
        tree = 0
        row += 1
    return count, tree, row


@njit
def add_pairs(  # type: ignore[no-untyped-def]
    points, allowed, row_weight, nodes, tables, region, walk, outer, inner, found, value,
    tree_output, pairs, squares,
):  # fmt: skip
    """Visit every pair of leaves that a row reaches at once, in trees t <= t' (Lemmas 1 and 2).

    Where ``pairs`` (leaves, leaves) is not empty, pair reach times the row's weight is added to
    it (M of Prop. 3). Where ``squares`` (rows, outputs) is not empty, E[margin^2] of each output,
    without the base, is added to it; then only trees that serve the same output are paired.
    ``found`` has room for one leaf and its reach, and for those of a whole tree.
    """
    roots = nodes[0]
    width = value.shape[1]
    one, one_reach, mates, mate_reach = found
    for row in range(len(points)):
        reset_region(region, tables, allowed, row)
        begin_row(points, row, tables, region, walk)
        for tree in range(len(roots)):
            output = tree_output[tree]
            place(outer, roots[tree], walk, row)
            # The outer cursor stops at each leaf, with the leaf's region in hand.
            while advance(points, row, nodes, tables, region, walk, outer, one, one_reach) > 0:
                leaf = one[0]
                if len(pairs) > 0:
                    pairs[leaf, leaf] += row_weight[row] * one_reach[0]
                if len(squares) > 0:
                    for j in range(width):
                        squares[row, output + j] += one_reach[0] * value[leaf, j] ** 2
                for other in range(tree + 1, len(roots)):
                    if len(squares) > 0 and tree_output[other] != output:
                        continue
                    place_inside(inner, roots[other], outer, walk)
                    n = advance(points, row, nodes, tables, region, walk, inner, mates, mate_reach)
                    leave_inside(outer, walk)
                    if len(pairs) > 0:
                        for i in range(n):
                            pairs[leaf, mates[i]] += row_weight[row] * mate_reach[i]
                    if len(squares) > 0:
                        for j in range(width):
                            expected = 0.0
                            for i in range(n):
                                expected += mate_reach[i] * value[mates[i], j]
                            squares[row, output + j] += 2.0 * value[leaf, j] * expected
