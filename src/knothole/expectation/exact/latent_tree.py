"""Expectations under a latent tree, exactly.

Given x_o, latents without a missing variable below them are summed out once per row; the decision
trees then walk with the small tree that remains
(:mod:`knothole.expectation.exact.latent_messages`). At a split on a missing variable a position
brings the variable into focus, reads off the probability of the left side, confines the variable to
one side after the other, and returns to the messages it had on arrival.

Whatever the row, a part of what arrives at a split goes left, in every state of the variable's
latent: it is tabulated. Where regions are needed, for one-hot groups observed in part and for two
trees at once (Lemma 2), masses of what remains of a variable are read off the tables.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from knothole.arrays import Floats
from knothole.columns.evidence import Evidence
from knothole.compiled.bits import has
from knothole.compiled.exp import exponentials
from knothole.compiled.pointers import prefetch, shift
from knothole.compiled.policy import inlined, njit
from knothole.compiled.simd import (
    AT_ONCE,
    CACHE_LINE,
    add_times,
    copy,
    dot,
    fill,
    load,
    padded,
    room,
    spread,
    store,
    total,
)
from knothole.densities.base import warn_impossible
from knothole.densities.latent_tree.density import LatentTree
from knothole.densities.univariate.packed import pack
from knothole.expectation.exact.latent_messages import (
    CONFINED,
    EMPTY,
    FOCUS,
    LENGTH,
    Latents,
    Messages,
    Reduced,
    ReduceScratch,
    likelihood,
    move_focus,
    reduce_row,
    renew,
    start_messages,
    undo,
)
from knothole.expectation.exact.walk import (
    LEAVE,
    RIGHT,
    WalkEngine,
    advance_regions,
    both_sides,
    merged_levels,
    next_split,
    place_at_root,
    provide,
    reset_region,
    start_frame,
)
from knothole.expectation.tables import plain
from knothole.trees.ensemble import Ensemble


class LatentTreeEngine(WalkEngine):
    """Exact expectations under a latent tree."""

    def __init__(self, ensemble: Ensemble, density: LatentTree) -> None:
        super().__init__(merged_levels(ensemble, density), density.distributions_)
        self.density = density
        self.states = self.tables.states
        parent = np.asarray(density.parent_, dtype=np.int64)
        n_children = np.bincount(parent[parent >= 0], minlength=len(parent))
        transition = padded(density.transition_, axes=2)
        self.latents = Latents(
            parent=parent,
            order=np.asarray(density.order_, dtype=np.int64),
            child_start=np.concatenate([[0], np.cumsum(n_children)]).astype(np.int64),
            children=np.argsort(np.where(parent < 0, len(parent), parent), kind="stable"),
            transition=transition,
            transposed=padded(transition.transpose(0, 2, 1)),
            prior=padded(density.prior_),
            n=len(parent),
            states=self.states,
        )

    def _given(self, evidence: Evidence, regions: bool) -> LatentGiven:
        kind = LatentRegionGiven if regions else LatentGiven
        return kind(
            like=self._likelihood(evidence),
            used=self.ensemble.used,
            latents=self.latents,
            **self.memory.once(self._scratch),
            go_left=self.go_left,
            n_states=self.density.transition_.shape[1],
            words=self._words(evidence),
            plain=plain(self.ensemble, evidence.points),
            block=1,
        )

    def _scratch(self) -> dict[str, Any]:
        n, states = self.latents.n, self.states
        reduced = Reduced(
            n=np.zeros(1, dtype=np.int64),
            parent=np.empty(n, dtype=np.int64),
            child=np.empty(n, dtype=np.int64),
            sibling=np.empty(n, dtype=np.int64),
            slot=np.empty(n, dtype=np.int64),
            g=room(n, states),
            matrix=room(2 * n, states, states),
        )
        scratch = ReduceScratch(
            active=np.empty(n, dtype=np.bool_),
            with_active=np.empty(n, dtype=np.bool_),
            message=room(n, states),
            local=room(n, states),
            buffer=room(states, states),
        )
        # A position moves the focus once for each of its frames; there may be two of them.
        moves = 2 * (self.depth + 1) * (n + 1)
        messages = Messages(
            e=room(n + 2 * self.depth, states),
            belief=room(n + self.depth, states),
            arena=room(2 * n + moves, states),
            place=np.empty(3 * n, dtype=np.int64),
            edge=np.empty(moves, dtype=np.int64),
            old=np.empty(moves, dtype=np.int64),
            target=np.empty(3 * n, dtype=np.int64),
            count=np.empty(n, dtype=np.int64),
            toward=np.empty((n, n), dtype=np.int64),
            vector=room(states),
            at=np.zeros(3, dtype=np.int64),
            n=n,
            states=states,
        )
        return {"reduced": reduced, "scratch": scratch, "messages": messages}

    def _likelihood(self, evidence: Evidence) -> Floats:
        """Likelihood of what is known of each variable, scaled, (rows, variables, states).

        It is 1 at missing values that trees split on: they bring their regions themselves, one-hot
        groups observed in part included. So it is at values that are impossible in every state.
        """
        missing = np.isnan(evidence.points)
        used = self.ensemble.used
        missing[:, : len(used)] &= used
        missing[:, len(used) :] = False
        packed = pack(self.density.distributions_, evidence)
        width = self.latents.n * self.states
        like = room(len(packed), width)
        scratch = like.view(np.int64), np.empty(width), np.empty(width, dtype=np.int32)
        impossible = np.zeros(len(packed), dtype=np.bool_)
        # Base measures are the same in all states: they say nothing here.
        values = packed.code, packed.z, packed.slot
        parameters = packed.parameters(self.density.distributions_)
        fill_likelihood(values, parameters, missing, (like, *scratch), impossible)
        warn_impossible(np.where(impossible, -np.inf, 0.0))
        return like.reshape(len(packed), self.latents.n, self.states)

    def _position(self) -> LatentPosition:
        return LatentPosition(
            frames=self._frames(),
            believed=np.empty(self.depth, dtype=np.int64),
            e=np.empty((self.depth, self.states)),
            right=np.empty((self.depth, self.states)),
            mark=np.empty(self.depth, dtype=np.int64),
            focus=np.empty(self.depth, dtype=np.int64),
            belief=room(self.states),
        )


# ---- walks


# The side of no split.
TOP = -1


class LatentGiven(NamedTuple):
    """What a latent tree says of rows; the records are those of their modules."""

    like: Any  # (rows, latents, states)
    used: Any  # (variables,) that trees split on
    latents: Any
    reduced: Any
    scratch: Any
    messages: Any
    go_left: Any  # (nodes, states) part of what arrives that goes left
    n_states: int  # without those that were added up to a multiple of four
    words: Any  # LeafWords
    plain: bool  # see `follow`
    block: int


class LatentRegionGiven(LatentGiven):
    """The same, for walks with the regions of missing values in hand."""


class LatentPosition(NamedTuple):
    """Frames (:class:`.walk.Frames`), and what else a position returns to."""

    frames: Any
    believed: Any  # (frames,) where the belief of the variable is
    e: Any  # (frames, states) of the variable on arrival
    right: Any  # (frames, states) masses of the right side
    mark: Any  # (frames,) length of the log on arrival
    focus: Any  # (frames,)
    belief: Any  # (states,) scratch


def place(position, tree, nodes, given, row):  # type: ignore[no-untyped-def]
    """See :func:`.walk.place`."""
    place_at_root(position, tree, nodes, given, row)


def place_region(position, tree, nodes, given, row):  # type: ignore[no-untyped-def]
    """See :func:`.walk.place`."""
    start_frame(position.frames, nodes.roots[tree], 1.0)


def place_inside(position, root, outer, given):  # type: ignore[no-untyped-def]
    """See :func:`.walk.place_inside`."""
    # The frame above the outer position's is free: note there what to return to.
    top = outer.frames.top[0]
    outer.mark[top + 1] = given.messages.at[LENGTH]
    outer.focus[top + 1] = given.messages.at[FOCUS]
    start_frame(position.frames, root, outer.frames.reach[top])


def leave_inside(outer, given):  # type: ignore[no-untyped-def]
    """See :func:`.walk.leave_inside`."""
    top = outer.frames.top[0]
    undo(outer.mark[top + 1], outer.focus[top + 1], given.messages)


def begin_row(x, rows, row, tables, region, given):  # type: ignore[no-untyped-def]
    """Reduce the latent tree to the row's missing variables."""
    reduce_to_missing(x, row, tables.n_variables, given)
    start_messages(given.reduced, given.messages)


def begin_region(x, rows, row, tables, region, given):  # type: ignore[no-untyped-def]
    """Reduce the latent tree to missing variables, each confined to what the row leaves of it."""
    reset_region(rows, row, tables, region)
    reduced, messages = given.reduced, given.messages
    states = messages.states
    reduce_to_missing(x, row, tables.n_variables, given)
    for v in range(tables.n_variables):
        if not given.scratch.active[v]:
            continue
        e = shift(messages.e, reduced.slot[v] * states)
        if tables.n_levels[v] > 0:
            # A one-hot group observed in part: ones where nothing is excluded, to rounding.
            fill(e, 0.0, states)
            for code in range(tables.n_levels[v]):
                if has(region.sets, tables.set_offset[v], code):
                    mass = shift(tables.mass, (tables.offset[v] + code) * states)
                    odds = region.odds[v] if code == tables.unrecorded[v] else 1.0
                    add_times(e, mass, odds, states)
        else:
            add_times(e, shift(tables.absent, v * states), region.odds[v] - 1.0, states)
    start_messages(reduced, messages)
    # Here ``e`` changes where it is: what it says is never left out.
    for node in range(reduced.n[0]):
        messages.place[2 * messages.n + node] = node
        messages.count[node] = 1


@inlined
def reduce_to_missing(x, row, n_variables, given):  # type: ignore[no-untyped-def]
    """Reduce the latent tree to the row's missing variables, which may be anything."""
    latents, active = given.latents, given.scratch.active
    for v in range(latents.n):
        active[v] = 1 if v < n_variables and given.used[v] and np.isnan(x[v]) else 0
    like = shift(given.like, row * latents.n * latents.states)
    reduce_row(like, latents, given.reduced, given.scratch)
    fill(given.messages.e, 1.0, given.reduced.n[0] * latents.states)


def advance(x, nodes, tables, region, given, position, found):  # type: ignore[no-untyped-def]
    """See :func:`.walk.advance`: a part of what arrives goes left. All leaves of a tree at once.

    A split's frame has the right child and the probability that waits for it. Of both sides of the
    split at depth d, what is left of its variable is at ``e[n + 2 d]`` and after it.
    """
    reduced, messages, frames = given.reduced, given.messages, position.frames
    n, states = messages.n, messages.states
    tree, at = frames.top[1], frames.node[0]
    reach, side, count, top = 1.0, TOP, 0, -1
    while True:
        node, leaf = next_split(x, at, tree, nodes, given)
        if node < 0:
            found.leaves[count] = leaf
            found.reaches[count] = reach
            count += 1
        else:
            depth, i = (side >> 1) + 1, reduced.slot[nodes.feature[node]]
            for z in range(0, states, CACHE_LINE):  # the table is too large for the near caches
                prefetch(shift(given.go_left, node * states + z))
            if side == TOP:
                undo(EMPTY, i, messages)
                believed = i
            else:
                above = position.focus[depth - 1]
                undo(position.mark[depth - 1], above, messages)
                renew(2 * n + above, n + side, messages)
                believed = position.believed[depth - 1]
                if i != above:
                    believed = n + depth
                    move_focus(i, reduced, messages, shift(messages.belief, believed * states))
            position.focus[depth], position.mark[depth] = i, messages.at[LENGTH]
            position.believed[depth] = believed
            left = shift(messages.e, (n + 2 * depth) * states)
            e, go_left = likelihood(i, messages), shift(given.go_left, node * states)
            belief = shift(messages.belief, believed * states)
            share = divide(e, go_left, belief, left, shift(left, states), states, given.n_states)
            frames.reach[depth] = reach - reach * share
            at, frames.node[depth] = both_sides(at, node, tree, nodes, given)
            frames.phase[depth] = RIGHT
            reach, side, top = reach * share, 2 * depth, depth
            if reach > 0.0:
                continue
        # Back to the last split whose right side waits.
        while top >= 0 and (frames.phase[top] == LEAVE or frames.reach[top] <= 0.0):
            top -= 1
        if top < 0:
            return count
        frames.phase[top] = LEAVE
        at, reach, side = frames.node[top], frames.reach[top], 2 * top + 1


@inlined
def divide(e, go_left, belief, left, right, n, n_states):  # type: ignore[no-untyped-def]
    """Divide what arrives at a split; return the probability of the left side."""
    to_left, to_right = spread(0.0), spread(0.0)
    for z in range(0, n, AT_ONCE):
        here, believed = load(e, z), load(belief, z)
        part = here * load(go_left, z)
        rest = here - part
        store(left, z, part)
        store(right, z, rest)
        to_left = to_left + believed * part
        to_right = to_right + believed * rest
    return left_share(total(to_left), total(to_right), left, right, n_states)


@inlined
def left_share(goes_left, goes_right, left, right, n_states):  # type: ignore[no-untyped-def]
    """Probability of the left side, from those of both up to a factor."""
    if goes_left + goes_right <= 0.0:
        # The row is impossible under the density: let the variable's own masses decide.
        for z in range(n_states):
            goes_left += left[z]
            goes_right += right[z]
    both = goes_left + goes_right
    return goes_left / both if both > 0.0 else 0.0


def divide_region(position, given, top, v, left, right):  # type: ignore[no-untyped-def]
    """See :func:`.walk.divide_region`: by the belief of the variable, brought into focus."""
    reduced, messages = given.reduced, given.messages
    i, states, reach = reduced.slot[v], messages.states, position.frames.reach[top]
    if messages.at[CONFINED] == 0:
        messages.at[FOCUS] = i
    move_focus(i, reduced, messages, position.belief)
    goes_left, goes_right = dot(position.belief, left, states), dot(position.belief, right, states)
    share = left_share(goes_left, goes_right, left, right, states)
    position.mark[top] = messages.at[LENGTH]
    messages.at[CONFINED] += 1
    copy(shift(position.e, top * states), shift(messages.e, i * states), states)
    copy(shift(position.right, top * states), right, states)
    return reach * share, reach - reach * share


def enter_side(position, given, top, v, left, right):  # type: ignore[no-untyped-def]
    """See :func:`.walk.enter_side`."""
    messages, i = given.messages, given.reduced.slot[v]
    undo(position.mark[top], i, messages)
    states = messages.states
    masses = shift(position.right, top * states) if right else left
    copy(shift(messages.e, i * states), masses, states)


def leave_split(position, given, top, v):  # type: ignore[no-untyped-def]
    """See :func:`.walk.leave_split`."""
    messages, i = given.messages, given.reduced.slot[v]
    states = messages.states
    undo(position.mark[top], i, messages)
    messages.at[CONFINED] -= 1
    copy(shift(messages.e, i * states), shift(position.e, top * states), states)


provide(LatentGiven, begin_row=begin_row, place=place, advance=advance)
provide(
    LatentRegionGiven,
    begin_row=begin_region,
    place=place_region,
    place_inside=place_inside,
    leave_inside=leave_inside,
    divide_region=divide_region,
    enter_side=enter_side,
    leave_split=leave_split,
    advance=advance_regions,
)


@njit
def fill_likelihood(values, parameters, missing, like, impossible):  # type: ignore[no-untyped-def]
    """Likelihood of packed values (:mod:`knothole.densities.univariate.packed`) in each state.

    ``like`` is (rows, latents * states), the same memory as int64, and what
    :func:`~knothole.compiled.exp.exponentials` writes on; each vector's largest entry becomes 1.
    Rows with values that no state can have are flagged.
    """
    code, z, slot = values
    table, linear, square = parameters
    x, bits, peak, shifts = like
    n_latents, n_states, width = code.shape[1], table.shape[1], x.shape[1]
    states = width // n_latents
    for row in range(len(x)):
        for v in range(n_latents):
            c, first = code[row, v], v * states
            out = x[row, first : first + states]
            largest = -np.inf
            out[n_states:] = largest
            if c >= 0 and not missing[row, v]:
                for k in range(n_states):
                    term = table[c, k]
                    if slot[v] >= 0:
                        at = z[row, slot[v]]
                        term += at * (linear[slot[v], k] + at * square[slot[v], k])
                    out[k] = term
                    largest = max(largest, term)
                if largest == -np.inf:
                    impossible[row] = True
            if largest == -np.inf:
                out[:n_states] = largest = 0.0
            peak[first : first + states] = largest
        exponentials(x[row], peak, shifts, bits[row], width)
