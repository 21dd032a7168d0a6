"""Walks with the regions of holes in hand: margins, reach, second moments and pair reach.

A *cursor* goes through the leaves of one tree that a row can reach, depth first. It carries the
region of every hole, so a second cursor can start inside a leaf of the first and walk another
tree there: that is pair reach (Lemma 2). It also starts from any region, such as a one-hot block
observed in part.

The kernels here do not know the density. What differs is in five functions that
:mod:`knothole.reach.walks.product_position` (mixtures of products) and
:mod:`knothole.reach.walks.latent_position` (latent trees) provide for their own kind of ``walk``;
numba picks them by its type.

Arrays travel in records, because kernels take many of them. A kernel turns the arrays into
pointers at its top (:mod:`knothole.compiled.pointers`): below, ``x`` is the pointer to a row's
points and matrices are indexed by hand.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from knothole.compiled.pointers import pointers, shift
from knothole.compiled.policy import inlined, njit

# What is left to do in a frame.
ENTER, RIGHT, LEAVE = 0, 1, 2


class WalkTables(NamedTuple):
    """What :class:`~knothole.reach.tables.Tables` holds, for kernels."""

    position: Any  # (nodes,) of the cut, in its variable's grid
    offset: Any  # (variables + 1,) first row of each variable in ``mass``
    mass: Any  # (grid rows, states)
    absent: Any  # (variables, states)
    n_levels: Any  # (variables,)
    set_offset: Any  # (variables + 1,) first word of each variable in a region's sets
    n_variables: int
    n_words: int
    states: int


class Region(NamedTuple):
    """What remains of each variable that is a hole."""

    low: Any  # (variables,) grid positions
    high: Any
    recorded: Any  # (variables,) whether "not recorded" is excluded
    sets: Any  # (words,) bits of the codes that remain


class Frames(NamedTuple):
    """The stack of a cursor: a frame for each split on a hole between the root and where it is."""

    top: Any  # (1,) the frame in use
    reach: Any  # (frames,)
    node: Any
    phase: Any
    low: Any  # what remained of the split's variable on arrival, see :class:`Region`
    high: Any
    recorded: Any
    sets: Any  # (frames, words)
    words: int


class Found(NamedTuple):
    """Room for what a cursor finds: a single leaf, or all leaves of a tree and one more.

    A cursor that fills its room has not finished; hence the one more.
    """

    one: Any
    one_reach: Any
    leaves: Any
    reaches: Any
    room: int


def begin_row(x: Any, row: Any, tables: Any, region: Any, walk: Any) -> None:
    """Get ready for a row; ``region`` has been reset."""
    raise NotImplementedError


def place(stack: Any, root: Any, walk: Any, row: Any) -> None:
    """Put a cursor before the first leaf below ``root``, with all of the row's probability."""
    raise NotImplementedError


def place_inside(stack: Any, root: Any, outer: Any, walk: Any) -> None:
    """Put a cursor before the first leaf below ``root``, inside the leaf of another cursor."""
    raise NotImplementedError


def advance(
    x: Any, nodes: Any, tables: Any, region: Any, walk: Any, stack: Any, leaves: Any,
    reaches: Any, room: Any,
) -> int:  # fmt: skip
    """Go on to the next leaves, as many as there is room for; return how many there were.

    With room for one, ``region`` is the leaf's when it stops there. When there are no more leaves,
    the region is what it was at the start.
    """
    raise NotImplementedError


def leave_inside(outer: Any, walk: Any) -> None:
    """Forget a cursor that was placed inside another's leaf and has no more leaves."""
    raise NotImplementedError


@inlined
def reset_region(region, tables, allowed):  # type: ignore[no-untyped-def]
    """Every hole may be anything, but for what ``allowed`` (words,) says of its set."""
    for v in range(tables.n_variables):
        region.low[v] = 0
        region.high[v] = tables.offset[v + 1] - tables.offset[v] - 1
        region.recorded[v] = 0
    for word in range(tables.n_words):
        region.sets[word] = allowed[word]


@inlined
def save_region(frame, v, tables, region, frames):  # type: ignore[no-untyped-def]
    """Note in a frame what is left of variable ``v``."""
    if tables.n_levels[v] > 0:
        first, saved = tables.set_offset[v], frame * frames.words
        for word in range(tables.n_levels[v] // 64 + 1):
            frames.sets[saved + word] = region.sets[first + word]
        return
    frames.low[frame] = region.low[v]
    frames.high[frame] = region.high[v]
    frames.recorded[frame] = region.recorded[v]


@inlined
def restore_region(frame, v, tables, region, frames):  # type: ignore[no-untyped-def]
    """Put back what :func:`save_region` noted."""
    if tables.n_levels[v] > 0:
        first, saved = tables.set_offset[v], frame * frames.words
        for word in range(tables.n_levels[v] // 64 + 1):
            region.sets[first + word] = frames.sets[saved + word]
        return
    region.low[v] = frames.low[frame]
    region.high[v] = frames.high[frame]
    region.recorded[v] = frames.recorded[frame]


@inlined
def confine(frame, node, v, right, nodes, tables, region, frames):  # type: ignore[no-untyped-def]
    """Confine variable ``v`` to the left or right side of what the frame noted, at a split."""
    if tables.n_levels[v] > 0:
        first, saved, split = tables.set_offset[v], frame * frames.words, nodes.set_start[node]
        for word in range(tables.n_levels[v] // 64 + 1):
            bits = nodes.sets[split + word]
            region.sets[first + word] = frames.sets[saved + word] & (~bits if right else bits)
        return
    low, high = frames.low[frame], frames.high[frame]
    middle = min(max(tables.position[node], low), high)
    region.low[v] = middle if right else low
    region.high[v] = high if right else middle
    # NaN goes to one side; on the other, the variable is known to be recorded.
    elsewhere = (nodes.missing_left[node] != 0) == right
    region.recorded[v] = 1 if elsewhere else frames.recorded[frame]


@njit
def add_margin(  # type: ignore[no-untyped-def]
    points, allowed, nodes, tables, region, walk, stack, found, value, tree_output, out,
):  # fmt: skip
    """Add the expected margin of each row to ``out`` (rows, outputs): Prop. 1, no reach kept."""
    n_rows, n_columns = points.shape
    n_trees, width, n_outputs = len(nodes.roots), value.shape[1], out.shape[1]
    records = pointers((points, allowed, nodes, tables, region, walk, stack, found))
    points_, allowed_, nodes_, tables_, region_, walk_, stack_, found_ = records
    value_, output_, out_ = pointers((value, tree_output, out))
    for row in range(n_rows):
        x = shift(points_, row * n_columns)
        reset_region(region_, tables_, shift(allowed_, row * tables_.n_words))
        begin_row(x, row, tables_, region_, walk_)
        for tree in range(n_trees):
            place(stack_, nodes_.roots[tree], walk_, row)
            n = advance(
                x, nodes_, tables_, region_, walk_, stack_, found_.leaves, found_.reaches,
                found_.room,
            )  # fmt: skip
            for j in range(width):
                expected = 0.0
                for i in range(n):
                    expected += found_.reaches[i] * value_[found_.leaves[i] * width + j]
                out_[row * n_outputs + output_[tree] + j] += expected


@njit
def emit_reach(  # type: ignore[no-untyped-def]
    points, allowed, nodes, leaf_start, tables, region, walk, stack, tree, row, out_row,
    out_leaf, out_reach,
):  # fmt: skip
    """Write (row, leaf, reach) of a block of rows, row by row, until ``out`` is full.

    Starts at (``tree``, ``row``); returns the number of entries and where to go on.
    """
    n_rows, n_columns = points.shape
    n_trees, capacity = len(nodes.roots), len(out_leaf)
    records = pointers((points, allowed, nodes, tables, region, walk, stack))
    points_, allowed_, nodes_, tables_, region_, walk_, stack_ = records
    leaves, reaches = pointers((out_leaf, out_reach))
    count = 0
    while row < n_rows:
        x = shift(points_, row * n_columns)
        reset_region(region_, tables_, shift(allowed_, row * tables_.n_words))
        begin_row(x, row, tables_, region_, walk_)
        while tree < n_trees:
            # One to spare: an array that is full means that the cursor is not done.
            if count + leaf_start[tree + 1] - leaf_start[tree] >= capacity:
                return count, tree, row
            place(stack_, nodes_.roots[tree], walk_, row)
            found = advance(
                x, nodes_, tables_, region_, walk_, stack_, shift(leaves, count),
                shift(reaches, count), capacity - count,
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
    """
    n_rows, n_columns = points.shape
    n_trees, width = len(nodes.roots), value.shape[1]
    records = pointers((points, allowed, nodes, tables, region, walk, outer, inner, found))
    points_, allowed_, nodes_, tables_, region_, walk_, outer_, inner_, found_ = records
    mates, mate_reach = found_.leaves, found_.reaches
    for row in range(n_rows):
        x = shift(points_, row * n_columns)
        reset_region(region_, tables_, shift(allowed_, row * tables_.n_words))
        begin_row(x, row, tables_, region_, walk_)
        for tree in range(n_trees):
            output = tree_output[tree]
            place(outer_, nodes_.roots[tree], walk_, row)
            # The outer cursor stops at each leaf, with the leaf's region in hand.
            while advance(
                x, nodes_, tables_, region_, walk_, outer_, found_.one, found_.one_reach, 1
            ):
                leaf, reach = found_.one[0], found_.one_reach[0]
                if len(pairs) > 0:
                    pairs[leaf, leaf] += row_weight[row] * reach
                if len(squares) > 0:
                    for j in range(width):
                        squares[row, output + j] += reach * value[leaf, j] ** 2
                for other in range(tree + 1, n_trees):
                    if len(squares) > 0 and tree_output[other] != output:
                        continue
                    place_inside(inner_, nodes_.roots[other], outer_, walk_)
                    n = advance(
                        x, nodes_, tables_, region_, walk_, inner_, mates, mate_reach, found_.room
                    )
                    leave_inside(outer_, walk_)
                    if len(pairs) > 0:
                        for i in range(n):
                            pairs[leaf, mates[i]] += row_weight[row] * mate_reach[i]
                    if len(squares) > 0:
                        for j in range(width):
                            expected = 0.0
                            for i in range(n):
                                expected += mate_reach[i] * value[mates[i], j]
                            squares[row, output + j] += 2.0 * value[leaf, j] * expected
