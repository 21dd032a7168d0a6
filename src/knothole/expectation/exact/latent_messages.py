"""A latent tree once a row is known, and messages in what is left of it.

Given x_o, every latent without a missing variable below it is summed out, and so is every chain of
latents that lead from one kept latent to the next. What remains is a small tree over the latents
of the missing variables (and of their branching points): node i has a constant vector ``g[i]``,
and a matrix between it and its parent.

Each node has the likelihood ``e[i]`` of the region that its variable is confined to, ones at first.
A message says how likely all that is confined behind an edge is, given the state of the node that
it is sent to: 1 in every state where nothing is confined, so that only messages from confined
variables are ever written, and multiplied. One node is in *focus*: all messages directed towards it
are valid. Then the probability of any region of its own variable is one dot product with its
*belief*, and changing ``e`` there spoils nothing. Moving the focus to a neighbour costs one product
of a matrix and a vector.

A new message does not overwrite the old one: it goes to the next place of an arena, and the log
notes where the old one is. So a walk returns to where it branched by looking the old places up.
At the root of a decision tree nothing is confined: there is no message, and any node may be in
focus.

The number of states is a multiple of four (:mod:`knothole.compiled.simd`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from knothole.compiled.pointers import shift
from knothole.compiled.policy import inlined, inner
from knothole.compiled.simd import copy, multiply, product, rescale, scale, times

# A node's number in the reduced tree, before it has one.
SUMMED_OUT, KEPT = -1, -2
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


# ---- the reduced tree


class Latents(NamedTuple):
    """The latent tree of a density, for kernels; one latent for each variable."""

    parent: Any  # (latents,) -1 at the root
    order: Any  # (latents,) parents before children
    child_start: Any  # (latents + 1,) into children
    children: Any
    transition: Any  # (latents, states, states) p(state | parent's), a row for the parent's state
    transposed: Any  # the same, a row for the latent's own state
    prior: Any  # (states,) of the root
    n: int
    states: int


class Reduced(NamedTuple):
    """The tree that remains; children have larger numbers than their parents."""

    n: Any  # (1,) number of nodes
    parent: Any  # (nodes,) -1 at the root
    child: Any  # (nodes,) first child or -1
    sibling: Any  # (nodes,) next child of the same parent or -1
    slot: Any  # (latents,) a latent's node, or SUMMED_OUT
    g: Any  # (nodes, states)
    # (2 latents, states, states) that of edges to parents, a row for each of the node's states;
    # then that of edges from parents, its transpose: products take a matrix column by column.
    matrix: Any


class ReduceScratch(NamedTuple):
    """What reducing a row needs to write on."""

    active: Any  # (latents,) whether a latent's variable is missing, and trees split on it
    with_active: Any  # (latents,) whether there is one at or below it
    message: Any  # (latents, states)
    local: Any  # (latents, states)
    buffer: Any  # (states, states)


@inner
def reduce_row(like, latents, reduced, scratch):  # type: ignore[no-untyped-def]
    """Sum out everything but the latents of active variables and their branching points.

    ``like`` (latents, states) is the likelihood of what is known of each variable, ones for active
    variables.
    """
    reduced.n[0] = 0
    for i in range(latents.n - 1, -1, -1):
        gather_below(latents.order[i], like, latents, reduced, scratch)
    for i in range(latents.n):
        v = latents.order[i]
        if not scratch.with_active[v]:
            continue
        if reduced.n[0] == 0:
            outside(v, latents, scratch)
        if reduced.slot[v] == KEPT:
            keep(v, latents, reduced, scratch)


@inner
def gather_below(v, like, latents, reduced, scratch):  # type: ignore[no-untyped-def]
    """Likelihood of what is known at and below latent ``v``, unless an active one is in between."""
    states = latents.states
    local = shift(scratch.local, v * states)
    copy(local, shift(like, v * states), states)
    branches = 0
    for j in range(latents.child_start[v], latents.child_start[v + 1]):
        child = latents.children[j]
        if scratch.with_active[child]:
            branches += 1
        else:
            product(local, local, shift(scratch.message, child * states), states)
            scale(local, states)
    reduced.slot[v] = KEPT if scratch.active[v] or branches > 1 else SUMMED_OUT
    scratch.with_active[v] = 1 if scratch.active[v] or branches > 0 else 0
    if not scratch.with_active[v]:
        message = shift(scratch.message, v * states)
        transposed = shift(latents.transposed, v * states * states)
        rescale(message, multiply(transposed, local, message, states), states)


@inner
def outside(v, latents, scratch):  # type: ignore[no-untyped-def]
    """Probability of a latent's states and what is known outside of its subtree, as a message.

    Only for latents from the root down to the first that is kept.
    """
    states = latents.states
    message = shift(scratch.message, v * states)
    above = latents.parent[v]
    if above < 0:
        copy(message, latents.prior, states)
        return
    from_above = shift(scratch.message, above * states)
    product(from_above, from_above, shift(scratch.local, above * states), states)
    transition = shift(latents.transition, v * states * states)
    rescale(message, multiply(transition, from_above, message, states), states)


@inner
def keep(v, latents, reduced, scratch):  # type: ignore[no-untyped-def]
    """Give a latent the next number; connect it to the last kept latent above it."""
    states = latents.states
    size = states * states
    node = reduced.n[0]
    reduced.n[0] = node + 1
    reduced.slot[v] = node
    reduced.child[node] = -1
    reduced.sibling[node] = -1
    g = shift(reduced.g, node * states)
    copy(g, shift(scratch.local, v * states), states)
    if node == 0:
        reduced.parent[0] = -1
        product(g, g, shift(scratch.message, v * states), states)
        scale(g, states)
        return
    downwards = shift(reduced.matrix, (latents.n + node) * size)
    copy(downwards, shift(latents.transition, v * size), size)
    above = latents.parent[v]
    while reduced.slot[above] == SUMMED_OUT:
        transition = shift(latents.transition, above * size)
        contract(
            transition, shift(scratch.local, above * states), downwards, scratch.buffer, states
        )
        above = latents.parent[above]
    parent = reduced.slot[above]
    reduced.parent[node] = parent
    reduced.sibling[node] = reduced.child[parent]
    reduced.child[parent] = node
    upwards = shift(reduced.matrix, node * size)
    for a in range(states):
        for z in range(states):
            upwards[z * states + a] = downwards[a * states + z]


@inner
def contract(transition, local, matrix, buffer, states):  # type: ignore[no-untyped-def]
    """``matrix`` = transition @ diag(local) @ matrix, scaled."""
    size = states * states
    total = 0.0
    for b in range(states):
        times(shift(matrix, b * states), local[b], states)
    for a in range(states):
        total += multiply(matrix, shift(transition, a * states), shift(buffer, a * states), states)
    copy(matrix, buffer, size)
    rescale(matrix, total * states, size)  # rows sum to 1 on average


# ---- messages


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
    at: Any  # length of the log; the node in focus; how many variables are confined
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
def likelihood(node, messages):  # type: ignore[no-untyped-def]
    """``e`` of a node: ones where its variable is not confined."""
    place = messages.place[2 * messages.n + node]
    return shift(messages.e, (node if place == NOWHERE else place) * messages.states)


@inner
def move_focus(target, reduced, messages, belief):  # type: ignore[no-untyped-def]
    """Bring another node into focus, one edge at a time; write its ``belief``, for now."""
    n, states, place = messages.n, messages.states, messages.place
    toward = shift(messages.toward, target * n)
    node = messages.at[FOCUS]
    # Most often this is all that there is to send on: ``e`` at first, then what has just arrived.
    vector = likelihood(node, messages)
    arrived = False
    while node != target:
        following = toward[node]
        upwards = following < node  # parents have smaller numbers
        edge, back = (node, n + node) if upwards else (n + following, following)
        factors = messages.count[node] - (place[back] != NOWHERE)
        if factors == 2 and arrived and place[2 * n + node] != NOWHERE:
            product(messages.vector, vector, likelihood(node, messages), states)
            vector = messages.vector
        elif factors > 1:
            combine(likelihood(node, messages), node, following, reduced, messages, messages.vector)
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
