"""Leaves tuned on a table in parts: sums and systems are gathered where the rows are.

How to tune, and the density that knows y, are settled by rows in memory, drawn evenly from all
parts. What is summed over rows (Props. 2 to 4) is then summed over all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.errors import InvalidInput
from knothole.expectation.expectation import Expectation
from knothole.leaves.conditioning import Conditioned
from knothole.leaves.options import TuningOptions
from knothole.leaves.problem import margin_targets
from knothole.leaves.sums import LeafSums, Summands
from knothole.leaves.system import LeafSystem
from knothole.out_of_core.partitions import Partition, Partitions, weights_of


@dataclass(frozen=True, eq=False)
class Reader:
    """How rows of a part become summands, as those in memory do.

    ``y`` are the targets in memory, which the density that is ``known`` has learned, and
    ``offset`` is taken off targets.
    """

    expectation: Expectation
    known: Conditioned
    y: NDArray[Any]
    offset: Floats
    options: TuningOptions

    def parts(self, parts: Partitions, n_rows: int) -> Partitions:
        """Summands of all parts."""
        numbers = len(self.expectation.columns.variables) + 2 * len(self.offset)
        return parts.made(summands, self, size=8.0 * numbers * n_rows)


def check_options(options: TuningOptions) -> None:
    """Refuse what is about single rows."""
    holes = None if isinstance(options.holes, str) else options.holes
    given: dict[str, Any] = {"counts": options.counts, "holes": holes}
    for name, value in given.items():
        if value is not None:
            raise InvalidInput(
                f"{name} must not be about single rows where the table is in parts; leave it out, "
                f"or tune on a sample of the rows in memory."
            )


def summands(part: Partition, reader: Reader) -> Summands | None:
    """The rows of a part; None where there are none."""
    _, table, y, _ = part
    if not len(table):
        return None
    expectation, targets = reader.expectation, np.asarray(y)
    matrix = expectation.columns.matrix(table, reader.options.unseen)
    known = reader.known.given(reader.y, targets)
    evidence = expectation.evidence_of(matrix, reader.options.holes, known)
    encoded = margin_targets(expectation.original, targets, len(matrix))
    return Summands(evidence, encoded - reader.offset, weights_of(part))


def leaf_sums(rows: Partitions, expectation: Expectation) -> LeafSums:
    """Sums over all rows in parts."""
    return LeafSums(expectation.ensemble.leaf_start, *rows.summed(_sums, expectation))


def leaf_system(rows: Partitions, expectation: Expectation) -> LeafSystem:
    """The system of all rows in parts."""
    pairs, sums = rows.summed(_system, expectation)
    return LeafSystem(pairs, LeafSums(expectation.ensemble.leaf_start, *sums))


def _sums(rows: Summands, expectation: Expectation) -> tuple[Floats, Floats, Floats, Floats]:
    sums = LeafSums.empty(expectation.ensemble).accumulate(expectation.engine, rows)
    return sums.weight, sums.target, sums.square, sums.total


def _system(rows: Summands, expectation: Expectation) -> tuple[Floats, tuple[Floats, ...]]:
    system = LeafSystem.empty(expectation.ensemble).accumulate(expectation.engine, rows)
    sums = system.sums
    return system.pairs, (sums.weight, sums.target, sums.square, sums.total)
