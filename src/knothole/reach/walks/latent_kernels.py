"""Expected margins under a latent tree, by sets of leaves (:mod:`knothole.reach.leaf_sets`).

What is observed leaves a set of leaves of each tree. Its lowest and its highest part at a split on
a hole, where the set divides in two, and so on: no node is met but where a row divides. Whatever
the row, a part of what arrives at a split goes left, in every state of the hole's latent; the
messages between holes are those of :mod:`knothole.reach.walks.latent_messages`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from knothole.compiled.bits import highest_bit, lowest_bit
from knothole.compiled.pointers import pointers, prefetch, shift
from knothole.compiled.policy import inlined, njit
from knothole.compiled.simd import AT_ONCE, load, spread, store, total
from knothole.reach.leaf_sets import LEAVES, read_sets
from knothole.reach.walks.latent_messages import (
    FOCUS,
    LENGTH,
    NOBODY,
    combine,
    move_focus,
    start_messages,
    undo,
)
from knothole.reach.walks.latent_position import CACHE_LINE, reduce_to_holes


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
    left: Any  # (splits,) value of the only leaf on a side,
    right: Any
    kind: Any  # (splits,) and whether there is just one
    stop: Any  # (trees,) where those of a tree end
    word: Any  # (leaves,) a stack: leaves on the right that are still to be visited


# Trees that are looked at before it is their turn, and those whose splits are found together.
AHEAD = 4
TOGETHER = 8
# Splits by what is on both sides.
SEVERAL, LEFT_LEAF, RIGHT_LEAF, LEAVES_ONLY = 0, 1, 2, 3


class Sides(NamedTuple):
    """A stack: a place for each split above the one that a walk is at."""

    reach: Any  # (places,) of the right side, if it is still to be visited; otherwise -1
    node: Any  # of the hole
    mark: Any  # length of the log on arrival
    own: Any  # where the hole's ``e`` was on arrival
    belief: Any  # (states,)


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
            first = 0
            for tree in range(start, end):
                stop = splits_.stop[tree]
                if first < stop:
                    found = expected(first, stop, trees_, given_, splits_, sides_)
                    out[row, trees_.output[tree]] += found
                    first = stop


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
        top = 0
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
            splits.left[count] = value[lowest]
            splits.right[count] = value[highest]
            splits.kind[count] = left_leaf * LEFT_LEAF + right_leaf * RIGHT_LEAF
            count += 1
            splits.word[top] = on_right
            top += not right_leaf
            prefetch(shift(parting, np.int64(lowest_bit(on_right)) * LEAVES))
            if not left_leaf:
                word = on_left
            elif top > 0:
                top -= 1
                word = splits.word[top]
            else:
                break
        splits.stop[tree] = count


@inlined
def expected(first, stop, trees, given, splits, sides):  # type: ignore[no-untyped-def]
    """What a tree is expected to give, from its splits."""
    reduced, messages = given.reduced, given.messages
    states = messages.states
    result, reach, top = 0.0, 1.0, 0
    for at in range(first, stop):
        node, kind = splits.node[at], splits.kind[at]
        if top == 0:
            messages.at[FOCUS] = node
        if messages.at[FOCUS] != node:
            move_focus(node, reduced, messages)
        belief = shift(messages.belief, node * states)
        combine(belief, node, NOBODY, reduced, messages, sides.belief)
        e, on_left = shift(messages.e, messages.own[node] * states), messages.n + 2 * top
        left, right = shift(messages.e, on_left * states), shift(messages.e, (on_left + 1) * states)
        go_left = shift(trees.go_left, splits.go_left[at])
        goes_left, goes_right = divide(e, go_left, sides.belief, left, right, states)
        if goes_left + goes_right <= 0.0:
            # The row is impossible under the density: let the hole's own masses decide.
            for z in range(trees.states):
                goes_left += left[z]
                goes_right += right[z]
        both = goes_left + goes_right
        left_reach = reach * (goes_left / both if both > 0.0 else 0.0)
        right_reach = reach - left_reach
        if kind & LEFT_LEAF:
            result += left_reach * splits.left[at]
        if kind & RIGHT_LEAF:
            result += right_reach * splits.right[at]
        if kind != LEAVES_ONLY:
            sides.node[top], sides.mark[top] = node, messages.at[LENGTH]
            sides.own[top] = messages.own[node]
            messages.own[node] = on_left + (kind == LEFT_LEAF)
            reach = right_reach if kind == LEFT_LEAF else left_reach
            sides.reach[top] = right_reach if kind == SEVERAL else -1.0
            top += 1
            continue
        # Back to the last split whose right side is still to be visited.
        while top > 0:
            above = top - 1
            node = sides.node[above]
            undo(sides.mark[above], node, messages)
            reach = sides.reach[above]
            if reach >= 0.0:
                messages.own[node] = messages.n + 2 * above + 1
                sides.reach[above] = -1.0
                break
            messages.own[node] = sides.own[above]
            top = above
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
