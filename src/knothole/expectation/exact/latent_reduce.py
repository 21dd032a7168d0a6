"""What is left of a latent tree once a row is known.

Given x_o, every latent without a hole below it is summed out, and so is every chain of latents that
lead from one kept latent to the next. What remains is a small tree over the latents of the holes
(and of their branching points): node i has a constant vector ``g[i]``, and a matrix between it and
its parent.

The number of states is a multiple of four (:mod:`knothole.compiled.simd`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from knothole.compiled.pointers import shift
from knothole.compiled.policy import inner
from knothole.compiled.simd import copy, multiply, product, rescale, scale, times

# A node's number in the reduced tree, before it has one.
SUMMED_OUT, KEPT = -1, -2


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


class Scratch(NamedTuple):
    """What reducing a row needs to write on."""

    active: Any  # (latents,) whether a latent's variable is a hole that trees split on
    with_hole: Any  # (latents,) whether there is one at or below it
    message: Any  # (latents, states)
    local: Any  # (latents, states)
    buffer: Any  # (states, states)


@inner
def reduce_row(like, latents, reduced, scratch):  # type: ignore[no-untyped-def]
    """Sum out everything but the latents of active holes and their branching points.

    ``like`` (latents, states) is the likelihood of what is known of each variable, ones for active
    holes.
    """
    reduced.n[0] = 0
    for i in range(latents.n - 1, -1, -1):
        gather_below(latents.order[i], like, latents, reduced, scratch)
    for i in range(latents.n):
        v = latents.order[i]
        if not scratch.with_hole[v]:
            continue
        if reduced.n[0] == 0:
            outside(v, latents, scratch)
        if reduced.slot[v] == KEPT:
            keep(v, latents, reduced, scratch)


@inner
def gather_below(v, like, latents, reduced, scratch):  # type: ignore[no-untyped-def]
    """Likelihood of what is known at and below latent ``v``, as far as no hole is in between."""
    states = latents.states
    local = shift(scratch.local, v * states)
    copy(local, shift(like, v * states), states)
    branches = 0
    for j in range(latents.child_start[v], latents.child_start[v + 1]):
        child = latents.children[j]
        if scratch.with_hole[child]:
            branches += 1
        else:
            product(local, local, shift(scratch.message, child * states), states)
            scale(local, states)
    reduced.slot[v] = KEPT if scratch.active[v] or branches > 1 else SUMMED_OUT
    scratch.with_hole[v] = 1 if scratch.active[v] or branches > 0 else 0
    if not scratch.with_hole[v]:
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
