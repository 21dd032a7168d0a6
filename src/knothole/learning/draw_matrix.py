"""Completions of rows as a matrix of bits: which draw of which row reaches which leaf.

With A the (draws of all rows x leaves) matrix of ones and zeros, a forest's margins are A theta and
everything that learning needs is a product with A: gradients A' f, pair reach A' A, and the
operator A' A theta without the matrix. A is kept as the words of
:mod:`knothole.reach.completions.kernels`, 64 draws each, in memory where there is room and walked
again where there is not. What is minimised on given draws is minimised exactly; how far the draws
themselves are off is told by draws that took no part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.compiled.threads import over_blocks
from knothole.learning import draw_matrix_kernels as kernels
from knothole.learning import system
from knothole.learning.sums import LeafSums
from knothole.reach.completions.engine import GROUPS, LANES, CompletionsEngine
from knothole.tables.evidence import Evidence

T = TypeVar("T")

# Memory that the words of all rows may take; beyond it they are found again for every pass.
ROOM = 1 << 30
BYTES_PER_ENTRY = 12
# Sums over blocks are added up in so many parts, whatever the threads: the same bits.
PARTS = 8
# Blocks whose pairs of leaves are counted together.
PAIR_BLOCKS = 16


@dataclass(frozen=True, eq=False)
class Block:
    """The entries of some rows and one word of draws; see :mod:`.lane_kernels`."""

    index: int
    rows: slice
    word: int
    leaf: NDArray[np.int32]
    mask: NDArray[np.uint64]
    stop: NDArray[np.int64]


class Lanes:
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
    tick : callable, optional
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
        tick: Callable[[int], None] | None = None,
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
            (start, min(start + engine.block, self.n_rows), word)
            for word in range(words)
            for start in range(0, self.n_rows, engine.block)
        ]
        self._kept: list[Block] | None = None
        if self._size() <= room:
            self._kept = self.map(lambda block: _told(block, tick))

    def _size(self) -> float:
        """Bytes that all words would take, judged by the first block."""
        if not self._places:
            return 0.0
        first = self._walk(0)
        entries = len(first.leaf) / len(first.stop)
        per_row = entries * BYTES_PER_ENTRY + 8 * self.ensemble.n_trees
        return per_row * self.n_rows * self.words

    def _walk(self, index: int) -> Block:
        if self._kept is not None:
            return self._kept[index]
        start, stop, word = self._places[index]
        rows = slice(start, stop)
        found = self.engine.masks(self.evidence[rows], start, self.first_word + word)
        return Block(index, rows, word, *found)

    def map(self, work: Callable[[Block], T]) -> list[T]:
        """``work`` of every block, in order."""

        def one(start: int, stop: int) -> T:
            return work(self._walk(start))

        return over_blocks(one, len(self._places), 1, self.threads)

    def total(self, work: Callable[[Block, Floats], None], shape: tuple[int, ...]) -> Floats:
        """The sum over blocks of what ``work`` adds to an array of this shape."""

        def part(start: int, stop: int) -> Floats:
            out = np.zeros(shape)
            for index in range(start, stop):
                work(self._walk(index), out)
            return out

        size = max(1, -(-len(self._places) // PARTS))
        total = np.zeros(shape)
        for out in over_blocks(part, len(self._places), size, self.threads):
            total += out
        return np.asarray(total / self.words)

    # ---- products with A -------------------------------------------------------------------------

    def margins(self, block: Block, theta: Floats, trees: slice | None = None) -> Floats:
        """A theta for a block, without the base, (rows, outputs, lanes); perhaps of some trees."""
        out = np.zeros((len(block.stop), self.ensemble.n_outputs, LANES))
        first, last = self._span(trees)
        kernels.add_margins(
            block.leaf, block.mask, block.stop, first, last, theta, self.ensemble.tree_output, out
        )
        return out

    def gather(self, block: Block, values: Floats, out: Floats, trees: slice | None = None) -> None:
        """Add A' f for a block, the mean over a row's draws, to ``out`` (leaves, width)."""
        first, last = self._span(trees)
        kernels.gather(
            block.leaf, block.mask, block.stop, first, last, values, self.row_weight[block.rows],
            self.ensemble.tree_output, out,
        )  # fmt: skip

    def apply(self, theta: Floats) -> Floats:
        """A' A theta, (leaves, width): the matrix M of Prop. 3 times theta, without the matrix."""

        def work(block: Block, out: Floats) -> None:
            self.gather(block, self.margins(block, theta), out)

        return self.total(work, theta.shape)

    def pairs(self, leaves: NDArray[np.intp]) -> Floats:
        """A' A of some leaves (by rising numbers): its upper part, zeros below."""
        place = np.full(self.ensemble.n_leaves, -1, dtype=np.int64)
        place[leaves] = np.arange(len(leaves))

        def part(start: int, stop: int) -> Floats:
            out = np.zeros((len(leaves), len(leaves)))
            for first in range(start, stop, PAIR_BLOCKS):
                self._add_pairs(range(first, min(first + PAIR_BLOCKS, stop)), place, out)
            return out

        size = max(1, -(-len(self._places) // system.PARTS))
        total = np.zeros((len(leaves), len(leaves)))
        for out in over_blocks(part, len(self._places), size, self.threads):
            total += out
        total /= self.words
        return total

    def _add_pairs(self, indices: range, place: NDArray[np.int64], out: Floats) -> None:
        """Add the pair reach of several blocks, as one: leaves then meet more rows at a time."""
        blocks = [self._walk(index) for index in indices]
        ends = np.cumsum([len(block.leaf) for block in blocks])
        leaf = np.concatenate([block.leaf for block in blocks])
        kernels.add_pairs(
            leaf,
            np.concatenate([block.mask for block in blocks]),
            np.concatenate(
                [b.stop + end - len(b.leaf) for b, end in zip(blocks, ends, strict=True)]
            ),
            self.ensemble.leaf_start,
            place,
            np.concatenate([self.row_weight[block.rows] for block in blocks]),
            np.empty(self.ensemble.n_leaves, dtype=np.int32),
            np.empty_like(leaf),
            np.empty_like(leaf),
            out,
        )

    def weight(self) -> Floats:
        """The diagonal of A' A: the reach of every leaf, summed over rows."""
        return self.sums(np.zeros((self.n_rows, self.ensemble.n_outputs)))[0].weight

    def sums(self, y: Floats, groups: int = 1) -> list[LeafSums]:
        """Sums of Prop. 2 from all draws, or from each of several independent groups of them."""
        size = LANES // groups
        words = [np.uint64(((1 << size) - 1) << (size * g)) for g in range(groups)]
        return [self._sums(y, draws, size) for draws in words]

    def _sums(self, y: Floats, draws: np.uint64, size: int) -> LeafSums:
        width = self.ensemble.value.shape[1]

        def work(block: Block, out: Floats) -> None:
            kernels.add_sums(
                block.leaf, block.mask, block.stop, draws, 1 / size, y[block.rows],
                self.row_weight[block.rows], self.ensemble.tree_output, out[:, 0], out[:, 1:],
            )  # fmt: skip

        found = self.total(work, (self.ensemble.n_leaves, 1 + width))
        sums = LeafSums.empty(self.ensemble)
        sums.weight, sums.target = found[:, 0].copy(), found[:, 1:].copy()
        sums.add_squares(self.ensemble, y, self.row_weight)
        return sums

    def mean_by_group(self, work: Callable[[Block], Floats]) -> Floats:
        """Weighted sum over rows of values (rows, lanes), for each independent group of draws."""

        def part(block: Block) -> tuple[int, Floats]:
            values = self.row_weight[block.rows] @ work(block)
            return block.word, values.reshape(GROUPS, -1).mean(axis=1)

        out = np.zeros((self.words, GROUPS))
        for word, values in self.map(part):
            out[word] += values
        return out.reshape(-1)

    def _span(self, trees: slice | None) -> tuple[int, int]:
        return (0, self.ensemble.n_trees) if trees is None else (trees.start, trees.stop)


def _told(block: Block, tick: Callable[[int], None] | None) -> Block:
    if tick is not None:
        tick(len(block.stop))
    return block
