"""Kernels of :mod:`knothole.learning.draw_matrix`.

A block's entries are (leaf, word) pairs, row by row and tree by tree; the entries of tree ``t`` of
a row end before ``stop[row, t]`` and begin where those of the tree before end. Bit ``i`` of the
word says that draw ``i`` of the row reaches the leaf. Values of draws are (rows, outputs, lanes).
"""

from __future__ import annotations

import numpy as np

from knothole.compiled.policy import inlined, njit
from knothole.reach.completions.kernels import ALL, LANES, lowest_bit, popcount


@inlined
def first_entry(stop, row, tree):  # type: ignore[no-untyped-def]
    """Where the entries of a row's tree begin."""
    if tree > 0:
        return stop[row, tree - 1]
    if row > 0:
        return stop[row - 1, stop.shape[1] - 1]
    return 0


@njit
def add_margins(leaf, mask, stop, first_tree, last_tree, theta, tree_output, out):  # type: ignore[no-untyped-def]
    """Add what leaves of some trees add to the margin of the draws that reach them."""
    for row in range(len(stop)):
        entry = first_entry(stop, row, first_tree)
        for tree in range(first_tree, last_tree):
            for j in range(theta.shape[1]):
                lanes = out[row, tree_output[tree] + j]
                for e in range(entry, stop[row, tree]):
                    x = theta[leaf[e], j]
                    if mask[e] == ALL:
                        for lane in range(LANES):
                            lanes[lane] += x
                        continue
                    rest = mask[e]
                    while rest != 0:
                        lanes[lowest_bit(rest)] += x
                        rest &= rest - np.uint64(1)
            entry = stop[row, tree]


@njit
def gather(leaf, mask, stop, first_tree, last_tree, values, row_weight, tree_output, out):  # type: ignore[no-untyped-def]
    """Add to ``out`` (leaves, width) the mean over draws of the values that reach each leaf."""
    for row in range(len(stop)):
        unit = row_weight[row] / LANES
        entry = first_entry(stop, row, first_tree)
        for tree in range(first_tree, last_tree):
            for j in range(out.shape[1]):
                lanes = values[row, tree_output[tree] + j]
                for e in range(entry, stop[row, tree]):
                    total = 0.0
                    if mask[e] == ALL:
                        for lane in range(LANES):
                            total += lanes[lane]
                    else:
                        rest = mask[e]
                        while rest != 0:
                            total += lanes[lowest_bit(rest)]
                            rest &= rest - np.uint64(1)
                    out[leaf[e], j] += unit * total
            entry = stop[row, tree]


@njit
def add_sums(leaf, mask, stop, draws, scale, y, row_weight, tree_output, weight, target):  # type: ignore[no-untyped-def]
    """Add reach, and reach times target, of the draws in the word ``draws``."""
    for row in range(len(stop)):
        unit = row_weight[row] * scale
        entry = first_entry(stop, row, 0)
        for tree in range(stop.shape[1]):
            for e in range(entry, stop[row, tree]):
                share = unit * float(popcount(mask[e] & draws))
                weight[leaf[e]] += share
                for j in range(target.shape[1]):
                    target[leaf[e], j] += share * y[row, tree_output[tree] + j]
            entry = stop[row, tree]


@njit
def add_pairs(leaf, mask, stop, leaf_start, place, row_weight, first, following, row_of, out):  # type: ignore[no-untyped-def]
    """Add pair reach to the upper part of ``out``, of the leaves that have a place (not -1) in it.

    Places grow with the numbers of leaves. A leaf's row of ``out`` is written for all rows of the
    block at once, while it is in cache: ``first`` (leaves,) and ``following`` (entries,) chain the
    entries of each leaf, and ``row_of`` (entries,) has their rows.
    """
    n_trees = stop.shape[1]
    for tree in range(n_trees):
        for i in range(leaf_start[tree], leaf_start[tree + 1]):
            first[i] = -1
        for row in range(len(stop)):
            for e in range(first_entry(stop, row, tree), stop[row, tree]):
                following[e] = first[leaf[e]]
                first[leaf[e]] = e
                row_of[e] = row
        for i in range(leaf_start[tree], leaf_start[tree + 1]):
            if place[i] < 0:
                continue
            pairs = out[place[i]]
            e = first[i]
            while e >= 0:
                row = row_of[e]
                unit = row_weight[row] / LANES
                word = mask[e]
                pairs[place[i]] += unit * float(popcount(word))
                for other in range(stop[row, tree], stop[row, n_trees - 1]):
                    j = place[leaf[other]]
                    if j >= 0:
                        pairs[j] += unit * np.int64(popcount(word & mask[other]))
                e = following[e]
