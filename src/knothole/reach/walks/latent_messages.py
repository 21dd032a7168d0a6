"""Messages in the tree over a row's holes (:mod:`knothole.reach.walks.latent_reduce`).

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

from knothole.compiled.pointers import shift
from knothole.compiled.policy import inlined, inner, njit
from knothole.compiled.simd import copy, multiply, product, scale, times

# Factors after which a product is scaled: so many vectors of mean 1 neither vanish nor overflow.
FACTORS = 8
# For `combine`: no neighbour is left out (-1 stands for the parent of the root).
NOBODY = -2
# The place of a message that is 1 in every state.
NOWHERE = -1


class Messages(NamedTuple):
    """Messages of a reduced tree, and the walk's place in it.

    Edges have numbers: i for the message from node i to its parent, ``n + i`` for the one to node i
    from its parent, with n the number of latents.
    """

    e: Any  # (latents + sides of splits, states)
    own: Any  # (latents,) where the valid one of a node is
    belief: Any  # (latents, states) of each node, where nothing is confined
    arena: Any  # (2 latents + moves, states)
    place: Any  # (2 latents,) where the valid message of an edge is, or NOWHERE
    edge: Any  # (moves,) the log: edges that got a new message,
    old: Any  # and the place of the message before
    path: Any  # (latents,) scratch
    vector: Any  # (states,) scratch
    at: Any  # length of the log; the node in focus; how many holes are confined
    n: int
    states: int


# Entries of Messages.at.
LENGTH, FOCUS, CONFINED = 0, 1, 2


@njit
def start_messages(reduced, messages):  # type: ignore[no-untyped-def]
    """Make the matrices those of p(a node's state, divided by ``e`` | a neighbour's); ``e`` is set.

    With beliefs of all nodes, and no message yet.
    """
    states, n, edges = messages.states, messages.n, reduced.n[0] - 1
    messages.at[LENGTH] = 0
    messages.at[FOCUS] = 0
    messages.at[CONFINED] = 0
    for node in range(edges + 1):
        messages.own[node] = node
        messages.place[node] = messages.place[n + node] = NOWHERE
    for step in range(2 * edges):
        # First upwards, children before parents; then downwards, parents before children.
        upwards = step < edges
        node = edges - step if upwards else step - edges + 1
        source = node if upwards else reduced.parent[node]
        target = reduced.parent[node] if upwards else node
        matrix = shift(reduced.upwards if upwards else reduced.downwards, node * states * states)
        edge = node if upwards else n + node
        vector, message = messages.vector, shift(messages.arena, edge * states)
        combine(shift(reduced.g, source * states), source, target, reduced, messages, vector)
        for z in range(states):
            times(shift(matrix, z * states), vector[z], states)
        multiply(matrix, shift(messages.e, source * states), message, states)
        for z in range(states):
            vector[z] = 1.0 / message[z] if message[z] > 0.0 else 0.0
        for z in range(states):
            product(
                shift(matrix, z * states), shift(matrix, z * states), vector, states
            )
        scale(message, states)
        messages.place[edge] = edge
    for node in range(edges + 1):
        g, belief = shift(reduced.g, node * states), shift(messages.belief, node * states)
        combine(g, node, NOBODY, reduced, messages, belief)
    for node in range(edges + 1):
        messages.place[node] = messages.place[n + node] = NOWHERE


@inlined
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


@inlined
def send(node, upwards, place, reduced, messages):  # type: ignore[no-untyped-def]
    """Write the message from a node to its parent, or the other way, to a place in the arena."""
    states = messages.states
    source = node if upwards else reduced.parent[node]
    target = reduced.parent[node] if upwards else node
    matrices = reduced.upwards if upwards else reduced.downwards
    e = shift(messages.e, messages.own[source] * states)
    combine(e, source, target, reduced, messages, messages.vector)
    out = shift(messages.arena, place * states)
    multiply(shift(matrices, node * states * states), messages.vector, out, states)


@inlined
def renew(edge, messages):  # type: ignore[no-untyped-def]
    """Note an edge in the log; return the place of its next message."""
    length = messages.at[LENGTH]
    messages.at[LENGTH] = length + 1
    messages.edge[length] = edge
    messages.old[length] = messages.place[edge]
    messages.place[edge] = 2 * messages.n + length
    return 2 * messages.n + length


@inner
def move_focus(target, reduced, messages):  # type: ignore[no-untyped-def]
    """Bring a node into focus, one edge at a time."""
    parent, path = reduced.parent, messages.path
    # Children have larger numbers than their parents: the larger of the two climbs.
    above_source, above_target = messages.at[FOCUS], target
    downwards = 0
    while above_source != above_target:
        if above_source > above_target:
            above_source = parent[above_source]
        else:
            path[downwards] = above_target
            downwards += 1
            above_target = parent[above_target]
    climbing = messages.at[FOCUS]
    while climbing != above_source or downwards > 0:
        upwards = climbing != above_source
        if upwards:
            node = climbing
            climbing = parent[climbing]
        else:
            downwards -= 1
            node = path[downwards]
        place = renew(node if upwards else messages.n + node, messages)
        send(node, upwards, place, reduced, messages)
    messages.at[FOCUS] = target


@inlined
def undo(mark, focus, messages):  # type: ignore[no-untyped-def]
    """Return to the messages there were when the log had length ``mark``, and to their focus."""
    for i in range(messages.at[LENGTH] - 1, mark - 1, -1):
        messages.place[messages.edge[i]] = messages.old[i]
    messages.at[LENGTH] = mark
    messages.at[FOCUS] = focus
