"""One small tree, grown on codes as scikit-learn's HistGradientBoosting grows it.

Every row has the slope and the curvature of its loss. The leaf whose split takes most off the loss
is split next: sums over its rows, by column and code, tell how much, with NaN on either side. Of
two children, sums are taken over the rows of the smaller one, and the other has what is left.

The library's trees are the same (tests compare them), but take it several times as long.
"""

from __future__ import annotations

import numpy as np

from knothole.compiled.policy import inner, njit

# Codes of numbers at most; NaN has the one after those of its column.
DISTINCT = 64
# What trees are like.
LEAVES, LEAST_ROWS, LEAST_CURVATURE = 16, 15, 1e-3
RATE, PENALTY = 0.1, 1.0
NODES = 2 * LEAVES - 1
#: Rows with a code up to ``code`` go to the node ``left`` (-1 of leaves), the others to the next.
#: While it grows: what its split gains, which rows and sums are its own, how much these are in all,
#: and how much of that goes left.
NODE = np.dtype(
    [(name, np.int64) for name in ("feature", "code", "missing_left", "left")]
    + [(name, np.int64) for name in ("start", "stop", "place")]
    + [(name, np.float64) for name in ("value", "gain", "g", "h", "n", "left_g", "left_h")]
)


@njit
def grow(code, width, slope, curvature, margin, rows, sums, tree):  # type: ignore[no-untyped-def]
    """Grow a tree, add its values to the margins of its rows, and say how many nodes it has.

    ``code`` is (rows, columns), ``width`` how many codes of numbers each column has. ``rows``
    (2, rows) and ``sums`` (leaves, columns, codes, 3) are room to work in.
    """
    root = tree[0]
    root.start, root.stop, root.place, root.left = 0, len(slope), 0, -1
    root.g, root.h, root.n, root.gain, root.value = 0.0, 0.0, len(slope), 0.0, 0.0
    for i in range(len(slope)):
        rows[0, i] = i
        root.g += slope[i]
        root.h += curvature[i]
    left = right = small = large = 0  # who is looked at next, from left to right
    while right < NODES - 1:
        if tree[large].n >= 2 * LEAST_ROWS:
            tree[small].place = (right + 1) // 2
            _add_up(code, width, slope, curvature, rows[0], sums, tree[small])
            if small != large:
                _take_off(width, sums[tree[small].place], sums[tree[large].place])
            for child in range(left, right + 1):
                _seek(width, sums[tree[child].place], tree[child])
        best = 0
        for other in range(right + 1):
            if tree[other].gain > tree[best].gain:
                best = other
        node = tree[best]
        if not node.gain > 0:
            break
        left, right = right + 1, right + 2
        node.gain, node.left = 0.0, left
        middle = _divide(code[:, node.feature], width[node.feature], rows, node)
        for child in range(left, right + 1):
            own, is_left = tree[child], child == left
            own.start, own.stop = (node.start, middle) if is_left else (middle, node.stop)
            own.g = node.left_g if is_left else node.g - node.left_g
            own.h = node.left_h if is_left else node.h - node.left_h
            own.n = own.stop - own.start
            own.left, own.gain, own.value = -1, 0.0, -own.g / (own.h + PENALTY)
        small = left if tree[left].n < tree[right].n else right
        large = left + right - small
        tree[large].place = node.place
        if sums[node.place, node.feature, width[node.feature], 2] == 0:
            node.missing_left = tree[left].n > tree[right].n  # no row has NaN: with most of them
    for k in range(right + 1):
        if tree[k].left < 0:
            tree[k].value *= RATE
            for i in range(tree[k].start, tree[k].stop):
                margin[rows[0, i]] += tree[k].value
    return right + 1


@inner
def _add_up(code, width, slope, curvature, rows, sums, node):  # type: ignore[no-untyped-def]
    """Slopes, curvatures and numbers of a node's rows by column and code."""
    own = sums[node.place]
    for j in range(len(width)):
        own[j, : width[j] + 1] = 0.0
    for i in range(node.start, node.stop):
        row = rows[i]
        g, h = slope[row], curvature[row]
        for j in range(len(width)):
            entry = own[j, code[row, j]]
            entry[0] += g
            entry[1] += h
            entry[2] += 1.0


@inner
def _take_off(width, small, large):  # type: ignore[no-untyped-def]
    """From the sums of a node those of its smaller child: what is left is the other's."""
    for j in range(len(width)):
        for c in range(width[j] + 1):
            n = large[j, c, 2] - small[j, c, 2]
            for k in range(2):  # of no rows exactly nothing
                large[j, c, k] = large[j, c, k] - small[j, c, k] if n > 0 else 0.0
            large[j, c, 2] = n


@inner
def _seek(width, sums, node):  # type: ignore[no-untyped-def]
    """Find the split of a node that gains most."""
    without = -node.g * node.value
    best = without  # what both sides together must exceed
    if node.n < 2 * LEAST_ROWS or node.h < LEAST_CURVATURE:
        return
    for j in range(len(width)):
        missing = sums[j, width[j], 2] > 0
        for backwards in range(1 + missing):  # NaN on the right, then on the left
            near_g = near_h = near_n = 0.0
            for step in range(width[j] - 1 + (missing and not backwards)):
                c = width[j] - 1 - step if backwards else step
                near_g += sums[j, c, 0]
                near_h += sums[j, c, 1]
                near_n += sums[j, c, 2]
                if near_n < LEAST_ROWS or near_h < LEAST_CURVATURE:
                    continue
                far_g, far_h = node.g - near_g, node.h - near_h
                if node.n - near_n < LEAST_ROWS or far_h < LEAST_CURVATURE:
                    break
                near, far = near_h + PENALTY, far_h + PENALTY
                both, of = near_g**2 * far + far_g**2 * near, near * far
                if both > best * of:  # a division would take as long as all the rest
                    best = both / of
                    node.gain, node.feature, node.missing_left = best - without, j, backwards
                    node.code = c - 1 if backwards else c
                    node.left_g = far_g if backwards else near_g
                    node.left_h = far_h if backwards else near_h


@inner
def _divide(code, nan, rows, node):  # type: ignore[no-untyped-def]
    """Bring the rows that go left before the others, all in their order; say where these begin."""
    at, others = node.start, 0
    for i in range(node.start, node.stop):
        row = rows[0, i]
        if code[row] <= node.code or (code[row] == nan and node.missing_left):
            rows[0, at] = row
            at += 1
        else:
            rows[1, others] = row
            others += 1
    for i in range(others):
        rows[0, at + i] = rows[1, i]
    return at
