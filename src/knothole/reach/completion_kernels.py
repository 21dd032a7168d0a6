"""Kernels of :mod:`knothole.reach.completions`: 64 completions of a row as the bits of a word.

For a row and one word of draws, ``masks`` has a word for every row of the grid
(:class:`~knothole.reach.tables.Grid`): of a numeric hole, the draws below each cut; of a
categorical one, the draws with each code; and one word more that is always 0. ``absent`` has the
draws in which a numeric variable is not recorded. The draws that go left at a split on a hole are
then one look-up and one AND.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from knothole.compiled import njit
from knothole.reach.product_kernels import observed_right
from knothole.trees.traverse import LEVELS

LANES = 64
CELLS = 256
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)

# A node, side by side in memory: a row goes through all trees, which do not fit the first cache.
# At a split on a hole, the draws below the cut are ``masks[mask_row]``.
STEP = np.dtype([("cut", "f8"), ("feature", "i4"), ("left", "i4"), ("mask_row", "i8")])


@intrinsic
def popcount(typing_context: Any, word: Any) -> Any:
    """Number of bits set in a uint64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), generate


@intrinsic
def lowest_bit(typing_context: Any, word: Any) -> Any:
    """Position of the lowest bit set in a uint64 that is not 0."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


@njit
def fill_masks(points, draws, row, grid, masks, absent):  # type: ignore[no-untyped-def]
    """Masks of the holes of one row from its draws (variables, lanes).

    ``cuts[cut_start[v]:cut_start[v + 1]]`` are the cuts of variable ``v``; variables that no
    tree splits on (``used`` is False) are passed over. A draw is looked up in one of :data:`CELLS`
    cells of equal width, whose first cut is in ``cells``, and goes on from there; ``rulers`` has
    where a variable's cells begin, and how many there are per unit.
    """
    cuts, cut_start, cells, rulers, _, offset, n_levels, used = grid
    for v in range(len(n_levels)):
        if not used[v] or not np.isnan(points[row, v]):
            continue
        first = offset[v]
        absent[v] = np.uint64(0)
        for i in range(first, offset[v + 1]):
            masks[i] = np.uint64(0)
        if n_levels[v] > 0:
            for lane in range(LANES):
                masks[first + int(draws[row, v, lane])] |= np.uint64(1) << np.uint64(lane)
            continue
        start, stop = cut_start[v], cut_start[v + 1]
        lowest, scale = rulers[v]
        for lane in range(LANES):
            x = draws[row, v, lane]
            bit = np.uint64(1) << np.uint64(lane)
            if x == np.inf:
                absent[v] |= bit
                continue
            cell = min(max((x - lowest) * scale, 0.0), CELLS - 1.0)
            # From here on exactly, whatever rounding did to the cell.
            below = cells[v, int(cell)]
            while below > start and cuts[below - 1] > x:
                below -= 1
            while below < stop and cuts[below] <= x:
                below += 1
            masks[first + below - start + 1] |= bit
        for i in range(first + 1, offset[v + 1]):
            masks[i] |= masks[i - 1]


@njit
def first_holes(points, steps, roots, depths, out):  # type: ignore[no-untyped-def]
    """Where each row first meets a hole or a leaf in each tree, ``out`` (rows, trees).

    For plain walks. As in :mod:`knothole.trees.traverse`, all rows of the block take a level
    together; a row stays where it is when its value is NaN, or at a leaf.
    """
    for tree in range(len(roots)):
        for row in range(len(points)):
            out[row, tree] = roots[tree]
        if depths[tree] > LEVELS:
            continue
        for _ in range(depths[tree]):
            for row in range(len(points)):
                node = out[row, tree]
                step = steps[node]
                x = points[row, max(step.feature, 0)]
                stays = (step.feature < 0) | np.isnan(x)
                out[row, tree] = node if stays else step.left + (x >= step.cut)


@njit
def left_mask(node, v, offset, masks, absent, missing_left, set_start, sets, n_levels):  # type: ignore[no-untyped-def]
    """Draws that go left at a categorical split on a hole, or are not recorded."""
    goes = np.uint64(0)
    if missing_left[node]:
        goes |= absent[v]
    for code in range(n_levels[v]):
        inside = (sets[set_start[node] + (code >> 6)] >> np.uint64(code & 63)) & np.uint64(1)
        if inside != 0:
            goes |= masks[offset[v] + code]
    return goes


@njit
def walk_row(  # type: ignore[no-untyped-def]
    points, row, starts, nodes, grid, masks, absent, plain, slot_node, slot_mask, out_leaf,
    out_mask, tree_stop,
):  # fmt: skip
    """Leaves that a row's completions reach, with the word of those that do.

    Trees follow each other, each from the node in ``starts`` (rows, trees); the entries of tree
    ``t`` end before ``tree_stop[t]``.
    """
    _, _, cut, _, missing_left, set_start, sets, _ = nodes
    _, _, _, _, steps, offset, n_levels, _ = grid
    count = 0
    for tree in range(starts.shape[1]):
        slot_node[0] = starts[row, tree]
        slot_mask[0] = ALL
        top = 0
        while top >= 0:
            node = slot_node[top]
            mask = slot_mask[top]
            while steps[node].feature >= 0:
                step = steps[node]
                x = points[row, step.feature]
                if not np.isnan(x):
                    if plain:
                        node = step.left + (x >= step.cut)
                    else:
                        node = step.left + observed_right(
                            x, node, cut, missing_left, set_start, sets
                        )
                    continue
                goes = masks[step.mask_row]
                if not plain:
                    goes |= left_mask(
                        node, step.feature, offset, masks, absent, missing_left, set_start, sets,
                        n_levels,
                    )  # fmt: skip
                goes &= mask
                if goes != 0 and goes != mask:
                    slot_node[top] = step.left + 1
                    slot_mask[top] = mask ^ goes
                    top += 1
                    node = step.left
                    mask = goes
                else:
                    node = step.left + (goes == 0)
            out_leaf[count] = steps[node].left
            out_mask[count] = mask
            count += 1
            top -= 1
        tree_stop[tree] = count
    return count


@njit
def complete_row(points, draws, row, starts, nodes, grid, plain, scratch):  # type: ignore[no-untyped-def]
    """Masks of a row, then its leaves and their words, into ``scratch``; returns how many."""
    masks, absent, slot_node, slot_mask, leaves, leaf_masks, tree_stop = scratch
    fill_masks(points, draws, row, grid, masks, absent)
    return walk_row(points, row, starts, nodes, grid, masks, absent, plain, slot_node, slot_mask,
                    leaves, leaf_masks, tree_stop)  # fmt: skip


@njit
def group_sums(leaves, masks, tree_stop, groups, value, tree_output, out):  # type: ignore[no-untyped-def]
    """Add, for each group of lanes, the leaf values summed over the group's draws.

    ``groups`` holds a word for each group, all of one size; ``out`` is (groups + 1, outputs). A
    leaf that all draws reach is added once, to the last row, which counts for every group.
    """
    width = value.shape[1]
    common = len(groups)
    entry = 0
    for tree in range(len(tree_output)):
        first = tree_output[tree]
        while entry < tree_stop[tree]:
            if masks[entry] == ALL:
                for j in range(width):
                    out[common, first + j] += value[leaves[entry], j]
            else:
                for g in range(len(groups)):
                    draws = float(popcount(masks[entry] & groups[g]))
                    for j in range(width):
                        out[g, first + j] += draws * value[leaves[entry], j]
            entry += 1


@njit
def lane_margins(leaves, masks, tree_stop, value, tree_output, out):  # type: ignore[no-untyped-def]
    """Add the leaf values to the margins of the draws that reach them, ``out`` (lanes, outputs)."""
    width = value.shape[1]
    entry = 0
    for tree in range(len(tree_output)):
        first = tree_output[tree]
        while entry < tree_stop[tree]:
            mask = masks[entry]
            for j in range(width):
                x = value[leaves[entry], j]
                rest = mask
                while rest != 0:
                    out[lowest_bit(rest), first + j] += x
                    rest &= rest - np.uint64(1)
            entry += 1


@njit
def block_groups(  # type: ignore[no-untyped-def]
    points, draws, starts, nodes, grid, plain, groups, value, tree_output, scratch, out,
):  # fmt: skip
    """Group sums of a block of rows for one word of draws; ``out`` (rows, groups + 1, outputs)."""
    leaves, leaf_masks, tree_stop = scratch[4:]
    for row in range(len(points)):
        complete_row(points, draws, row, starts, nodes, grid, plain, scratch)
        group_sums(leaves, leaf_masks, tree_stop, groups, value, tree_output, out[row])


@njit
def block_lanes(  # type: ignore[no-untyped-def]
    points, draws, starts, nodes, grid, plain, value, tree_output, scratch, out,
):  # fmt: skip
    """Margins of a block's 64 completions each; ``out`` (rows, lanes, outputs)."""
    leaves, leaf_masks, tree_stop = scratch[4:]
    for row in range(len(points)):
        complete_row(points, draws, row, starts, nodes, grid, plain, scratch)
        lane_margins(leaves, leaf_masks, tree_stop, value, tree_output, out[row])


@njit
def block_entries(  # type: ignore[no-untyped-def]
    points, draws, starts, nodes, grid, plain, row, scratch, out_row, out_leaf, out_reach,
):  # fmt: skip
    """Write (row, leaf, share of the draws) from ``row`` on until ``out`` is full."""
    leaves, leaf_masks, _ = scratch[4:]
    count = 0
    while row < len(points) and count + len(leaves) <= len(out_leaf):
        n = complete_row(points, draws, row, starts, nodes, grid, plain, scratch)
        for entry in range(n):
            out_row[count] = row
            out_leaf[count] = leaves[entry]
            out_reach[count] = float(popcount(leaf_masks[entry])) / LANES
            count += 1
        row += 1
    return count, row


@njit
def block_masks(  # type: ignore[no-untyped-def]
    points, draws, starts, nodes, grid, plain, row, scratch, out_leaf, out_mask, out_stop,
):  # fmt: skip
    """Write the leaves that each row's draws reach, with the words of those that do.

    From ``row`` on until there may be no room for another; entries of tree ``t`` of a row end
    before ``out_stop[row, t]``. Returns the number of entries and the next row.
    """
    leaves, leaf_masks, tree_stop = scratch[4:]
    count = 0
    while row < len(points) and count + len(leaves) <= len(out_leaf):
        n = complete_row(points, draws, row, starts, nodes, grid, plain, scratch)
        for entry in range(n):
            out_leaf[count + entry] = leaves[entry]
            out_mask[count + entry] = leaf_masks[entry]
        for tree in range(len(tree_stop)):
            out_stop[row, tree] = count + tree_stop[tree]
        count += n
        row += 1
    return count, row


@njit
def block_pairs(points, draws, starts, row_weight, nodes, grid, plain, scratch, out):  # type: ignore[no-untyped-def]
    """Add the rows' weighted pair reach to the upper part of ``out`` (leaves, leaves)."""
    leaves, leaf_masks, tree_stop = scratch[4:]
    for row in range(len(points)):
        n = complete_row(points, draws, row, starts, nodes, grid, plain, scratch)
        unit = row_weight[row] / LANES
        tree = 0
        for i in range(n):
            while i >= tree_stop[tree]:
                tree += 1
            out[leaves[i], leaves[i]] += unit * float(popcount(leaf_masks[i]))
            for j in range(tree_stop[tree], n):
                out[leaves[i], leaves[j]] += unit * float(popcount(leaf_masks[i] & leaf_masks[j]))
