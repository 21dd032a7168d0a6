"""Expectations under a mixture of products (and its one-component case), exactly.

Given the component, missing values are independent, so the probability q of going left at a node
does not depend on the row (:func:`~knothole.expectation.tables.left_probabilities`). A row carries
a weight for each component, at first its responsibilities p(k | x_o). It follows observed splits;
at a missing value the weights divide into ``w * q`` and ``w * (1 - q)``; at a leaf their sum is
the leaf's probability.

Two cases need more than q: a one-hot group observed in part, and two trees at once (Lemma 2). There
the row carries the region of every missing value too, and weights divide by the masses of the two
sides of it.

Expected margins of small trees need neither: what a tree is expected to give, given the component,
is joined from its leaves upwards, at the splits where what is left of it by a row divides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from knothole.arrays import Floats
from knothole.cached import cached_property
from knothole.columns.evidence import Evidence
from knothole.compiled.bits import highest_bit, lowest_bit, popcount, unpack_at
from knothole.compiled.pointers import pointers, shift
from knothole.compiled.policy import inlined, njit
from knothole.compiled.simd import AT_ONCE, copy, dot, fill, load, padded, spread, store, whole
from knothole.densities.base import warn_impossible
from knothole.densities.univariate.base import Univariate
from knothole.expectation.exact.walk import (
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
from knothole.expectation.tables import (
    LEAVES,
    TREES,
    plain,
    read_sets,
    several,
)
from knothole.trees.ensemble import Ensemble

# Rows that walk a tree one after the other, so that the tree's q stays in cache.
ROWS = 256
# Splits on missing values, of some of these rows, whose sides are joined together.
SPLITS = 256


class Product(Protocol):
    """A density whose missing values are independent given a component."""

    distributions_: tuple[Univariate | None, ...]

    def responsibilities(self, evidence: Evidence) -> tuple[Floats, Floats]:
        """Log p(x_o) (rows,) and p(component | x_o) (rows, components)."""
        ...


class MixtureEngine(WalkEngine):
    """Exact expectations under a mixture of products."""

    chunk = 4096  # values are encoded a variable at a time, with some overhead for each

    def __init__(self, ensemble: Ensemble, density: Product) -> None:
        super().__init__(merged_levels(ensemble, density), density.distributions_)
        self.density = density

    def margin(self, evidence: Evidence) -> tuple[Floats, Floats]:
        """Prop. 1; the error is 0."""
        if evidence.allowed is not None or not self.leaf_sets:
            return super().margin(evidence)
        out = np.tile(self.ensemble.base, (len(evidence.points), 1))
        points, weights = self.merged.points(evidence.points), self._weights(evidence)
        room = self.memory.once(self._room)
        telling = self._telling(evidence)
        for trees in self.leaf_sets:
            add_expected(points, weights, telling, trees, self.go_left, self.value, room, out)
        return out, np.zeros_like(out)

    def _telling(self, evidence: Evidence) -> NodeOdds:
        """What missing values say, and what nodes know of it."""
        if evidence.odds is None:
            nothing = np.empty((0, 0))
            return NodeOdds(nothing, nothing, self.ensemble.feature, self.ensemble.missing_left)
        odds = np.ascontiguousarray(evidence.odds[:, : len(self.ensemble.columns)])
        return NodeOdds(odds, *self._not_recorded)

    @cached_property
    def _not_recorded(self) -> tuple[Floats, Any, Any]:
        """The other fields of :class:`NodeOdds`."""
        ensemble, code = self.ensemble, self.tables.unrecorded
        share, goes_left = self._at_nodes[1], ensemble.missing_left.copy()
        for v in np.flatnonzero(code >= 0).tolist():
            nodes = np.flatnonzero(ensemble.feature == v)
            sets = unpack_at(ensemble.sets, ensemble.set_start[nodes], int(ensemble.n_levels[v]))
            goes_left[nodes] = sets[:, code[v]]
        return share, ensemble.feature, goes_left

    def _given(self, evidence: Evidence, regions: bool) -> MixtureGiven | RegionGiven:
        weights, components = self._weights(evidence), self.tables.states
        if regions:
            return RegionGiven(weights, components, 1)
        is_plain = plain(self.ensemble, evidence.points)
        words = self._words(evidence)
        return MixtureGiven(weights, components, ROWS, self.go_left, words, is_plain)

    def _weights(self, evidence: Evidence) -> Floats:
        log_p, weights = self.density.responsibilities(evidence)
        warn_impossible(log_p)
        return padded(weights)

    def _position(self) -> MixturePosition:
        return MixturePosition(self._frames(), np.empty((self.depth, self.tables.states)))

    def _room(self) -> Room:
        n = self.tables.states
        row, node, left, right = np.empty((4, SPLITS), dtype=np.int64)
        return Room(
            sets=np.empty((ROWS, TREES), np.uint64),
            known=np.empty(ROWS),
            given=np.empty((ROWS, n)),
            value=np.empty(LEAVES),
            row=row,
            word=np.empty(SPLITS, np.uint64),
            node=node,
            step=np.empty(SPLITS),
            left=left,
            right=right,
            added=np.zeros((SPLITS, n)),
            told=np.empty(n),
        )


# ---- walks --------------------------------------------------------------------------------------


class MixtureGiven(NamedTuple):
    """Responsibilities, and q, for walks without regions."""

    weights: Any  # (rows, components) p(component | x_o)
    components: int  # a multiple of four
    block: int
    go_left: Any  # (nodes, components) q
    words: Any  # LeafWords
    plain: bool  # see `follow`


class RegionGiven(NamedTuple):
    """Responsibilities, for walks with the regions of missing values in hand."""

    weights: Any  # (rows, components) p(component | x_o)
    components: int
    block: int


class MixturePosition(NamedTuple):
    """Frames, and the weights of each."""

    frames: Any
    weight: Any  # (frames, components)


def begin_row(x, rows, row, tables, region, given):  # type: ignore[no-untyped-def]
    """See :func:`.walk.begin_row`: there are no regions, and weights are all there is."""


def begin_region(x, rows, row, tables, region, given):  # type: ignore[no-untyped-def]
    """See :func:`.walk.begin_row`."""
    reset_region(rows, row, tables, region)


def place(position, tree, nodes, given, row):  # type: ignore[no-untyped-def]
    """See :func:`.walk.place`."""
    place_at_root(position, tree, nodes, given, row)


def place_region(position, tree, nodes, given, row):  # type: ignore[no-untyped-def]
    """See :func:`.walk.place`."""
    start(
        position, nodes.roots[tree], shift(given.weights, row * given.components), given.components
    )


def place_inside(position, root, outer, given):  # type: ignore[no-untyped-def]
    """See :func:`.walk.place_inside`."""
    weights = shift(outer.weight, outer.frames.top[0] * given.components)
    start(position, root, weights, given.components)


def leave_inside(outer, given):  # type: ignore[no-untyped-def]
    """See :func:`.walk.leave_inside`: there is nothing to forget."""


@inlined
def start(position, root, weights, components):  # type: ignore[no-untyped-def]
    """One frame at ``root``, with these weights."""
    copy(position.weight, weights, components)
    start_frame(position.frames, root, whole(weights, components))


def advance(x, nodes, tables, region, given, position, found):  # type: ignore[no-untyped-def]
    """See :func:`.walk.advance`: weights divide by q. All leaves of a tree at once.

    What goes right waits in its frame.
    """
    frames, n = position.frames, given.components
    row, tree = frames.top[0], frames.top[1]
    at, weight, count, top = frames.node[0], shift(given.weights, row * n), 0, 0
    while True:
        node, leaf = next_split(x, at, tree, nodes, given)
        while node >= 0:
            right, go_left = shift(position.weight, top * n), shift(given.go_left, node * n)
            left = shift(right, n)
            for k in range(0, n, AT_ONCE):
                here = load(weight, k)
                goes_left = here * load(go_left, k)
                store(left, k, goes_left)
                store(right, k, here - goes_left)
            at, frames.node[top] = both_sides(at, node, tree, nodes, given)
            top, weight = top + 1, left
            node, leaf = next_split(x, at, tree, nodes, given)
        found.leaves[count] = leaf
        found.reaches[count] = whole(weight, n)
        count += 1
        top -= 1
        if top < 0:
            return count
        at, weight = frames.node[top], shift(position.weight, top * n)


def divide_region(position, given, top, v, left, right):  # type: ignore[no-untyped-def]
    """See :func:`.walk.divide_region`: what goes left is the next frame's, the rest stays.

    Sums have an order of their own: a compiler's would depend on where arrays lie in memory.
    """
    n = given.components
    weight = shift(position.weight, top * n)
    goes_left = shift(weight, n)
    for k in range(n):
        both = left[k] + right[k]
        moved = weight[k] * (left[k] / both) if both > 0.0 else 0.0
        goes_left[k] = moved
        weight[k] -= moved
    return whole(goes_left, n), whole(weight, n)


def enter_side(position, given, top, v, left, right):  # type: ignore[no-untyped-def]
    """See :func:`.walk.enter_side`."""
    if right:
        weight = shift(position.weight, top * given.components)
        copy(shift(weight, given.components), weight, given.components)


def leave_split(position, given, top, v):  # type: ignore[no-untyped-def]
    """See :func:`.walk.leave_split`: what arrived is in the frame above."""


#: For walks with regions, whatever the components' weights come from.
REGION_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "place_inside": place_inside,
    "leave_inside": leave_inside,
    "divide_region": divide_region,
    "enter_side": enter_side,
    "leave_split": leave_split,
    "advance": advance_regions,
}
provide(MixtureGiven, begin_row=begin_row, place=place, advance=advance)
provide(RegionGiven, begin_row=begin_region, place=place_region, **REGION_FUNCTIONS)


# ---- sets of leaves -----------------------------------------------------------------------------


class Room(NamedTuple):
    """Working memory of :func:`add_expected`.

    What rows have left of a tree is divided split by split, those of some rows together: ``word``
    are the leaves that a split parts, ``step`` what the first of them on its right adds to the
    first of all. ``left`` and ``right`` are where its sides are divided further, 0 for a leaf.
    """

    sets: Any  # (ROWS, trees) see `read_sets`
    known: Any  # (ROWS,) the first leaves of all trees
    given: Any  # (ROWS, components) what is expected to be added to them, given the component
    value: Any  # (LEAVES,) of a tree's leaves
    row: Any  # (SPLITS,)
    word: Any  # (SPLITS,)
    node: Any
    step: Any
    left: Any
    right: Any
    added: Any  # (SPLITS, components) what is expected to be added below a split; nothing at 0
    told: Any  # (components,) probability of going left, where a missing value says something


class NodeOdds(NamedTuple):
    """What missing values of rows say of nullable variables (`Evidence.odds`)."""

    odds: Any  # (rows, variables); (0, 0) where nothing is said
    share: Any  # (nodes, components) part of what arrives at a node that is not recorded
    variable: Any  # (nodes,)
    goes_left: Any  # (nodes,) whether "not recorded" does


@njit
def add_expected(points, weights, telling, trees, go_left, value, room, out):  # type: ignore[no-untyped-def]
    """Add the expected margin of each row to ``out`` (rows, outputs): Prop. 1, by sets of leaves.

    What a tree is expected to give, given the component, comes from its leaves upwards. It does
    not depend on the row's weights: they meet the sum over all trees.
    """
    n_rows, n, n_trees = len(points), go_left.shape[1], len(trees.root)
    weights_, go_left_, value_, room_ = pointers((weights, go_left, value, room))
    leaves, given = pointers(trees.leaf), room_.given
    for start in range(0, n_rows, ROWS):
        n_block = min(ROWS, n_rows - start)
        for i in range(n_block):
            read_sets(points[start + i], trees, room.sets[i, :n_trees])
            room.known[i] = 0.0
        fill(given, 0.0, n_block * n)
        for tree in range(n_trees):
            for bit in range(LEAVES):
                room_.value[bit] = value_[leaves[tree * LEAVES + bit]]
            i = 0
            while i < n_block:
                i, first = begin(i, n_block, tree, room_)
                last = find_splits(first, tree, trees, room_)
                root = trees.root[tree]
                for split in range(last - 1, first - 1, -1):
                    go = goes_left(start, root, split, go_left_, telling, room_, n)
                    join_sides(shift(room_.added, split * n), split, go, room_, n, False)
                for split in range(1, first):
                    go = goes_left(start, root, split, go_left_, telling, room_, n)
                    join_sides(shift(given, room_.row[split] * n), split, go, room_, n, True)
        for i in range(n_block):
            of_missing = dot(shift(weights_, (start + i) * n), shift(given, i * n), n)
            out[start + i, trees.output] += room.known[i] + of_missing


@inlined
def begin(i, n_rows, tree, room):  # type: ignore[no-untyped-def]
    """Start with what rows from ``i`` on have left of a tree, as many as there is room for.

    Returns the next row, and how many splits there are, with that at 0 which is none.
    """
    n, left = np.int64(1), np.int64(SPLITS - 1)
    while i < n_rows and left >= LEAVES:
        word = room.sets[i * TREES + tree]
        room.known[i] += room.value[lowest_bit(word)]
        room.word[n], room.row[n] = word, i
        n += several(word)
        left -= np.int64(popcount(word)) - 1
        i += 1
    return i, n


@inlined
def find_splits(n, tree, trees, room):  # type: ignore[no-untyped-def]
    """Find all splits below the ``n`` first ones, parents before their children.

    Branch-free: a branch would be mispredicted. Returns how many there are.
    """
    parting, beyond = pointers((trees.parting, trees.right))
    parting, beyond = shift(parting, tree * LEAVES * LEAVES), shift(beyond, 2 * tree * LEAVES)
    split = 1
    while split < n:
        word, row = room.word[split], room.row[split]
        first = np.int64(lowest_bit(word))
        node = np.int64(parting[first * LEAVES + np.int64(highest_bit(word))])
        above = word & beyond[node]
        below = word ^ above
        room.node[split] = node
        room.step[split] = room.value[lowest_bit(above)] - room.value[first]
        room.word[n], room.row[n] = below, row
        room.left[split] = n * several(below)
        n += several(below)
        room.word[n], room.row[n] = above, row
        room.right[split] = n * several(above)
        n += several(above)
        split += 1
    return n


@inlined
def goes_left(start, root, split, go_left, telling, room, n):  # type: ignore[no-untyped-def]
    """The probability of going left at a split, for each component, given what a row says."""
    node = root + room.node[split]
    go = shift(go_left, node * n)
    if len(telling.odds) == 0:
        return go
    more = telling.odds[start + room.row[split], telling.variable[node]] - 1.0
    if more == 0.0:
        return go
    for k in range(n):
        part = more * telling.share[node, k]
        gone_left = go[k] + part if telling.goes_left[node] else go[k]
        room.told[k] = gone_left / (1.0 + part) if part > -1.0 else 0.0
    return room.told


@inlined
def join_sides(out, split, go_left, room, n, adds):  # type: ignore[no-untyped-def]
    """What both sides of a split are expected to add, for each component, to or into ``out``."""
    step = spread(room.step[split])
    left, right = shift(room.added, room.left[split] * n), shift(room.added, room.right[split] * n)
    for k in range(0, n, AT_ONCE):
        there = load(right, k) + step
        both = there + load(go_left, k) * (load(left, k) - there)
        if adds:
            both = load(out, k) + both
        store(out, k, both)
