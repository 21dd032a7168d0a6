"""One small tree, grown on codes as scikit-learn's HistGradientBoosting grows it.

Every row has the slope and the curvature of its loss. The leaf whose split takes most off the loss
is split next: sums over its rows, by column and code, tell what a split takes off, and NaN is tried
on both sides. Of two children, sums are taken over the rows of the smaller one, and the other has
what is left. The library gives the same trees, and is what tests compare with, but takes several
times as long for trees this small.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Ints, Mask
from knothole.compiled.policy import inner, njit

# Codes of numbers at most; NaN has the one after those of its column.
DISTINCT = 64
# What trees are like.
LEAVES, LEAST_ROWS, LEAST_CURVATURE = 16, 15, 1e-3
RATE, PENALTY = 0.1, 1.0
NODES = 2 * LEAVES - 1


class Coded(NamedTuple):
    """Codes (rows, columns), and how many codes of numbers each column has."""

    code: NDArray[np.uint8]
    width: Ints


class Tree(NamedTuple):
    """Nodes: rows with a code up to ``code`` go to ``left``, the others to the one after it.

    Leaves have a value, and -1 for ``left``.
    """

    feature: Ints
    code: Ints
    missing_left: Mask
    left: Ints
    value: Floats


class Room(NamedTuple):
    """Rows in the order of their leaves, what is known of nodes, and sums by column and code."""

    rows: Ints
    spare: Ints
    place: Ints
    gain: Floats
    total: Floats
    total_left: Floats
    sums: Floats


def room_for(coded: Coded) -> Room:
    """Room for one tree at a time."""
    n_rows, n_columns = coded.code.shape
    nodes, floats = np.empty((NODES, 3), dtype=np.int64), np.empty((NODES, 3))
    sums = np.empty((LEAVES, n_columns, DISTINCT + 1, 3))
    rows = np.empty(n_rows, dtype=np.int64)
    return Room(rows, rows.copy(), nodes, np.empty(NODES), floats, floats.copy(), sums)


@njit
def grow(coded, slope, curvature, margin, room, tree):  # type: ignore[no-untyped-def]
    """Grow a tree, add its values to the margins of its rows, and say how many nodes it has."""
    rows, place, gain, total = room.rows, room.place, room.gain, room.total
    total[0, 0] = total[0, 1] = 0.0
    for i in range(len(rows)):
        rows[i] = i
        total[0, 0] += slope[i]
        total[0, 1] += curvature[i]
    total[0, 2] = len(rows)
    place[0, 0], place[0, 1], place[0, 2] = 0, len(rows), 0  # from, to, and which of the sums
    tree.left[0], tree.value[0], gain[0] = -1, 0.0, 0.0
    left = right = small = large = 0  # who is looked at next, from left to right
    while right < NODES - 1:
        if total[large, 2] >= 2 * LEAST_ROWS:
            place[small, 2] = (right + 1) // 2
            _add_up(coded, slope, curvature, room, small)
            if small != large:
                _take_off(coded.width, room.sums[place[small, 2]], room.sums[place[large, 2]])
            for child in range(left, right + 1):
                _seek(coded, room, tree, child)
        node = 0
        for other in range(right + 1):
            if gain[other] > gain[node]:
                node = other
        if not gain[node] > 0:
            break
        gain[node] = 0.0
        left, right = right + 1, right + 2
        middle = _divide(coded, room, tree, node)
        place[left, 0], place[left, 1] = place[node, 0], middle
        place[right, 0], place[right, 1] = middle, place[node, 1]
        tree.left[node] = left
        for k in range(3):
            total[left, k] = room.total_left[node, k]
            total[right, k] = total[node, k] - total[left, k]
        for child in range(left, right + 1):
            tree.left[child], gain[child] = -1, 0.0
            tree.value[child] = -total[child, 0] / (total[child, 1] + PENALTY)
        small = left if total[left, 2] < total[right, 2] else right
        large = left + right - small
        place[large, 2], j = place[node, 2], tree.feature[node]
        if room.sums[place[node, 2], j, coded.width[j], 2] == 0:
            tree.missing_left[node] = large == left  # with most rows, where none of them has NaN
    for node in range(right + 1):
        if tree.left[node] < 0:
            tree.value[node] *= RATE
            for i in range(place[node, 0], place[node, 1]):
                margin[rows[i]] += tree.value[node]
    return right + 1


@inner
def _add_up(coded, slope, curvature, room, node):  # type: ignore[no-untyped-def]
    """Slopes, curvatures and numbers of a node's rows by column and code."""
    code, sums = coded.code, room.sums[room.place[node, 2]]
    for j in range(len(sums)):
        sums[j, : coded.width[j] + 1] = 0.0
    for i in range(room.place[node, 0], room.place[node, 1]):
        row = room.rows[i]
        g, h = slope[row], curvature[row]
        for j in range(len(sums)):
            own = sums[j, code[row, j]]
            own[0] += g
            own[1] += h
            own[2] += 1.0


@inner
def _take_off(width, small, large):  # type: ignore[no-untyped-def]
    """From the sums of a node those of its smaller child: what is left is the other's."""
    for j in range(len(small)):
        for c in range(width[j] + 1):
            n = large[j, c, 2] - small[j, c, 2]
            for k in range(2):  # of no rows exactly nothing
                large[j, c, k] = large[j, c, k] - small[j, c, k] if n > 0 else 0.0
            large[j, c, 2] = n


@inner
def _seek(coded, room, tree, node):  # type: ignore[no-untyped-def]
    """Find the split of a node that gains most; its gain is 0 where there is none."""
    g, h, n = room.total[node, 0], room.total[node, 1], room.total[node, 2]
    sums = room.sums[room.place[node, 2]]
    without = -g * tree.value[node]
    best = without  # what both sides together must exceed
    room.gain[node] = 0.0
    if n < 2 * LEAST_ROWS or h < LEAST_CURVATURE:
        return
    for j in range(len(sums)):
        width = coded.width[j]
        missing = sums[j, width, 2] > 0
        for backwards in range(1 + missing):  # NaN on the right, then on the left
            near_g = near_h = near_n = 0.0
            for step in range(width - 1 + (missing and not backwards)):
                c = width - 1 - step if backwards else step
                near_g += sums[j, c, 0]
                near_h += sums[j, c, 1]
                near_n += sums[j, c, 2]
                if near_n < LEAST_ROWS or near_h < LEAST_CURVATURE:
                    continue
                far_g, far_h = g - near_g, h - near_h
                if n - near_n < LEAST_ROWS or far_h < LEAST_CURVATURE:
                    break
                near, far = near_h + PENALTY, far_h + PENALTY
                both, of = near_g**2 * far + far_g**2 * near, near * far
                if both > best * of:  # without a division, which takes as long as all the rest
                    best = both / of
                    room.gain[node] = best - without
                    tree.feature[node] = j
                    tree.code[node] = c - 1 if backwards else c
                    tree.missing_left[node] = backwards
                    own = room.total_left[node]
                    if backwards:
                        own[0], own[1], own[2] = far_g, far_h, n - near_n
                    else:
                        own[0], own[1], own[2] = near_g, near_h, near_n


@inner
def _divide(coded, room, tree, node):  # type: ignore[no-untyped-def]
    """Bring the rows that go left before the others, all in their order; say where these begin."""
    rows, j, last = room.rows, tree.feature[node], tree.code[node]
    at, others = room.place[node, 0], 0
    for i in range(room.place[node, 0], room.place[node, 1]):
        row = rows[i]
        code = coded.code[row, j]
        if code <= last or (code == coded.width[j] and tree.missing_left[node]):
            rows[at] = row
            at += 1
        else:
            room.spare[others] = row
            others += 1
    for i in range(others):
        rows[at + i] = room.spare[i]
    return at
