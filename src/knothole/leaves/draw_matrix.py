"""Completions of rows as a matrix of bits: which draw of which row reaches which leaf.

With A the (draws of all rows x leaves) matrix of ones and zeros, a forest's margins are A theta and
everything that learning needs is a product with A: gradients A' f, pair reach A' A, and the
operator A' A theta without the matrix. A is kept as the words of
:mod:`knothole.expectation.monte_carlo.kernels`, 64 draws each, in memory where there is room and
walked
again where there is not. What is minimised on given draws is minimised exactly; how far the draws
themselves are off is told by draws that took no part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from knothole.arrays import Floats
from knothole.columns.evidence import Evidence
from knothole.compiled.bits import popcount
from knothole.compiled.pointers import pointers
from knothole.compiled.policy import inlined, njit
from knothole.compiled.simd import add_where
from knothole.compiled.sobol import GROUPS, WORD
from knothole.compiled.threads import over_chunks
from knothole.expectation.monte_carlo.engine import CompletionsEngine
from knothole.leaves import system
from knothole.leaves.sums import LeafSums
from knothole.progress import Advance, silent

T = TypeVar("T")

#: Draws in a word.
DRAWS = WORD
# Memory that the words of all rows may take; beyond it they are found again for every pass.
ROOM = 1 << 30
BYTES_PER_ENTRY = 12
# Sums over chunks are added up in so many parts, whatever the threads: the same bits.
PARTS = 8
# Chunks whose pairs of leaves are counted together.
PAIR_CHUNKS = 16


class Bits(NamedTuple):
    """Which draws of some rows reach which leaves: entries row by row, and tree by tree.

    Bit ``i`` of an entry's word says that draw ``i`` of the row reaches the leaf. The entries of
    tree ``t`` of a row end before ``stop[row, t]``, and begin where those of the tree before end.
    """

    leaf: Any  # int32 (entries,)
    word: Any  # uint64 (entries,)
    stop: Any  # int64 (rows, trees)


@dataclass(frozen=True, eq=False)
class Chunk:
    """The bits of some rows: the part of A that one word of their draws makes.

    They may be of trees from ``first`` on only.
    """

    index: int
    rows: slice
    word: int
    bits: Bits
    first: int = 0

    def by_tree(self) -> list[Chunk]:
        """A chunk for each tree by itself: what is asked of one tree then lies together."""
        leaf, word, stop = self.bits
        ends = np.empty(stop.T.shape, dtype=np.int64)
        sorted_bits = Bits(np.empty_like(leaf), np.empty_like(word), ends)
        first = np.empty(len(ends) + 1, dtype=np.int64)
        sort_by_tree(self.bits, first, sorted_bits)
        parts = (slice(*bounds) for bounds in pairwise(first.tolist()))
        return [
            replace(
                self,
                bits=Bits(sorted_bits.leaf[part], sorted_bits.word[part], ends[t, :, None]),
                first=t,
            )
            for t, part in enumerate(parts)
        ]


class DrawMatrix:
    """The draws of rows, and the leaves that they reach.

    Parameters
    ----------
    engine : CompletionsEngine
        Its ensemble's trees are the columns of A.
    evidence : Evidence
        Rows; their holes are drawn.
    row_weight : float64 (rows,)
    words : int
        Words of 64 draws a row.
    first_word : int
        Which draws: words with other numbers are independent of these.
    threads : int, optional
    room : int
        Bytes of memory to keep words in.
    advance : callable, optional
        Told how many rows were walked, where words are kept.
    """

    def __init__(
        self,
        engine: CompletionsEngine,
        evidence: Evidence,
        row_weight: Floats,
        words: int = 1,
        first_word: int = 0,
        threads: int | None = None,
        room: int = ROOM,
        advance: Advance = silent,
    ) -> None:
        self.engine = engine
        self.ensemble = engine.ensemble
        self.evidence = evidence
        self.row_weight = row_weight
        self.words = words
        self.first_word = first_word
        self.threads = threads
        self.n_rows = len(evidence.points)
        self._places = [
            (start, min(start + engine.chunk, self.n_rows), word)
            for word in range(words)
            for start in range(0, self.n_rows, engine.chunk)
        ]
        self._kept: list[Chunk] | None = None
        self._sample: Chunk | None = None
        self._weight: Floats | None = None
        size = self._size()
        self._twice = 2 * size <= room
        if size <= room:

            def kept(chunk: Chunk) -> Chunk:
                advance(amount=len(chunk.bits.stop))
                return chunk

            self._kept = self.map(kept)

    def _size(self) -> float:
        """Bytes that all words would take, judged by the first chunk."""
        if not self._places:
            return 0.0
        self._sample = self._walk(0)
        first = self._sample.bits
        entries = len(first.leaf) / len(first.stop)
        per_row = entries * BYTES_PER_ENTRY + 8 * self.ensemble.n_trees
        return per_row * self.n_rows * self.words

    def _walk(self, index: int) -> Chunk:
        if self._kept is not None:
            return self._kept[index]
        if index == 0 and self._sample is not None:
            return self._sample
        start, stop, word = self._places[index]
        rows = slice(start, stop)
        found = self.engine.masks(self.evidence[rows], self.first_word + word)
        return Chunk(index, rows, word, Bits(*found))

    def of_tree(self, chunk: Chunk, tree: int) -> Chunk:
        """A chunk for what is asked of one tree: of that alone, where there is room to keep it."""
        if self._kept is None or not self._twice:
            return chunk
        if chunk.index not in self._of_trees:
            self._of_trees[chunk.index] = chunk.by_tree()
        return self._of_trees[chunk.index][tree]

    @cached_property
    def _of_trees(self) -> dict[int, list[Chunk]]:
        return {}

    def map(self, work: Callable[[Chunk], T]) -> list[T]:
        """``work`` of every chunk, in order."""

        def one(start: int, stop: int) -> T:
            return work(self._walk(start))

        return over_chunks(one, len(self._places), 1, self.threads)

    def total(self, work: Callable[[Chunk, Floats], None], shape: tuple[int, ...]) -> Floats:
        """The sum over chunks of what ``work`` adds to an array of this shape."""

        def add(indices: range, out: Floats) -> None:
            for index in indices:
                work(self._walk(index), out)

        return self._summed(add, shape, PARTS)

    def _summed(
        self, add: Callable[[range, Floats], None], shape: tuple[int, ...], parts: int
    ) -> Floats:
        """What ``add`` adds up over all chunks, each part of them by itself."""

        def part(start: int, stop: int) -> Floats:
            out = np.zeros(shape)
            add(range(start, stop), out)
            return out

        size = max(1, -(-len(self._places) // parts))
        total = np.zeros(shape)
        for out in over_chunks(part, len(self._places), size, self.threads):
            total += out
        total /= self.words
        return total

    def margins(self, chunk: Chunk, theta: Floats, trees: slice | None = None) -> Floats:
        """A theta for a chunk, without the base, (rows, outputs, draws); perhaps of some trees."""
        out = np.zeros((len(chunk.bits.stop), self.ensemble.n_outputs, DRAWS))
        self.add_margins(chunk, theta, out, trees)
        return out

    def add_margins(
        self, chunk: Chunk, theta: Floats, out: Floats, trees: slice | None = None
    ) -> None:
        """Add the same to ``out``."""
        span, values = self._span(chunk, trees), np.empty(self.ensemble.n_leaves)
        add_margins(chunk.bits, *span, theta, self._outputs(chunk), values, out)

    def leaves(self, chunk: Chunk, tree: int) -> NDArray[np.int32]:
        """The leaf that each draw of a chunk reaches, by its number in the tree, (rows, draws)."""
        start, stop = self.ensemble.leaf_start[tree : tree + 2]
        number = np.zeros(self.ensemble.value.shape)
        number[start:stop] = np.arange(stop - start)[:, None]
        found = self.margins(self.of_tree(chunk, tree), number, slice(tree, tree + 1))
        return np.asarray(found[:, self.ensemble.tree_output[tree]].astype(np.int32))

    def reach(self, tree: int, draws: Any = slice(None)) -> sparse.csr_matrix:
        """The part of all draws, or of some of each word, that reach each leaf of a tree."""

        def part(chunk: Chunk) -> tuple[NDArray[np.intp], NDArray[np.int32]]:
            leaf = self.leaves(chunk, tree)[:, draws]
            row = np.arange(self.n_rows)[chunk.rows]
            return np.repeat(row, leaf.shape[1]), leaf.ravel()

        row, leaf = (np.concatenate(each) for each in zip(*self.map(part), strict=True))
        shape = (self.n_rows, int(np.diff(self.ensemble.leaf_start)[tree]))
        share = np.full(len(leaf), self.n_rows / len(leaf))
        return sparse.csr_matrix((share, (row, leaf)), shape=shape)

    def gather(self, chunk: Chunk, values: Floats, out: Floats, trees: slice | None = None) -> None:
        """Add A' f for a chunk, the mean over a row's draws, to ``out`` (leaves, width)."""
        add_means(
            chunk.bits, *self._span(chunk, trees), values, self.row_weight[chunk.rows],
            self._outputs(chunk), out,
        )  # fmt: skip

    def apply(self, theta: Floats) -> Floats:
        """A' A theta, (leaves, width): the matrix M of Prop. 3 times theta, without the matrix."""

        def work(chunk: Chunk, out: Floats) -> None:
            self.gather(chunk, self.margins(chunk, theta), out)

        return self.total(work, theta.shape)

    def pairs(self, leaves: NDArray[np.intp]) -> Floats:
        """A' A of some leaves (by rising numbers): its upper part, zeros below."""
        place = np.full(self.ensemble.n_leaves, -1, dtype=np.int64)
        place[leaves] = np.arange(len(leaves))

        def add(indices: range, out: Floats) -> None:
            for first in range(0, len(indices), PAIR_CHUNKS):
                self._add_pairs(indices[first : first + PAIR_CHUNKS], place, out)

        return self._summed(add, (len(leaves), len(leaves)), system.PARTS)

    def _add_pairs(self, indices: range, place: NDArray[np.int64], out: Floats) -> None:
        """Add the pair reach of several chunks, as one: leaves then meet more rows at a time."""
        chunks = [self._walk(index) for index in indices]
        sizes = [len(chunk.bits.leaf) for chunk in chunks]
        starts = np.cumsum([0, *sizes[:-1]])
        bits = Bits(
            np.concatenate([chunk.bits.leaf for chunk in chunks]),
            np.concatenate([chunk.bits.word for chunk in chunks]),
            np.concatenate([b.bits.stop + start for b, start in zip(chunks, starts, strict=True)]),
        )
        weight = np.concatenate([self.row_weight[chunk.rows] for chunk in chunks])
        first = np.empty(self.ensemble.n_leaves, dtype=np.int32)
        links = np.empty((2, len(bits.leaf)), dtype=np.int32)
        add_pairs(bits, self.ensemble.leaf_start, place, weight, first, links, out)

    def weight(self) -> Floats:
        """The diagonal of A' A: the reach of every leaf, summed over rows."""
        if self._weight is None:
            self._weight = self.sums(np.zeros((self.n_rows, self.ensemble.n_outputs)))[0].weight
        return self._weight

    def sums(self, y: Floats, groups: int = 1) -> list[LeafSums]:
        """Sums of Prop. 2 from all draws, or from each of several independent groups of them."""
        found = [self._sums(y, group, DRAWS // groups) for group in range(groups)]
        if groups == 1:
            self._weight = found[0].weight
        return found

    def _sums(self, y: Floats, group: int, size: int) -> LeafSums:
        width = self.ensemble.value.shape[1]
        draws = np.uint64(((1 << size) - 1) << (size * group))

        def work(chunk: Chunk, out: Floats) -> None:
            add_sums(
                chunk.bits, draws, 1 / size, y[chunk.rows], self.row_weight[chunk.rows],
                self.ensemble.tree_output, out[:, 0], out[:, 1:],
            )  # fmt: skip

        found = self.total(work, (self.ensemble.n_leaves, 1 + width))
        sums = LeafSums.empty(self.ensemble)
        sums.weight, sums.target = found[:, 0].copy(), found[:, 1:].copy()
        sums.add_squares(self.ensemble, y, self.row_weight)
        return sums

    def mean_by_group(self, work: Callable[[Chunk], Floats]) -> Floats:
        """Weighted sum over rows of values (rows, draws), for each independent group of draws."""

        def part(chunk: Chunk) -> tuple[int, Floats]:
            values = self.row_weight[chunk.rows] @ work(chunk)
            return chunk.word, values.reshape(GROUPS, -1).mean(axis=1)

        out = np.zeros((self.words, GROUPS))
        for word, values in self.map(part):
            out[word] += values
        return out.reshape(-1)

    def _span(self, chunk: Chunk, trees: slice | None) -> tuple[int, int]:
        if trees is None:
            return 0, self.ensemble.n_trees
        return trees.start - chunk.first, trees.stop - chunk.first

    def _outputs(self, chunk: Chunk) -> Any:
        return self.ensemble.tree_output[chunk.first :]


@inlined
def has_bit(word, draw):  # type: ignore[no-untyped-def]
    """Whether a draw is in a word."""
    return (word >> np.uint64(draw)) & np.uint64(1) != 0


@inlined
def first_entry(stop, row, tree):  # type: ignore[no-untyped-def]
    """Where the entries of a row's tree begin."""
    if tree > 0:
        return stop[row, tree - 1]
    if row > 0:
        return stop[row - 1, stop.shape[1] - 1]
    return 0


@njit
def sort_by_tree(bits, first, out):  # type: ignore[no-untyped-def]
    """Entries tree by tree, from ``first`` (trees + 1,) on; ``out.stop`` is (trees, rows)."""
    leaf, word, stop = bits
    n_rows, n_trees = stop.shape
    first[0] = 0
    for tree in range(n_trees):
        n = 0
        for row in range(n_rows):
            n += stop[row, tree] - first_entry(stop, row, tree)
            out.stop[tree, row] = n
        first[tree + 1] = first[tree] + n
    e = 0
    for row in range(n_rows):
        for tree in range(n_trees):
            own = first[tree] + (out.stop[tree, row - 1] if row > 0 else 0)
            while e < stop[row, tree]:
                out.leaf[own], out.word[own] = leaf[e], word[e]
                own += 1
                e += 1


@njit
def add_margins(bits, first_tree, last_tree, theta, tree_output, values, out):  # type: ignore[no-untyped-def]
    """Add what leaves of some trees add to the margin of the draws that reach them.

    Those of neighbours that serve the same outputs in one go; ``values`` (leaves,) is room.
    """
    leaf, word, stop = bits
    for row in range(len(stop)):
        entry, tree = first_entry(stop, row, first_tree), first_tree
        while tree < last_tree:
            output = tree_output[tree]
            while tree < last_tree and tree_output[tree] == output:
                tree += 1
            end = stop[row, tree - 1]
            for j in range(theta.shape[1]):
                for e in range(entry, end):
                    values[e - entry] = theta[leaf[e], j]
                margin, words, own = pointers((out[row, output + j], word[entry:], values))
                add_where(margin, words, own, end - entry)
            entry = end


@njit
def add_means(bits, first_tree, last_tree, values, row_weight, tree_output, out):  # type: ignore[no-untyped-def]
    """Add to ``out`` (leaves, width) the mean over draws of the values that reach each leaf."""
    leaf, word, stop = bits
    for row in range(len(stop)):
        unit = row_weight[row] / DRAWS
        entry = first_entry(stop, row, first_tree)
        for tree in range(first_tree, last_tree):
            for j in range(out.shape[1]):
                value = values[row, tree_output[tree] + j]
                for e in range(entry, stop[row, tree]):
                    total, own = 0.0, word[e]
                    for draw in range(DRAWS):
                        total += value[draw] if has_bit(own, draw) else 0.0
                    out[leaf[e], j] += unit * total
            entry = stop[row, tree]


@njit
def add_sums(bits, draws, scale, y, row_weight, tree_output, weight, target):  # type: ignore[no-untyped-def]
    """Add reach, and reach times target, of the draws in the word ``draws``."""
    leaf, word, stop = bits
    for row in range(len(stop)):
        unit = row_weight[row] * scale
        entry = first_entry(stop, row, 0)
        for tree in range(stop.shape[1]):
            for e in range(entry, stop[row, tree]):
                share = unit * float(popcount(word[e] & draws))
                weight[leaf[e]] += share
                for j in range(target.shape[1]):
                    target[leaf[e], j] += share * y[row, tree_output[tree] + j]
            entry = stop[row, tree]


@njit
def add_pairs(bits, leaf_start, place, row_weight, first, links, out):  # type: ignore[no-untyped-def]
    """Add pair reach to the upper part of ``out``, of the leaves that have a place (not -1) in it.

    Places grow with the numbers of leaves. A leaf's row of ``out`` is written for all rows of the
    chunk at once, while it is in cache: ``first`` (leaves,) and ``links`` (2, entries) are room to
    chain the entries of each leaf, and to note their rows.
    """
    leaf, word, stop = bits
    following, row_of = links[0], links[1]
    n_trees = stop.shape[1]
    for tree in range(n_trees):
        for i in range(leaf_start[tree], leaf_start[tree + 1]):
            first[i] = -1
        for row in range(len(stop)):
            for e in range(first_entry(stop, row, tree), stop[row, tree]):
                following[e] = first[leaf[e]]
                first[leaf[e]] = e
                row_of[e] = row
        for i in range(leaf_start[tree], leaf_start[tree + 1]):
            if place[i] < 0:
                continue
            pairs = out[place[i]]
            e = first[i]
            while e >= 0:
                row = row_of[e]
                unit = row_weight[row] / DRAWS
                own = word[e]
                pairs[place[i]] += unit * float(popcount(own))
                for other in range(stop[row, tree], stop[row, n_trees - 1]):
                    j = place[leaf[other]]
                    if j >= 0:
                        pairs[j] += unit * np.int64(popcount(own & word[other]))
                e = following[e]
