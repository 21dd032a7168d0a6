"""Walks with the regions of holes in hand: margins, reach, second moments and pair reach.

A *position* goes from leaf to leaf of one tree, through those that a row can reach, depth first.
It carries the region of every hole, so a second position can start inside a leaf of the first and
go through another tree there: that is pair reach (Lemma 2). It also starts from any region, such as
a one-hot block observed in part.

The kernels here do not know the density. What differs is in five functions, which
:mod:`knothole.expectation.exact.product_position` (mixtures of products) and
:mod:`knothole.expectation.exact.latent_position` (latent trees) provide for their own kind of
``given``:
what the density says of rows, given x_o. numba picks them by its type.

Arrays travel in records, because kernels take many of them. A kernel turns the arrays into
pointers at its top (:mod:`knothole.compiled.pointers`): below, ``x`` is the pointer to a row's
points and matrices are indexed by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numba.extending import overload

from knothole.compiled.pointers import pointers, shift
from knothole.compiled.policy import OPTIONS, inlined, njit

# What is left to do in a frame.
ENTER, RIGHT, LEAVE = 0, 1, 2


class WalkTables(NamedTuple):
    """What :class:`~knothole.expectation.tables.Tables` holds, for kernels."""

    position: Any  # (nodes,) of the cut, in its variable's grid
    offset: Any  # (variables + 1,) first row of each variable in ``mass``
    mass: Any  # (grid rows, states)
    absent: Any  # (variables, states)
    n_levels: Any  # (variables,)
    set_offset: Any  # (variables + 1,) first word of each variable in a region's sets
    n_variables: int
    n_words: int
    states: int


class Rows(NamedTuple):
    """Rows to walk for."""

    points: Any  # (rows, variables)
    allowed: Any  # (rows, words)
    weight: Any  # (rows,)


class Region(NamedTuple):
    """What remains of each variable that is a hole; or, in frames, of one variable in each."""

    low: Any  # (variables,) grid positions
    high: Any
    recorded: Any  # (variables,) whether "not recorded" is excluded
    sets: Any  # (words,) the codes that remain


class Frames(NamedTuple):
    """A stack: a frame for each split on a hole between the root and where a position is."""

    top: Any  # (1,) the frame in use
    reach: Any  # (frames,)
    node: Any
    phase: Any
    saved: Any  # Region: what remained of the split's variable on arrival
    words: int  # of a saved set


class Found(NamedTuple):
    """Room for leaves that a position finds, and their reach.

    A position that fills its room has not finished: for all leaves of a tree there must be one
    place more.
    """

    leaves: Any
    reaches: Any
    room: int


class Working(NamedTuple):
    """What a walk works on: the region, two positions, and room for one leaf and for a tree's."""

    region: Any
    outer: Any
    inner: Any
    one: Any
    all: Any


def begin_row(x: Any, row: Any, tables: Any, region: Any, given: Any) -> None:
    """Get ready for a row; ``region`` has been reset."""
    raise NotImplementedError


def place(position: Any, root: Any, given: Any, row: Any) -> None:
    """Put a position before the first leaf below ``root``, with all of the row's probability."""
    raise NotImplementedError


def place_inside(position: Any, root: Any, outer: Any, given: Any) -> None:
    """Put a position before the first leaf below ``root``, inside the leaf of another position."""
    raise NotImplementedError


def advance(
    x: Any, nodes: Any, tables: Any, region: Any, given: Any, position: Any, found: Any
) -> int:
    """Go on to the next leaves, as many as there is room for; return how many there were.

    With room for one, ``region`` is the leaf's when it stops there. When there are no more leaves,
    the region is what it was at the start.
    """
    raise NotImplementedError


def leave_inside(outer: Any, given: Any) -> None:
    """Forget a position that was placed inside another's leaf and has no more leaves."""
    raise NotImplementedError


def provide(kind: type, *functions: Callable[..., Any]) -> None:
    """Let functions stand for those of the same names above, for one kind of ``given``."""
    for function in functions:
        _provide(kind, function)


def _provide(kind: type, function: Callable[..., Any]) -> None:
    @overload(globals()[function.__name__], jit_options=OPTIONS, strict=False)
    def choose(*arguments: Any) -> Any:
        kinds = [getattr(argument, "instance_class", None) for argument in arguments]
        return function if kind in kinds else None


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
def save_hole(frame, v, tables, region, frames, back):  # type: ignore[no-untyped-def]
    """Note in a frame what remains of variable ``v``, or put it back."""
    in_region = region, v, tables.set_offset[v]
    in_frame = frames.saved, frame, frame * frames.words
    source, i, word_i = in_frame if back else in_region
    target, j, word_j = in_region if back else in_frame
    if tables.n_levels[v] > 0:
        for word in range(tables.n_levels[v] // 64 + 1):
            target.sets[word_j + word] = source.sets[word_i + word]
        return
    target.low[j] = source.low[i]
    target.high[j] = source.high[i]
    target.recorded[j] = source.recorded[i]


@inlined
def confine(frame, node, v, right, nodes, tables, region, frames):  # type: ignore[no-untyped-def]
    """Confine variable ``v`` to the left or right side of what the frame noted, at a split."""
    saved = frames.saved
    if tables.n_levels[v] > 0:
        first, held, split = tables.set_offset[v], frame * frames.words, nodes.set_start[node]
        for word in range(tables.n_levels[v] // 64 + 1):
            bits = nodes.sets[split + word]
            region.sets[first + word] = saved.sets[held + word] & (~bits if right else bits)
        return
    low, high = saved.low[frame], saved.high[frame]
    middle = min(max(tables.position[node], low), high)
    region.low[v] = middle if right else low
    region.high[v] = high if right else middle
    # NaN goes to one side; on the other, the variable is known to be recorded.
    elsewhere = (nodes.missing_left[node] != 0) == right
    region.recorded[v] = 1 if elsewhere else saved.recorded[frame]


@njit
def add_margin(rows, nodes, leaves, tables, given, working, out):  # type: ignore[no-untyped-def]
    """Add the expected margin of each row to ``out`` (rows, outputs): Prop. 1, no reach kept."""
    n_rows, n_columns = rows.points.shape
    n_trees, width, n_outputs = len(nodes.roots), leaves.value.shape[1], out.shape[1]
    rows_, nodes_, leaves_, tables_, given_ = pointers((rows, nodes, leaves, tables, given))
    working_, out_ = pointers((working, out))
    region, position, _, _, found = working_
    for row in range(n_rows):
        x = shift(rows_.points, row * n_columns)
        reset_region(region, tables_, shift(rows_.allowed, row * tables_.n_words))
        begin_row(x, row, tables_, region, given_)
        for tree in range(n_trees):
            place(position, nodes_.roots[tree], given_, row)
            n = advance(x, nodes_, tables_, region, given_, position, found)
            for j in range(width):
                expected = 0.0
                for i in range(n):
                    expected += found.reaches[i] * leaves_.value[found.leaves[i] * width + j]
                out_[row * n_outputs + leaves_.output[tree] + j] += expected


@njit
def emit_reach(rows, nodes, leaves, tables, given, working, at, out):  # type: ignore[no-untyped-def]
    """Write (row, leaf, reach) of a chunk of rows, row by row, until ``out`` is full.

    Starts ``at`` (tree, row); returns the number of entries and where to go on.
    """
    tree, row = at
    out_row, out_leaf, out_reach = out
    n_rows, n_columns = rows.points.shape
    n_trees, capacity = len(nodes.roots), len(out_leaf)
    rows_, nodes_, tables_, given_ = pointers((rows, nodes, tables, given))
    working_, leaf, reach = pointers((working, out_leaf, out_reach))
    region, position, _, _, _ = working_
    count = 0
    while row < n_rows:
        x = shift(rows_.points, row * n_columns)
        reset_region(region, tables_, shift(rows_.allowed, row * tables_.n_words))
        begin_row(x, row, tables_, region, given_)
        while tree < n_trees:
            # One to spare: an array that is full means that the position is not done.
            if count + leaves.start[tree + 1] - leaves.start[tree] >= capacity:
                return count, (tree, row)
            place(position, nodes_.roots[tree], given_, row)
            found = Found(shift(leaf, count), shift(reach, count), capacity - count)
            n = advance(x, nodes_, tables_, region, given_, position, found)
            for i in range(count, count + n):
                out_row[i] = row
            count += n
            tree += 1
        tree = 0
        row += 1
    return count, (tree, row)


@njit
def add_pairs(rows, nodes, leaves, tables, given, working, pairs, squares):  # type: ignore[no-untyped-def]
    """Visit every pair of leaves that a row reaches at once, in trees t <= t' (Lemmas 1 and 2).

    Where ``pairs`` (leaves, leaves) is not empty, pair reach times the row's weight is added to
    it (M of Prop. 3). Where ``squares`` (rows, outputs) is not empty, E[margin^2] of each output,
    without the base, is added to it; then only trees that serve the same output are paired.
    """
    n_rows, n_columns = rows.points.shape
    row_weight, value, tree_output = rows.weight, leaves.value, leaves.output
    n_trees, width = len(nodes.roots), value.shape[1]
    rows_, nodes_, tables_, given_, working_ = pointers((rows, nodes, tables, given, working))
    region, outer, inner, one, mates = working_
    for row in range(n_rows):
        x = shift(rows_.points, row * n_columns)
        reset_region(region, tables_, shift(rows_.allowed, row * tables_.n_words))
        begin_row(x, row, tables_, region, given_)
        for tree in range(n_trees):
            output = tree_output[tree]
            place(outer, nodes_.roots[tree], given_, row)
            # The outer position stops at each leaf, with the leaf's region in hand.
            while advance(x, nodes_, tables_, region, given_, outer, one):
                leaf, reach = one.leaves[0], one.reaches[0]
                if len(pairs) > 0:
                    pairs[leaf, leaf] += row_weight[row] * reach
                if len(squares) > 0:
                    for j in range(width):
                        squares[row, output + j] += reach * value[leaf, j] ** 2
                for other in range(tree + 1, n_trees):
                    if len(squares) > 0 and tree_output[other] != output:
                        continue
                    place_inside(inner, nodes_.roots[other], outer, given_)
                    n = advance(x, nodes_, tables_, region, given_, inner, mates)
                    leave_inside(outer, given_)
                    if len(pairs) > 0:
                        for i in range(n):
                            pairs[leaf, mates.leaves[i]] += row_weight[row] * mates.reaches[i]
                    if len(squares) > 0:
                        for j in range(width):
                            expected = 0.0
                            for i in range(n):
                                expected += mates.reaches[i] * value[mates.leaves[i], j]
                            squares[row, output + j] += 2.0 * value[leaf, j] * expected
