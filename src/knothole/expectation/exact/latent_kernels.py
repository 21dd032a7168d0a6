"""Expected margins under a latent tree, by sets of leaves (:mod:`knothole.expectation.leaf_sets`).

What is observed leaves a set of leaves of each tree. Its lowest and its highest part at a split on
a hole, where the set divides in two, and so on: no node is met but where a row divides. Whatever
the row, a part of what arrives at a split goes left, in every state of the hole's latent; the
messages between holes are those of :mod:`knothole.expectation.exact.latent_messages`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from knothole.compiled.bits import highest_bit, lowest_bit
from knothole.compiled.pointers import pointers, prefetch, shift
from knothole.compiled.policy import inlined, njit
from knothole.compiled.simd import AT_ONCE, CACHE_LINE, load, spread, store, total
from knothole.expectation.exact.latent_messages import (
    EMPTY,
    LENGTH,
    move_focus,
    own,
    renew,
    start_messages,
    undo,
)
from knothole.expectation.exact.latent_position import reduce_to_holes
from knothole.expectation.leaf_sets import LEAVES, read_sets


class Trees(NamedTuple):
    """All trees with their leaves as bits of words."""

    root: Any  # (trees,) first node
    output: Any  # (trees,)
    value: Any  # (trees, 64) of the leaf of each bit
    parting: Any  # (trees, 64, 64) see `LeafSets`
    right: Any  # (trees, 128)
    feature: Any  # (nodes,)
    go_left: Any  # (nodes, states) part of what arrives
    n_trees: int
    n_variables: int
    states: int  # without those that were added up to a multiple of four


class Splits(NamedTuple):
    """Where a row divides: splits of all trees, each before those on its left and on its right."""

    go_left: Any  # (splits,) where the split's part is
    node: Any  # (splits,) of the hole, in the reduced tree
    left: Any  # (splits,) value of the only leaf on a side; 0 where there are several
    right: Any
    side: Any  # (splits,) of the split above it, twice whose depth it is, and 1 more on the right
    stop: Any  # (trees,) where those of a tree end
    word: Any  # (leaves,) a stack: leaves on the right that are still to be visited,
    later: Any  # (leaves,) and the side that they are on


# Trees that are looked at before it is their turn, and those whose splits are found together.
AHEAD = 4
TOGETHER = 8
# The side of nothing: of it, the depth is 0, too.
TOP = -1


class Sides(NamedTuple):
    """Both sides of the split that a walk is at, and of those above it, by depth."""

    reach: Any  # (2 depths,) of the left side, then of the right
    node: Any  # (depths,) of the hole
    mark: Any  # (depths,) length of the log
    belief: Any  # (depths,) where that of the hole is


@njit
def read_words(points, trees, words, first):  # type: ignore[no-untyped-def]
    """Leaves that are left of some trees, from the ``first`` on, to ``words`` (rows, trees)."""
    for row in range(len(points)):
        read_sets(points[row], trees, words[row, first : first + len(trees.root)])


@njit
def add_expected(points, words, trees, given, splits, sides, out):  # type: ignore[no-untyped-def]
    """Add the expected margin of each row to ``out`` (rows, outputs): Prop. 1."""
    n_rows, n_columns = points.shape
    points_, trees_, given_, splits_, sides_ = pointers((points, trees, given, splits, sides))
    for row in range(n_rows):
        reduce_to_holes(shift(points_, row * n_columns), row, trees_.n_variables, given_)
        start_messages(given_.reduced, given_.messages)
        for start in range(0, trees_.n_trees, TOGETHER):
            end = min(start + TOGETHER, trees_.n_trees)
            find_splits(start, end, words[row], trees_, given_, splits_, out[row])
            for tree in range(start, end):
                first = splits_.stop[tree - 1] if tree > start else 0
                found = expected(first, splits_.stop[tree], trees_, given_, splits_, sides_)
                out[row, trees_.output[tree]] += found


@inlined
def one_bit(word):  # type: ignore[no-untyped-def]
    """Whether there is no other bit than the lowest."""
    return word & (word - np.uint64(1)) == 0


@inlined
def find_splits(start, end, words, trees, given, splits, out):  # type: ignore[no-untyped-def]
    """Where a row divides in some trees, given the leaves that are left; single ones go to ``out``.

    What is needed of several trees is looked for at once: tables do not fit the near caches.
    """
    slot, states = given.reduced.slot, given.messages.states
    count = 0
    for tree in range(start, end):
        ahead = min(tree + AHEAD, trees.n_trees - 1)
        prefetch(
            shift(trees.parting, (ahead * LEAVES + np.int64(lowest_bit(words[ahead]))) * LEAVES)
        )
        word = words[tree]
        value = shift(trees.value, tree * LEAVES)
        if one_bit(word):
            out[trees.output[tree]] += value[lowest_bit(word)]
            splits.stop[tree] = count
            continue
        parting, root = shift(trees.parting, tree * LEAVES * LEAVES), trees.root[tree]
        rights = shift(trees.right, tree * 2 * LEAVES)
        top, side = 0, TOP
        while True:
            lowest, highest = np.int64(lowest_bit(word)), np.int64(highest_bit(word))
            parted = np.int64(parting[lowest * LEAVES + highest])
            place = (root + parted) * states
            for z in range(0, states, CACHE_LINE):
                prefetch(shift(trees.go_left, place + z))
            splits.go_left[count] = place
            splits.node[count] = slot[trees.feature[root + parted]]
            on_right = word & rights[parted]
            on_left = word ^ on_right
            left_leaf, right_leaf = one_bit(on_left), one_bit(on_right)
            splits.left[count] = value[lowest] if left_leaf else 0.0
            splits.right[count] = value[highest] if right_leaf else 0.0
            splits.side[count] = side
            count += 1
            below = (side | 1) + 1
            splits.word[top], splits.later[top] = on_right, below + 1
            top += not right_leaf
            prefetch(shift(parting, np.int64(lowest_bit(on_right)) * LEAVES))
            if not left_leaf:
                word, side = on_left, below
            elif top > 0:
                top -= 1
                word, side = splits.word[top], splits.later[top]
            else:
                break
        splits.stop[tree] = count


@inlined
def expected(first, stop, trees, given, splits, sides):  # type: ignore[no-untyped-def]
    """What a tree is expected to give, from its splits."""
    reduced, messages = given.reduced, given.messages
    states, n = messages.states, messages.n
    result = 0.0
    for at in range(first, stop):
        node, side = splits.node[at], splits.side[at]
        depth = (side >> 1) + 1
        if side == TOP:
            undo(EMPTY, node, messages)
            reach, believed = 1.0, node
        else:
            above = sides.node[depth - 1]
            undo(sides.mark[depth - 1], above, messages)
            renew(2 * n + above, n + side, messages)
            reach, believed = sides.reach[side], sides.belief[depth - 1]
            if node != above:
                believed = n + depth
                belief = shift(messages.belief, believed * states)
                move_focus(node, reduced, messages, belief)
        belief = shift(messages.belief, believed * states)
        sides.node[depth], sides.mark[depth] = node, messages.at[LENGTH]
        sides.belief[depth] = believed
        e = own(node, messages)
        left = shift(messages.e, (n + 2 * depth) * states)
        right = shift(left, states)
        go_left = shift(trees.go_left, splits.go_left[at])
        goes_left, goes_right = divide(e, go_left, belief, left, right, states)
        if goes_left + goes_right <= 0.0:
            # The row is impossible under the density: let the hole's own masses decide.
            for z in range(trees.states):
                goes_left += left[z]
                goes_right += right[z]
        both = goes_left + goes_right
        left_reach = reach * (goes_left / both if both > 0.0 else 0.0)
        right_reach = reach - left_reach
        sides.reach[2 * depth], sides.reach[2 * depth + 1] = left_reach, right_reach
        result += left_reach * splits.left[at] + right_reach * splits.right[at]
    return result


@inlined
def divide(e, go_left, belief, left, right, n):  # type: ignore[no-untyped-def]
    """Divide what arrives at a split; return the probabilities of both sides, up to a factor."""
    to_left, to_right = spread(0.0), spread(0.0)
    for z in range(0, n, AT_ONCE):
        here, believed = load(e, z), load(belief, z)
        part = here * load(go_left, z)
        rest = here - part
        store(left, z, part)
        store(right, z, rest)
        to_left = to_left + believed * part
        to_right = to_right + believed * rest
    return total(to_left), total(to_right)
