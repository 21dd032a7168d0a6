"""Exact engines: walks through the trees that divide where a row has a missing value.

A *position* goes from leaf to leaf of one tree, through those that a row can reach, depth first.
Where it carries the region of every missing value, a second position can start inside a leaf of
the first and go through another tree there: that is the probability of a pair of leaves (Lemma 2).
It then also starts from any region, such as a one-hot group observed in part.

The kernels here do not know the density. What differs is in five functions that families provide
for their own kinds of ``given``, what the density says of rows given x_o
(:mod:`knothole.expectation.exact.mixture`, :mod:`knothole.expectation.exact.latent_tree`); numba
picks them by its type.

Arrays travel in records, because kernels take many of them. A kernel turns the arrays into
pointers at its top (:mod:`knothole.compiled.pointers`): below, ``x`` is the pointer to a row's
points and matrices are indexed by hand.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from knothole.arrays import Floats, Words
from knothole.cached import cached_property
from knothole.columns.evidence import Evidence
from knothole.compiled.bits import has, highest_bit, lowest_bit, set_words, word_offsets
from knothole.compiled.pointers import pointers, prefetch, shift
from knothole.compiled.policy import OPTIONS, inlined, inner, njit
from knothole.compiled.simd import CACHE_LINE, add_times, difference, fill, padded
from knothole.compiled.threads import Memory
from knothole.densities.univariate.base import Univariate
from knothole.expectation.engine import ENTRIES, Entries, ExactEngine, weighted_values
from knothole.expectation.tables import (
    LEAVES,
    Grid,
    LeafSets,
    follow,
    leaf_sets,
    left_probabilities,
    node_arrays,
    not_recorded_mass,
    read_rows,
    stack_size,
)
from knothole.trees.ensemble import Ensemble
from knothole.trees.in_variables import Merged


class WalkEngine(ExactEngine):
    """Exact expectations by walks, for a family of densities."""

    chunk = 512

    def __init__(self, merged: Merged, distributions: Sequence[Univariate | None]) -> None:
        self.merged = merged
        self.ensemble = ensemble = merged.ensemble
        self.value = weighted_values(ensemble)
        self.nodes = node_arrays(ensemble)
        self.depth = stack_size(ensemble)
        self.grid = Grid.of(ensemble)
        mass = padded(self.grid.masses(distributions, merged))
        n_levels = ensemble.n_levels.astype(np.int64)
        set_offset = word_offsets(n_levels)
        self.tables = WalkTables(
            position=self.grid.position,
            offset=self.grid.offset,
            mass=mass,
            absent=padded(not_recorded_mass(distributions, ensemble.n_levels)),
            n_levels=n_levels,
            unrecorded=merged.not_recorded(),
            set_offset=set_offset,
            n_variables=len(n_levels),
            n_words=int(set_offset[-1]),
            states=mass.shape[1],
        )
        self.memory = Memory()

    @abstractmethod
    def _given(self, evidence: Evidence, regions: bool) -> Any:
        """What the density says of rows; ``regions`` says that these must be in hand at leaves."""

    @abstractmethod
    def _position(self) -> Any:
        """Working memory for a position: frames (:meth:`_frames`), and what else it needs."""

    def _tables(self) -> WalkTables:
        """What kernels read of trees and univariate distributions."""
        return self.tables

    @cached_property
    def leaf_sets(self) -> list[LeafSets]:
        """Sets of leaves, where trees are small enough."""
        return leaf_sets(self.ensemble)

    @cached_property
    def _small_trees(self) -> tuple[Any, ...]:
        """Sets of leaves of all trees in their order: see the fields of :class:`LeafWords`."""
        groups = self.leaf_sets
        order = np.argsort(np.concatenate([group.root for group in groups]))
        fields = ("parting", "right", "leaf")
        parts = ([getattr(group, field) for group in groups] for field in fields)
        return tuple(np.ascontiguousarray(np.concatenate(part)[order]) for part in parts)

    def _words(self, evidence: Evidence) -> LeafWords:
        """What observed values leave of small trees."""
        n_trees = self.ensemble.n_trees
        if not self.leaf_sets:
            none = np.empty((0, 0), np.uint64), np.empty(0, np.uint8), np.empty(0, np.uint64)
            return LeafWords(*none, np.empty(0, np.int64), n_trees, False)
        points = self.merged.points(evidence.points)
        words = self.memory.array("words", (len(points), n_trees), np.uint64)
        for group in self.leaf_sets:
            found = np.empty((len(points), len(group.root)), np.uint64)
            read_rows(points, group, found)
            words[:, self.ensemble.leaf_tree[group.leaf[:, 0]]] = found
        parting, right, leaf = (array.ravel() for array in self._small_trees)
        return LeafWords(words, parting, right, leaf, n_trees, True)

    @property
    def go_left(self) -> Floats:
        """Probability of going left at each node where its variable is missing, (nodes, states)."""
        return self._at_nodes[0]

    @cached_property
    def _at_nodes(self) -> tuple[Floats, Floats]:
        """:attr:`go_left`, and the part of what arrives that is not recorded."""
        tables = self.tables
        found = left_probabilities(
            self.ensemble, self.grid, tables.mass, tables.absent, tables.unrecorded
        )
        return padded(found[0]), padded(found[1])

    def margin(self, evidence: Evidence) -> tuple[Floats, Floats]:
        """Prop. 1; the error is 0."""
        out = np.tile(self.ensemble.base, (len(evidence.points), 1))
        add_margin(*self._arguments(evidence), out)
        return out, np.zeros_like(out)

    def entries(self, evidence: Evidence) -> Iterator[Entries]:
        """Leaf probabilities of a chunk, part by part."""
        arguments = self._arguments(evidence)
        size = max(ENTRIES, int(np.diff(self.ensemble.leaf_start).max(initial=1)) + 1)
        at = 0, 0, 0
        while at[0] < len(evidence.points):
            out = Entries(np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size))
            n, at = emit(*arguments, at, out)
            yield Entries(out.row[:n], out.leaf[:n], out.reach[:n])

    def squares(self, evidence: Evidence) -> Floats:
        """E[margin^2] of each output, without the base, (rows, outputs): Lemma 2."""
        out = np.zeros((len(evidence.points), self.ensemble.n_outputs))
        add_pairs(*self._arguments(evidence, regions=True), np.empty((0, 0)), out)
        return out

    def add_pairs(self, evidence: Evidence, row_weight: Floats, out: Floats) -> None:
        """Add the rows' weighted probabilities of pairs of leaves to ``out`` (leaves, leaves)."""
        arguments = self._arguments(evidence, row_weight, regions=True)
        add_pairs(*arguments, out, np.empty((0, 0)))

    def _arguments(
        self, evidence: Evidence, weight: Floats | None = None, regions: bool = False
    ) -> tuple[Any, ...]:
        """What all kernels take."""
        regions = regions or evidence.allowed is not None or evidence.odds is not None
        weight = np.empty(0) if weight is None else weight
        points = self.merged.points(evidence.points)
        odds = np.ones((len(points), self.tables.n_variables))
        if evidence.odds is not None:
            odds = np.ascontiguousarray(evidence.odds[:, : self.tables.n_variables])
        rows = WalkRows(points, self._allowed(evidence), odds, weight)
        leaves = Leaves(self.ensemble.leaf_start, self.value, self.ensemble.tree_output)
        given = self._given(evidence, regions)
        return rows, self.nodes, leaves, self._tables(), given, self.memory.once(self._working)

    def _allowed(self, evidence: Evidence) -> Words:
        """The evidence's sets, or sets of everything."""
        if evidence.allowed is not None and not self.merged.classes:
            return evidence.allowed
        everything = np.iinfo(np.uint64).max
        sets = np.full((len(evidence.points), self.tables.n_words), everything, np.uint64)
        if evidence.allowed is not None:
            merged = [v in self.merged.classes for v in range(self.tables.n_variables)]
            words, given = np.diff(self.tables.set_offset), word_offsets(evidence.n_levels)
            of_merged = np.repeat(merged, np.diff(given)[: len(words)])
            allowed = evidence.allowed[:, : len(of_merged)]
            sets[:, ~np.repeat(merged, words)] = allowed[:, ~of_merged]
        return sets

    def _working(self) -> tuple[Any, ...]:
        """A region, two positions, and lists for one leaf and for all leaves of a tree."""
        region = _region(len(self.ensemble.columns), self.tables.n_words)
        # A place more than leaves: full means "not done yet".
        n = int(np.diff(self.ensemble.leaf_start).max(initial=1)) + 1
        lists = (LeafList(np.empty(k, dtype=np.int32), np.empty(k), k) for k in (1, n))
        return region, self._position(), self._position(), *lists

    def _frames(self) -> Frames:
        """The part of a position that all kinds have."""
        words = set_words(int(self.ensemble.n_levels.max(initial=0)))
        return Frames(
            top=np.zeros(2, dtype=np.int64),
            reach=np.empty(self.depth),
            node=np.empty(self.depth, dtype=np.int64),
            phase=np.empty(self.depth, dtype=np.int64),
            saved=_region(self.depth, self.depth * words),
            words=words,
            left=np.empty(self.tables.states),
            right=np.empty(self.tables.states),
        )


def merged_levels(ensemble: Ensemble, density: Any) -> Merged:
    """The ensemble with levels that no split tells apart taken as one.

    But for one-hot groups, which may be observed in part: some of their levels alone are possible.
    """
    groups = [v for v, variable in enumerate(density.variables_) if len(variable.columns) > 1]
    return Merged.of(ensemble, but=groups)


def _region(n: int, words: int) -> Region:
    low, high = np.empty((2, n), dtype=np.int64)
    recorded, sets = np.empty(n, dtype=np.bool_), np.empty(words, dtype=np.uint64)
    return Region(low, high, recorded, sets, np.ones(n))


# ---- records ------------------------------------------------------------------------------------

# What is left to do in a frame.
ENTER, RIGHT, LEAVE = 0, 1, 2


class WalkTables(NamedTuple):
    """What trees and univariate distributions say together (:mod:`knothole.expectation.tables`)."""

    position: Any  # (nodes,) of the cut, in its variable's grid
    offset: Any  # (variables + 1,) first row of each variable in ``mass``
    mass: Any  # (grid rows, states)
    absent: Any  # (variables, states) mass of "not recorded" of numeric variables
    n_levels: Any  # (variables,)
    unrecorded: Any  # (variables,) code of "not recorded" of categorical ones, else -1
    set_offset: Any  # (variables + 1,) first word of each variable in a region's sets
    n_variables: int
    n_words: int
    states: int


class WalkRows(NamedTuple):
    """Rows to walk for."""

    points: Any  # (rows, variables)
    allowed: Any  # (rows, words)
    odds: Any  # (rows, variables)
    weight: Any  # (rows,)


class Leaves(NamedTuple):
    """The leaves."""

    start: Any  # (trees + 1,) first leaf of each tree
    value: Any  # (leaves, width) times the tree's weight
    output: Any  # (trees,) first output that each tree serves


class Region(NamedTuple):
    """What remains of each variable that is missing; or, in frames, of one variable in each."""

    low: Any  # (variables,) grid positions
    high: Any
    recorded: Any  # (variables,) whether "not recorded" is excluded
    sets: Any  # (words,) the codes that remain
    odds: Any  # (variables,) what missing values say (`Evidence.odds`), wherever the position is


class Frames(NamedTuple):
    """A stack: a frame for each split on a missing value between the root and a position."""

    top: Any  # (2,) the frame in use; or, of a position without regions, the row and the tree
    reach: Any  # (frames,) leaf probability, so far
    node: Any
    phase: Any
    saved: Any  # Region: what remained of the split's variable on arrival
    words: int  # of a saved set
    left: Any  # (states,) masses of the sides of the last split that divided
    right: Any


class LeafWords(NamedTuple):
    """Which leaves of small trees observed values leave (:class:`.LeafSets`), for all trees.

    A walk without regions then goes from split to split where such a set divides in two, and from
    node to node elsewhere.
    """

    word: Any  # (rows, trees)
    parting: Any  # (trees, 64, 64)
    right: Any  # (trees, 128)
    leaf: Any  # (trees, 64)
    n_trees: int
    small: bool  # whether trees are; otherwise all arrays are empty


class LeafList(NamedTuple):
    """Leaves that a position came to, and their probabilities.

    A position that fills the list has not finished: for all leaves of a tree there must be one
    place more.
    """

    leaves: Any
    reaches: Any
    size: int


# ---- what families provide ----------------------------------------------------------------------


def begin_row(x: Any, rows: Any, row: Any, tables: Any, region: Any, given: Any) -> None:
    """Get ready for a row."""
    raise NotImplementedError


def place(position: Any, tree: Any, nodes: Any, given: Any, row: Any) -> None:
    """Put a position before the first leaf of a tree, with all of the row's probability."""
    raise NotImplementedError


def place_inside(position: Any, root: Any, outer: Any, given: Any) -> None:
    """Put a position before the first leaf below ``root``, inside the leaf of another position."""
    raise NotImplementedError


def advance(
    x: Any, nodes: Any, tables: Any, region: Any, given: Any, position: Any, found: Any
) -> int:
    """Go on to the next leaves, as many as the list takes; return how many there were.

    With room for one, ``region`` is the leaf's when it stops there. When there are no more leaves,
    the region is what it was at the start.
    """
    raise NotImplementedError


def leave_inside(outer: Any, given: Any) -> None:
    """Forget a position that was placed inside another's leaf and has no more leaves."""
    raise NotImplementedError


def divide_region(position: Any, given: Any, top: Any, v: Any, left: Any, right: Any) -> Any:
    """Divide what arrives at a split on ``v`` by the masses (states,) of its two sides.

    Returns the probabilities of both sides.
    """
    raise NotImplementedError


def enter_side(position: Any, given: Any, top: Any, v: Any, left: Any, right: Any) -> None:
    """Go on at one side of the last split in frame ``top``: the right one, if so.

    ``left`` has the masses of the left side, as they were when the split divided.
    """
    raise NotImplementedError


def leave_split(position: Any, given: Any, top: Any, v: Any) -> None:
    """Return to what arrived at the split in frame ``top``."""
    raise NotImplementedError


def provide(kind: type, **functions: Callable[..., Any]) -> None:
    """Let functions stand for those above, by name, for one kind of ``given``.

    ``given.block`` is how many rows walk a tree one after the other, so that what is known of its
    nodes stays in cache; where it is more than 1, ``begin_row`` leaves nothing behind.
    """
    for name, function in functions.items():
        _provide(kind, name, function)


def _provide(kind: type, name: str, function: Callable[..., Any]) -> None:
    @overload(globals()[name], jit_options=OPTIONS, strict=False)
    def choose(*arguments: Any) -> Any:
        kinds = [getattr(argument, "instance_class", None) for argument in arguments]
        return function if kind in kinds else None


# ---- regions ------------------------------------------------------------------------------------


@inlined
def reset_region(rows, row, tables, region):  # type: ignore[no-untyped-def]
    """Every missing value may be anything, but for what the row's sets say."""
    for v in range(tables.n_variables):
        region.low[v] = 0
        region.high[v] = tables.offset[v + 1] - tables.offset[v] - 1
        region.recorded[v] = 0
        region.odds[v] = rows.odds[row * tables.n_variables + v]
    for word in range(tables.n_words):
        region.sets[word] = rows.allowed[row * tables.n_words + word]


@inlined
def save_region(frame, v, tables, region, frames, back):  # type: ignore[no-untyped-def]
    """Note in a frame what remains of variable ``v``, or put it back."""
    in_region = region, v, tables.set_offset[v]
    in_frame = frames.saved, frame, frame * frames.words
    source, i, word_i = in_frame if back else in_region
    target, j, word_j = in_region if back else in_frame
    if tables.n_levels[v] > 0:
        for word in range(tables.n_levels[v] // 64 + 1):
            target.sets[word_j + word] = source.sets[word_i + word]
        return
    target.low[j] = source.low[i]
    target.high[j] = source.high[i]
    target.recorded[j] = source.recorded[i]


@inlined
def confine(frame, node, v, right, nodes, tables, region, frames):  # type: ignore[no-untyped-def]
    """Confine variable ``v`` to the left or right side of what the frame noted, at a split."""
    saved = frames.saved
    if tables.n_levels[v] > 0:
        first, held, split = tables.set_offset[v], frame * frames.words, nodes.set_start[node]
        for word in range(tables.n_levels[v] // 64 + 1):
            bits = nodes.sets[split + word]
            region.sets[first + word] = saved.sets[held + word] & (~bits if right else bits)
        return
    low, high = saved.low[frame], saved.high[frame]
    middle = min(max(tables.position[node], low), high)
    region.low[v] = middle if right else low
    region.high[v] = high if right else middle
    # NaN goes to one side; on the other, the variable is known to be recorded.
    elsewhere = (nodes.missing_left[node] != 0) == right
    region.recorded[v] = 1 if elsewhere else saved.recorded[frame]


@inlined
def side_masses(v, node, nodes, tables, region, left, right):  # type: ignore[no-untyped-def]
    """Masses of the two sides of what remains of a variable at a split."""
    states, first = tables.states, tables.offset[v]
    if tables.n_levels[v] > 0:
        code_masses(v, node, nodes, tables, region, left, right)
        return
    low, high = region.low[v], region.high[v]
    middle = min(max(tables.position[node], low), high)
    below_low = shift(tables.mass, (first + low) * states)
    below_middle = shift(tables.mass, (first + middle) * states)
    below_high = shift(tables.mass, (first + high) * states)
    difference(left, below_middle, below_low, states)
    difference(right, below_high, below_middle, states)
    if not region.recorded[v]:
        absent = shift(tables.absent, v * states)
        add_times(left if nodes.missing_left[node] else right, absent, region.odds[v], states)


@inner
def code_masses(v, node, nodes, tables, region, left, right):  # type: ignore[no-untyped-def]
    """:func:`side_masses` of a categorical variable."""
    states = tables.states
    remaining, goes = tables.set_offset[v], nodes.set_start[node]
    fill(left, 0.0, states)
    fill(right, 0.0, states)
    for code in range(tables.n_levels[v]):
        if has(region.sets, remaining, code):
            mass = shift(tables.mass, (tables.offset[v] + code) * states)
            odds = region.odds[v] if code == tables.unrecorded[v] else 1.0
            add_times(left if has(nodes.sets, goes, code) else right, mass, odds, states)


@inlined
def prefetch_masses(node, nodes, tables):  # type: ignore[no-untyped-def]
    """Start to load the masses below a node's cut: their table is too large for the near caches."""
    v = nodes.feature[node]
    if v >= 0:
        below = shift(tables.mass, (tables.offset[v] + tables.position[node]) * tables.states)
        for z in range(0, tables.states, CACHE_LINE):
            prefetch(shift(below, z))


@inlined
def start_frame(frames, root, reach):  # type: ignore[no-untyped-def]
    """One frame at ``root``, with this probability."""
    frames.top[0] = 0
    frames.reach[0] = reach
    frames.node[0] = root
    frames.phase[0] = ENTER


def advance_regions(x, nodes, tables, region, given, position, found):  # type: ignore[no-untyped-def]
    """See :func:`advance`: with the regions of missing values in hand."""
    frames, feature = position.frames, nodes.feature
    left, right = frames.left, frames.right
    # Whoever takes leaves one by one wants the leaf's region in hand, others its probability alone.
    one_by_one = found.size == 1
    count, top = 0, frames.top[0]
    while top >= 0 and count < found.size:
        node, phase, to_right = frames.node[top], frames.phase[top], True
        if phase == ENTER:
            node = follow(x, node, nodes, False)
            frames.node[top] = node
        v = feature[node]
        if v < 0:
            if phase == ENTER:
                frames.phase[top] = LEAVE
                found.leaves[count], found.reaches[count] = nodes.left[node], frames.reach[top]
                count += 1
            else:
                top -= 1
            continue
        if phase == ENTER:
            side_masses(v, node, nodes, tables, region, left, right)
            left_reach, right_reach = divide_region(position, given, top, v, left, right)
            left_node = follow(x, nodes.left[node], nodes, False)
            right_node = follow(x, nodes.left[node] + 1, nodes, False)
            left_ends = not one_by_one and (feature[left_node] < 0 or left_reach <= 0.0)
            right_ends = not one_by_one and (feature[right_node] < 0 or right_reach <= 0.0)
            if left_ends and left_reach > 0.0:
                found.leaves[count], found.reaches[count] = nodes.left[left_node], left_reach
                count += 1
            if right_ends and right_reach > 0.0:
                found.leaves[count], found.reaches[count] = nodes.left[right_node], right_reach
                count += 1
            if left_ends and right_ends:
                leave_split(position, given, top, v)
                top -= 1
                continue
            prefetch_masses(left_node, nodes, tables)
            prefetch_masses(right_node, nodes, tables)
            save_region(top, v, tables, region, frames, False)
            frames.phase[top] = LEAVE if left_ends or right_ends else RIGHT
            frames.reach[top], to_right = right_reach, left_ends
            child_reach = right_reach if left_ends else left_reach
        elif phase == RIGHT:
            frames.phase[top] = LEAVE
            child_reach = frames.reach[top]
        else:
            leave_split(position, given, top, v)
            save_region(top, v, tables, region, frames, True)
            top -= 1
            continue
        # Most pairs of regions do not meet: a side without probability is not visited.
        if child_reach > 0.0:
            confine(top, node, v, to_right, nodes, tables, region, frames)
            enter_side(position, given, top, v, left, to_right)
            top += 1
            frames.reach[top] = child_reach
            frames.node[top] = nodes.left[node] + to_right
            frames.phase[top] = ENTER
    frames.top[0] = top
    return count


# ---- walks without regions: all leaves of a tree at once ----------------------------------------


@inlined
def place_at_root(position, tree, nodes, given, row):  # type: ignore[no-untyped-def]
    """See :func:`place`: at a node, or at the set of leaves that observed values leave."""
    words, frames = given.words, position.frames
    frames.top[0], frames.top[1] = row, tree
    if words.small:
        frames.node[0] = np.int64(words.word[row * words.n_trees + tree])
    else:
        frames.node[0] = nodes.roots[tree]


@inlined
def next_split(x, at, tree, nodes, given):  # type: ignore[no-untyped-def]
    """The next node where the row divides, and 0; or -1 and the leaf that it comes to."""
    words = given.words
    if words.small:
        word = np.uint64(at)
        lowest, highest = np.int64(lowest_bit(word)), np.int64(highest_bit(word))
        if lowest == highest:
            return np.int64(-1), np.int64(words.leaf[tree * LEAVES + lowest])
        node = np.int64(words.parting[(tree * LEAVES + lowest) * LEAVES + highest])
        return nodes.roots[tree] + node, np.int64(0)
    node = follow(x, at, nodes, given.plain)
    if nodes.feature[node] < 0:
        return np.int64(-1), np.int64(nodes.left[node])
    return np.int64(node), np.int64(0)


@inlined
def both_sides(at, node, tree, nodes, given):  # type: ignore[no-untyped-def]
    """Where to go on at the left and at the right of a split."""
    words = given.words
    if words.small:
        word = np.uint64(at)
        right = word & words.right[2 * tree * LEAVES + node - nodes.roots[tree]]
        return np.int64(word ^ right), np.int64(right)
    return np.int64(nodes.left[node]), np.int64(nodes.left[node] + 1)


# ---- walks --------------------------------------------------------------------------------------


@njit
def add_margin(rows, nodes, leaves, tables, given, working, out):  # type: ignore[no-untyped-def]
    """Add the expected margin of each row to ``out`` (rows, outputs): Prop. 1."""
    n_rows, n_columns = rows.points.shape
    n_trees, width, n_outputs = len(nodes.roots), leaves.value.shape[1], out.shape[1]
    rows_, nodes_, leaves_, tables_, given_ = pointers((rows, nodes, leaves, tables, given))
    working_, out_ = pointers((working, out))
    region, position, _, _, found = working_
    for start in range(0, n_rows, given.block):
        stop = min(start + given.block, n_rows)
        for tree in range(n_trees):
            for row in range(start, stop):
                x = shift(rows_.points, row * n_columns)
                if tree == 0:
                    begin_row(x, rows_, row, tables_, region, given_)
                place(position, tree, nodes_, given_, row)
                n = advance(x, nodes_, tables_, region, given_, position, found)
                for j in range(width):
                    expected = 0.0
                    for i in range(n):
                        expected += found.reaches[i] * leaves_.value[found.leaves[i] * width + j]
                    out_[row * n_outputs + leaves_.output[tree] + j] += expected


@njit
def emit(rows, nodes, leaves, tables, given, working, at, out):  # type: ignore[no-untyped-def]
    """Write (row, leaf, leaf probability) of a chunk of rows until ``out`` is full.

    Starts ``at`` (first row of a block, tree, row in the block); returns the number of entries and
    where to go on.
    """
    start, tree, row = at
    n_rows, n_columns = rows.points.shape
    n_trees, capacity = len(nodes.roots), len(out.leaf)
    rows_, nodes_, leaves_, tables_, given_ = pointers((rows, nodes, leaves, tables, given))
    working_, out_ = pointers((working, out))
    region, position, _, _, _ = working_
    count = 0
    if tree > 0:
        x = shift(rows_.points, (start + row) * n_columns)
        begin_row(x, rows_, start + row, tables_, region, given_)
    while start < n_rows:
        n_block = min(given.block, n_rows - start)
        while tree < n_trees:
            # One to spare: a list that is full means that the position is not done.
            needed = leaves_.start[tree + 1] - leaves_.start[tree] + 1
            while row < n_block:
                if count + needed > capacity:
                    return count, (start, tree, row)
                x = shift(rows_.points, (start + row) * n_columns)
                if tree == 0:
                    begin_row(x, rows_, start + row, tables_, region, given_)
                place(position, tree, nodes_, given_, start + row)
                found = LeafList(shift(out_.leaf, count), shift(out_.reach, count), needed)
                n = advance(x, nodes_, tables_, region, given_, position, found)
                for i in range(count, count + n):
                    out_.row[i] = start + row
                count += n
                row += 1
            row = 0
            tree += 1
        tree = 0
        start += n_block
    return count, (start, tree, row)


@njit
def add_pairs(rows, nodes, leaves, tables, given, working, pairs, squares):  # type: ignore[no-untyped-def]
    """Visit every pair of leaves that a row reaches at once, in trees t <= t' (Lemmas 1 and 2).

    Where ``pairs`` (leaves, leaves) is not empty, probabilities of pairs times the row's weight
    are added to it (M of Prop. 3). Where ``squares`` (rows, outputs) is not empty, E[margin^2] of
    each output, without the base, is added to it; then only trees that serve the same output are
    paired.
    """
    n_rows, n_columns = rows.points.shape
    row_weight, value, tree_output = rows.weight, leaves.value, leaves.output
    n_trees, width = len(nodes.roots), value.shape[1]
    rows_, nodes_, tables_, given_, working_ = pointers((rows, nodes, tables, given, working))
    region, outer, inner, one, mates = working_
    for row in range(n_rows):
        x = shift(rows_.points, row * n_columns)
        begin_row(x, rows_, row, tables_, region, given_)
        for tree in range(n_trees):
            output = tree_output[tree]
            place(outer, tree, nodes_, given_, row)
            # The outer position stops at each leaf, with the leaf's region in hand.
            while advance(x, nodes_, tables_, region, given_, outer, one):
                leaf, reach = one.leaves[0], one.reaches[0]
                if len(pairs) > 0:
                    pairs[leaf, leaf] += row_weight[row] * reach
                if len(squares) > 0:
                    for j in range(width):
                        squares[row, output + j] += reach * value[leaf, j] ** 2
                for other in range(tree + 1, n_trees):
                    if len(squares) > 0 and tree_output[other] != output:
                        continue
                    place_inside(inner, nodes_.roots[other], outer, given_)
                    n = advance(x, nodes_, tables_, region, given_, inner, mates)
                    leave_inside(outer, given_)
                    if len(pairs) > 0:
                        for i in range(n):
                            pairs[leaf, mates.leaves[i]] += row_weight[row] * mates.reaches[i]
                    if len(squares) > 0:
                        for j in range(width):
                            expected = 0.0
                            for i in range(n):
                                expected += mates.reaches[i] * value[mates.leaves[i], j]
                            squares[row, output + j] += 2.0 * value[leaf, j] * expected
