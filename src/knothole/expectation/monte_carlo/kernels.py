"""Kernels of :mod:`knothole.expectation.monte_carlo.engine`: 64 completions as the bits of a word.

A row walks all trees at once, a level at a time, with the list of nodes that its draws have come
to and the words of those that are there (:func:`walk_levels`); which draws go left is read from
its masks (:mod:`knothole.expectation.monte_carlo.masks`). Where splits are not all numeric, or
trees are
deep, it walks tree by tree and leaf by leaf (:func:`walk_trees`). Both find the same leaves in the
same order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from knothole.compiled.bits import lowest_bit, popcount
from knothole.compiled.policy import inlined, inner, njit
from knothole.compiled.sobol import WORD
from knothole.expectation.cuts import Lookup
from knothole.expectation.engine import NodeArrays
from knothole.expectation.exact.product_kernels import follow
from knothole.expectation.monte_carlo.masks import ALL, fill_masks

# A node, side by side in memory: a row goes through all trees, which do not fit the first cache.
# The draws below the cut are ``masks[mask_row]``. A leaf is its own left child, where all go.
STEP = np.dtype([("mask_row", "u4"), ("left", "u4")])
# Trees whose nodes a row is at together: few enough for lists that fit the first cache.
TREES = 128


class Forest(NamedTuple):
    """The trees as rows walk them; whatever is ``Any`` is an array.

    Attributes
    ----------
    nodes : NodeArrays
    steps : STEP (nodes,)
    leaf_tree : int32 (leaves,)
    look : Lookup
    levels : int
        Depth of the deepest tree.
    plain : bool
        Whether splits are numeric and nothing, observed or drawn, is "not recorded".
    """

    nodes: NodeArrays
    steps: Any
    leaf_tree: Any
    look: Lookup
    levels: int
    plain: bool


class Scratch(NamedTuple):
    """Working memory of a walk; not to be shared between threads.

    ``leaves`` and ``leaf_masks`` are where it puts the leaves that some draw reaches, tree by
    tree, and the words of those that do; the entries of tree ``t`` end before ``tree_stop[t]``.
    """

    masks: Any
    absent: Any
    found: Any
    node: Any
    mask: Any
    leaves: Any
    leaf_masks: Any
    tree_stop: Any


class Reached(NamedTuple):
    """Leaves that the draws of a chunk's rows reach: the entries of all rows, tree by tree.

    ``stop`` (rows, trees) is where the entries of each row's trees end.
    """

    leaf: Any
    mask: Any
    stop: Any


@inner
def left_mask(node, v, forest, masks, absent):  # type: ignore[no-untyped-def]
    """Draws that go left at a categorical split on a hole, or are not recorded."""
    _, _, _, _, missing_left, set_start, sets, _ = forest.nodes
    offset, n_levels = forest.look.offset, forest.look.n_levels
    goes = np.uint64(0)
    if missing_left[node]:
        goes |= absent[v]
    for code in range(n_levels[v]):
        inside = (sets[set_start[node] + (code >> 6)] >> np.uint64(code & 63)) & np.uint64(1)
        if inside != 0:
            goes |= masks[offset[v] + code]
    return goes


@inner
def walk_trees(points, forest, scratch):  # type: ignore[no-untyped-def]
    """Leaves that a row's completions reach, tree by tree; returns how many.

    ``scratch.node`` and ``scratch.mask`` are a stack of the sides that are still to be visited.
    """
    masks, absent, _, nodes, both, leaves, leaf_masks, tree_stop = scratch
    node, mask = nodes[0], both[0]
    roots, feature, left = forest.nodes.roots, forest.nodes.feature, forest.nodes.left
    steps, plain = forest.steps, forest.plain
    count = 0
    for tree in range(len(roots)):
        node[0] = roots[tree]
        mask[0] = ALL
        top = 0
        while top >= 0:
            here, draws = follow(points, node[top], forest.nodes, plain), mask[top]
            while feature[here] >= 0:
                goes = masks[steps[here].mask_row]
                if not plain:
                    goes |= left_mask(here, feature[here], forest, masks, absent)
                goes &= draws
                if goes != 0 and goes != draws:
                    node[top] = left[here] + 1
                    mask[top] = draws ^ goes
                    top += 1
                    here = left[here]
                    draws = goes
                else:
                    here = left[here] + (goes == 0)
                here = follow(points, here, forest.nodes, plain)
            leaves[count] = left[here]
            leaf_masks[count] = draws
            count += 1
            top -= 1
        tree_stop[tree] = count
    return count


@inner
def walk_levels(forest, scratch):  # type: ignore[no-untyped-def]
    """Leaves that a row's completions reach, a level of many trees at a time; returns how many.

    Without branches: where draws go cannot be guessed. Every node on the list is replaced by its
    left child and then, if some draws go there, the right one; a child that none goes to is
    overwritten by what comes next. ``node`` (2, leaves + 1) and ``mask`` are the list before and
    after a level.
    """
    masks, _, _, node, mask, leaves, leaf_masks, tree_stop = scratch
    roots, left, steps = forest.nodes.roots, forest.nodes.left, forest.steps
    leaf_tree, levels = forest.leaf_tree, forest.levels
    count = 0
    for first in range(0, len(roots), TREES):
        n = np.uint64(min(TREES, len(roots) - first))
        for t in range(n):
            node[0, t] = roots[first + t]
            mask[0, t] = ALL
        side = 0
        for _ in range(levels):
            here, draws = node[side], mask[side]
            side = 1 - side
            next_node, next_mask = node[side], mask[side]
            length, n = n, np.uint64(0)
            for e in range(length):
                step = steps[here[e]]
                goes = masks[step.mask_row] & draws[e]
                stays = goes ^ draws[e]
                next_node[n] = step.left
                next_mask[n] = goes
                n += np.uint64(goes != 0)
                next_node[n] = np.uint32(step.left + np.uint32(1))
                next_mask[n] = stays
                n += np.uint64(stays != 0)
        for e in range(n):
            leaf = left[node[side, e]]
            leaves[count] = leaf
            leaf_masks[count] = mask[side, e]
            count += 1
            tree_stop[leaf_tree[leaf]] = count
    return count


@inner
def complete_row(points, draws, row, forest, by_tree, again, scratch):  # type: ignore[no-untyped-def]
    """Masks of a row, then its leaves and their words, into ``scratch``; returns how many.

    ``by_tree`` is True where it walks tree by tree; else None, so that no such walk is compiled.
    ``again`` says that the row is the same as in the last call, only its draws are others.
    """
    masks, absent, found = scratch.masks, scratch.absent, scratch.found
    if by_tree is None:
        fill_masks(points, draws, row, forest.look, not again, found, masks, absent)
        return walk_levels(forest, scratch)
    # (Not a literal False, of which numba would compile a variant.)
    fill_masks(points, draws, row, forest.look, not by_tree, found, masks, absent)
    return walk_trees(points[row], forest, scratch)


@inlined
def counts_by_group(mask):  # type: ignore[no-untyped-def]
    """How many draws of each group are set, in the bytes of a word: a group has one byte."""
    pairs = mask - ((mask >> np.uint64(1)) & np.uint64(0x5555555555555555))
    fours = (pairs & np.uint64(0x3333333333333333)) + (
        (pairs >> np.uint64(2)) & np.uint64(0x3333333333333333)
    )
    return (fours + (fours >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)


@inlined
def count_of(counts, shift):  # type: ignore[no-untyped-def]
    """One of the bytes of :func:`counts_by_group`, from the bit ``shift`` on."""
    return float(np.int64((counts >> shift) & np.uint64(0xFF)))


@inner
def group_sums(leaves, masks, tree_stop, value, tree_output, out):  # type: ignore[no-untyped-def]
    """Add, for each of the eight groups of draws, the leaf values summed over the group's draws.

    ``out`` is (8, outputs). All entries of trees of one output are summed in one go.
    """
    entry, tree, n_trees = 0, 0, len(tree_output)
    while tree < n_trees:
        first = tree_output[tree]
        while tree < n_trees and tree_output[tree] == first:
            tree += 1
        stop = tree_stop[tree - 1]
        for j in range(value.shape[1]):
            a, b, c, d, e, f, g, h = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
            for i in range(entry, stop):
                x = value[leaves[i], j]
                counts = counts_by_group(masks[i])
                a += count_of(counts, np.uint64(0)) * x
                b += count_of(counts, np.uint64(8)) * x
                c += count_of(counts, np.uint64(16)) * x
                d += count_of(counts, np.uint64(24)) * x
                e += count_of(counts, np.uint64(32)) * x
                f += count_of(counts, np.uint64(40)) * x
                g += count_of(counts, np.uint64(48)) * x
                h += count_of(counts, np.uint64(56)) * x
            out[0, first + j] += a
            out[1, first + j] += b
            out[2, first + j] += c
            out[3, first + j] += d
            out[4, first + j] += e
            out[5, first + j] += f
            out[6, first + j] += g
            out[7, first + j] += h
        entry = stop


@inner
def draw_margins(leaves, masks, tree_stop, value, tree_output, out):  # type: ignore[no-untyped-def]
    """Add the leaf values to the margins of the draws that reach them, ``out`` (64, outputs)."""
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
def chunk_groups(points, draws, forest, by_tree, value, tree_output, scratch, out):  # type: ignore[no-untyped-def]
    """Group sums of a chunk of rows; ``draws`` (words, ...), ``out`` (rows, groups, outputs)."""
    leaves, leaf_masks, tree_stop = scratch[5:]
    for row in range(len(points)):
        for word in range(len(draws)):
            complete_row(points, draws[word], row, forest, by_tree, word > 0, scratch)
            group_sums(leaves, leaf_masks, tree_stop, value, tree_output, out[row])


@njit
def chunk_margins(points, draws, forest, by_tree, value, tree_output, scratch, out):  # type: ignore[no-untyped-def]
    """Margins of completions; ``draws`` (words, ...), ``out`` (rows, words, 64, outputs)."""
    leaves, leaf_masks, tree_stop = scratch[5:]
    for row in range(len(points)):
        for word in range(len(draws)):
            complete_row(points, draws[word], row, forest, by_tree, word > 0, scratch)
            draw_margins(leaves, leaf_masks, tree_stop, value, tree_output, out[row, word])


@njit
def chunk_masks(points, draws, forest, by_tree, row, scratch, out):  # type: ignore[no-untyped-def]
    """Write the leaves that each row's draws reach, with the words of those that do.

    From ``row`` on until there may be no room for another; entries of tree ``t`` of a row end
    before ``out.stop[row, t]``. Returns the number of entries and the next row.
    """
    out_leaf, out_mask, out_stop = out
    leaves, leaf_masks, tree_stop = scratch[5:]
    count = 0
    while row < len(points) and count + len(leaves) <= len(out_leaf):
        n = complete_row(points, draws, row, forest, by_tree, False, scratch)
        for entry in range(n):
            out_leaf[count + entry] = leaves[entry]
            out_mask[count + entry] = leaf_masks[entry]
        for tree in range(len(tree_stop)):
            out_stop[row, tree] = count + tree_stop[tree]
        count += n
        row += 1
    return count, row


@njit
def chunk_pairs(points, draws, row_weight, forest, by_tree, scratch, out):  # type: ignore[no-untyped-def]
    """Add the rows' weighted pair reach to the upper part of ``out`` (leaves, leaves)."""
    leaves, leaf_masks, tree_stop = scratch[5:]
    for row in range(len(points)):
        n = complete_row(points, draws, row, forest, by_tree, False, scratch)
        unit = row_weight[row] / WORD
        tree = 0
        for i in range(n):
            while i >= tree_stop[tree]:
                tree += 1
            out[leaves[i], leaves[i]] += unit * float(popcount(leaf_masks[i]))
            for j in range(tree_stop[tree], n):
                out[leaves[i], leaves[j]] += unit * float(popcount(leaf_masks[i] & leaf_masks[j]))
