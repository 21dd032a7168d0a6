"""Messages in the tree over a row's holes (:mod:`knothole.expectation.exact.latent_reduce`).

Each node has the likelihood ``e[i]`` of the region that its hole is confined to, ones at first.
A message says how likely all that is confined behind an edge is, given the state of the node that
it is sent to: 1 in every state where nothing is confined, so that only messages from confined holes
are ever written, and multiplied. One node is in *focus*: all messages directed towards it are
valid. Then the probability of any region of its own hole is one dot product with its *belief*, and
changing ``e`` there spoils nothing. Moving the focus to a neighbour costs one product of a matrix
and a vector.

A new message does not overwrite the old one: it goes to the next place of an arena, and the log
notes where the old one is. So a walk returns to where it branched by looking the old places up.
At the root of a decision tree nothing is confined: there is no message, and any node may be in
focus.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from knothole.compiled.pointers import shift
from knothole.compiled.policy import inlined, inner
from knothole.compiled.simd import copy, multiply, product, scale, times

# Most latent trees have as many states.
USUAL = 16
# Factors after which a product is scaled: so many vectors of mean 1 neither vanish nor overflow.
FACTORS = 8
# States that are less likely than this, in view of what is known, are impossible.
SMALL = 1e-280
# For `combine`: no neighbour is left out (-1 stands for the parent of the root).
NOBODY = np.int64(-2)
# The place of a message, or of ``e``, that is 1 in every state.
NOWHERE = np.int64(-1)


class Messages(NamedTuple):
    """Messages of a reduced tree, and the walk's place in it.

    Edges have numbers: i for the message from node i to its parent, ``n + i`` for the one to node i
    from its parent, with n the number of latents.
    """

    e: Any  # (latents + sides of splits, states)
    belief: Any  # (latents + depths, states) of each node, where nothing is confined; see `Sides`
    arena: Any  # (2 latents + moves, states)
    place: Any  # (3 latents,) where an edge's valid message is; a node's ``e``; or NOWHERE
    edge: Any  # (moves,) the log: what got a new place,
    old: Any  # and the place before
    target: Any  # (3 latents,) whom a message is for
    count: Any  # (latents,) how many messages have reached a node; its own ``e`` is one of them
    toward: Any  # (latents, latents) the next node on the way to a target, for each node
    vector: Any  # (states,) scratch
    at: Any  # length of the log; the node in focus; how many holes are confined
    n: int
    states: int


# Entries of Messages.at, and the length of a log with nothing in it.
LENGTH, FOCUS, CONFINED = 0, 1, 2
EMPTY = np.int64(0)


@inner
def start_messages(reduced, messages):  # type: ignore[no-untyped-def]
    """Make the matrices those of p(a node's state, divided by ``e`` | a neighbour's); ``e`` is set.

    With beliefs of all nodes, and no message yet.
    """
    states, n, edges = messages.states, messages.n, reduced.n[0] - 1
    messages.at[LENGTH] = messages.at[FOCUS] = messages.at[CONFINED] = 0
    for node in range(edges + 1):
        messages.place[2 * n + node] = NOWHERE
        messages.place[node] = messages.place[n + node] = NOWHERE
        messages.target[node], messages.target[n + node] = reduced.parent[node], node
        messages.target[2 * n + node] = node
        messages.count[node] = 0
        find_ways(node, reduced, messages)
    for step in range(2 * edges):
        # First upwards, children before parents; then downwards, parents before children.
        upwards = step < edges
        node = edges - step if upwards else step - edges + 1
        source = node if upwards else reduced.parent[node]
        target = reduced.parent[node] if upwards else node
        edge = node if upwards else n + node
        matrix = shift(reduced.matrix, edge * states * states)
        vector, message = messages.vector, shift(messages.arena, edge * states)
        combine(shift(reduced.g, source * states), source, target, reduced, messages, vector)
        scale(vector, states)
        for z in range(states):
            times(shift(matrix, z * states), vector[z], states)
        multiply(matrix, shift(messages.e, source * states), message, states)
        for z in range(states):
            vector[z] = 1.0 / message[z] if message[z] > SMALL else 0.0
        for z in range(states):
            row = shift(matrix, z * states)
            product(row, row, vector, states)
        scale(message, states)
        messages.place[edge] = edge
    for node in range(edges + 1):
        g, belief = shift(reduced.g, node * states), shift(messages.belief, node * states)
        combine(g, node, NOBODY, reduced, messages, belief)
        messages.place[node] = messages.place[n + node] = NOWHERE  # nobody later needs these two


@inner
def combine(first, node, without, reduced, messages, out):  # type: ignore[no-untyped-def]
    """Product of a vector and all messages that reach a node, but for one neighbour's."""
    states, n = messages.states, messages.n
    arena, place = messages.arena, messages.place
    copy(out, first, states)
    if reduced.parent[node] != without and place[n + node] != NOWHERE:
        product(out, out, shift(arena, place[n + node] * states), states)
    factors = 1
    child = reduced.child[node]
    while child >= 0:
        if child != without and place[child] != NOWHERE:
            product(out, out, shift(arena, place[child] * states), states)
            factors += 1
            if factors % FACTORS == 0:
                scale(out, states)
        child = reduced.sibling[child]


@inner
def find_ways(target, reduced, messages):  # type: ignore[no-untyped-def]
    """Note the neighbour of each node that is next on the way to a target."""
    toward = shift(messages.toward, target * messages.n)
    for node in range(reduced.n[0]):
        toward[node] = reduced.parent[node]
    node = target
    while reduced.parent[node] >= 0:
        toward[reduced.parent[node]] = node
        node = reduced.parent[node]


@inlined
def renew(what, place, messages):  # type: ignore[no-untyped-def]
    """Give an edge's message, or a node's ``e``, a new place, and note it in the log."""
    length, old = messages.at[LENGTH], messages.place[what]
    messages.at[LENGTH] = length + 1
    messages.edge[length] = what
    messages.old[length] = old
    messages.place[what] = place
    messages.count[messages.target[what]] += old == NOWHERE


@inlined
def own(node, messages):  # type: ignore[no-untyped-def]
    """``e`` of a node: ones where its hole is not confined."""
    place = messages.place[2 * messages.n + node]
    return shift(messages.e, (node if place == NOWHERE else place) * messages.states)


@inner
def move_focus(target, reduced, messages, belief):  # type: ignore[no-untyped-def]
    """Bring another node into focus, one edge at a time; write its ``belief``, for now."""
    n, states, place = messages.n, messages.states, messages.place
    toward = shift(messages.toward, target * n)
    node = messages.at[FOCUS]
    # Most often this is all that there is to send on: ``e`` at first, then what has just arrived.
    vector = own(node, messages)
    arrived = False
    while node != target:
        following = toward[node]
        upwards = following < node  # parents have smaller numbers
        edge, back = (node, n + node) if upwards else (n + following, following)
        factors = messages.count[node] - (place[back] != NOWHERE)
        if factors == 2 and arrived and place[2 * n + node] != NOWHERE:
            product(messages.vector, vector, own(node, messages), states)
            vector = messages.vector
        elif factors > 1:
            combine(own(node, messages), node, following, reduced, messages, messages.vector)
            vector = messages.vector
        arrived_at = 2 * n + messages.at[LENGTH]
        renew(edge, arrived_at, messages)
        message = shift(messages.arena, arrived_at * states)
        matrix = shift(reduced.matrix, edge * states * states)
        if states == USUAL:  # what is known when it is compiled takes a third less
            multiply(matrix, vector, message, USUAL)
        else:
            multiply(matrix, vector, message, states)
        vector, arrived, node = message, True, following
    messages.at[FOCUS] = target
    first = shift(messages.belief, target * states)
    if arrived and messages.count[target] - (place[2 * n + target] != NOWHERE) == 1:
        product(belief, first, vector, states)
    else:
        combine(first, target, NOBODY, reduced, messages, belief)


@inlined
def undo(mark, focus, messages):  # type: ignore[no-untyped-def]
    """Return to the places there were when the log had length ``mark``, and to their focus."""
    for i in range(messages.at[LENGTH] - 1, mark - 1, -1):
        what, old = messages.edge[i], messages.old[i]
        messages.place[what] = old
        messages.count[messages.target[what]] -= old == NOWHERE
    messages.at[LENGTH] = mark
    messages.at[FOCUS] = focus
