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
from knothole.compiled.pointers import pointers, shift
from knothole.compiled.policy import inlined, njit
from knothole.compiled.simd import AT_ONCE, copy, load, spread, store, total
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
from knothole.reach.walks.latent_position import reduce_to_holes


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


class Sides(NamedTuple):
    """A stack: a place for each split above the one that a walk is at."""

    word: Any  # (places,) leaves on the right that are still to be visited, and
    reach: Any  # the probability of what leads to them
    node: Any  # of the hole, in the reduced tree
    mark: Any  # length of the log on arrival
    e: Any  # (places, states) of the hole on arrival
    left: Any  # (places, states) and on both sides
    right: Any
    belief: Any  # (states,)


@njit
def read_words(points, trees, words, first):  # type: ignore[no-untyped-def]
    """Leaves that are left of some trees, from the ``first`` on, to ``words`` (rows, trees)."""
    for row in range(len(points)):
        read_sets(points[row], trees, words[row, first : first + len(trees.root)])


@njit
def add_expected(points, words, trees, given, sides, out):  # type: ignore[no-untyped-def]
    """Add the expected margin of each row to ``out`` (rows, outputs): Prop. 1."""
    n_rows, n_columns = points.shape
    points_, trees_, given_, sides_ = pointers((points, trees, given, sides))
    for row in range(n_rows):
        reduce_to_holes(shift(points_, row * n_columns), row, trees_.n_variables, given_)
        start_messages(given_.reduced, given_.messages)
        for tree in range(trees_.n_trees):
            word = words[row, tree]
            value = shift(trees_.value, tree * LEAVES)
            if word & (word - np.uint64(1)) == 0:
                found = value[lowest_bit(word)]
            else:
                found = expected(word, tree, value, trees_, given_, sides_)
            out[row, trees_.output[tree]] += found


@inlined
def expected(word, tree, value, trees, given, sides):  # type: ignore[no-untyped-def]
    """What a set of leaves of a tree is expected to give."""
    reduced, messages = given.reduced, given.messages
    states, slot = messages.states, reduced.slot
    parting, root = shift(trees.parting, tree * LEAVES * LEAVES), trees.root[tree]
    on_rights = shift(trees.right, tree * 2 * LEAVES)
    result, reach, top = 0.0, 1.0, 0
    while word != 0:
        parted = np.int64(
            parting[np.int64(lowest_bit(word)) * LEAVES + np.int64(highest_bit(word))]
        )
        split = root + parted
        node = slot[trees.feature[split]]
        if top == 0:
            messages.at[FOCUS] = node
            belief = shift(messages.belief, node * states)
        else:
            if messages.at[FOCUS] != node:
                move_focus(node, reduced, messages)
            belief = sides.belief
            combine(node, NOBODY, reduced, messages, belief)
        e = shift(messages.e, node * states)
        left, right = shift(sides.left, top * states), shift(sides.right, top * states)
        goes_left, goes_right = divide(
            e, shift(trees.go_left, split * states), belief, left, right, states
        )
        if goes_left + goes_right <= 0.0:
            # The row is impossible under the density: let the hole's own masses decide.
            for z in range(trees.states):
                goes_left += left[z]
                goes_right += right[z]
        both = goes_left + goes_right
        left_reach = reach * (goes_left / both if both > 0.0 else 0.0)
        right_reach = reach - left_reach
        on_right = word & on_rights[parted]
        on_left = word ^ on_right
        if on_left & (on_left - np.uint64(1)) == 0:
            result += left_reach * value[lowest_bit(on_left)]
            on_left = np.uint64(0)
        if on_right & (on_right - np.uint64(1)) == 0:
            result += right_reach * value[lowest_bit(on_right)]
            on_right = np.uint64(0)
        if left_reach <= 0.0:
            on_left = np.uint64(0)
        if right_reach <= 0.0:
            on_right = np.uint64(0)
        if on_left | on_right != 0:
            copy(shift(sides.e, top * states), e, states)
            sides.node[top], sides.mark[top] = node, messages.at[LENGTH]
            if on_left != 0:
                copy(e, left, states)
                sides.word[top], sides.reach[top] = on_right, right_reach
                word, reach = on_left, left_reach
            else:
                copy(e, right, states)
                sides.word[top] = np.uint64(0)
                word, reach = on_right, right_reach
            top += 1
            continue
        # Back to the last split whose right side is still to be visited.
        word = np.uint64(0)
        while top > 0 and word == 0:
            at = top - 1
            undo(sides.mark[at], sides.node[at], messages)
            e = shift(messages.e, sides.node[at] * states)
            word = sides.word[at]
            if word != 0:
                reach = sides.reach[at]
                copy(e, shift(sides.right, at * states), states)
                sides.word[at] = np.uint64(0)
            else:
                copy(e, shift(sides.e, at * states), states)
                top = at
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
