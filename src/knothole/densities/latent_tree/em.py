"""EM for latent trees: the parameters, and what the compiled passes take.

Each variable v has a latent z_v with h states; z_v depends on the latent of the parent of v, and
the variable on its own latent alone. ``transition[v, i, j]`` is p(z_v = j | z_parent = i).

The objective that a step never lowers is the log likelihood of the rows plus the log prior:
``strength`` rows in each state, with the column's own marginal (distributions) and spread evenly
over the states (latents).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from knothole._core import latent_tree as kernels
from knothole.arrays import Floats, Ints
from knothole.densities.em import EncodedRows, Expected
from knothole.densities.latent_tree.chow_liu import Tree
from knothole.densities.univariate.base import Univariate, log_prior_of, maximised
from knothole.densities.univariate.packed import Packed, Stacked
from knothole.threads import over_chunks, summed

# Log of what a row's messages may fall by at one variable before lost states could matter.
LOST = -600.0


class DistributionTables(NamedTuple):
    """Parameters of all distributions (:class:`~knothole.densities.univariate.packed.Stacked`).

    ``peak`` is the largest entry of a code; ``factor = exp(table - peak)`` serves variables
    without ``z``.
    """

    table: Floats
    linear: Floats
    square: Floats
    peak: Floats
    factor: Floats


class Model(NamedTuple):
    """The tree and its latents."""

    order: Ints
    parent: Ints
    prior: Floats
    transition: Floats


class TreeSums(NamedTuple):
    """Where statistics are added up: of latents, and of distributions."""

    roots: Floats
    pairs: Floats
    distributions: Stacked


# The least rows of a block, and the most blocks that a pass is cut into, for threads.
BLOCKS = (256, 16)
# Latent probabilities stay above this, whatever the prior: no state is ever cut off for good,
# and scaled messages cannot underflow in every state at once.
FLOOR = 1e-12
# What a row that needs log space (or is impossible) counts as when trees are compared.
FAR_OUT = -1e4


@dataclass(frozen=True, eq=False)
class TreeParameters:
    """All that a latent tree is made of.

    Attributes
    ----------
    tree : Tree
    prior : float64 (states,)
        p(z_root).
    transition : float64 (variables, states, states)
        ``transition[v, i, j]`` is p(z_v = j | z_parent = i); the root's rows all hold its prior.
    distributions : tuple of Univariate
    """

    tree: Tree
    prior: Floats
    transition: Floats
    distributions: tuple[Univariate, ...]

    @classmethod
    def even(
        cls, tree: Tree, distributions: Sequence[Univariate], n_states: int, sticky: float = 0.0
    ) -> TreeParameters:
        """All states of a latent alike, but for a ``sticky`` part that is the parent's."""
        prior = np.full(n_states, 1 / n_states)
        one = sticky * np.eye(n_states) + (1 - sticky) * prior
        transition = np.tile(one, (len(distributions), 1, 1))
        transition[tree.order[0]] = prior
        return cls(tree, prior, transition, tuple(distributions))

    def __len__(self) -> int:
        return len(self.prior)

    def expect(self, rows: EncodedRows) -> Expected:
        """The E step; ``latents`` are responsibilities at the root, and of parent and child.

        Rows are cut into the same parts, and the parts' sums added in the same order, for any
        number of threads.
        """
        packed, weight = rows.packed, rows.weight
        tables, model = self._for_kernels(packed)

        def work(start: int, stop: int) -> tuple[float, TreeSums]:
            values, by, out = packed.values(start, stop), weight[start:stop], np.empty(stop - start)
            # But for the factor transition[v, i, j], pairs are sums of p(z_parent = i, z_v = j).
            pairs, nothing = np.zeros_like(self.transition), packed.nothing(len(self))
            sums = TreeSums(np.zeros_like(self.prior), pairs, nothing)
            kernels.expectation(values, tables, model, by, out, sums)
            return float(by @ (out + values.base)), sums

        log_likelihood, sums = summed(work, len(rows), BLOCKS)
        statistics = tuple(packed.statistics(self.distributions, sums.distributions))
        return Expected(log_likelihood, (sums.roots, sums.pairs * self.transition), statistics)

    def stepped(self, expected: Expected, strength: float) -> tuple[float, TreeParameters]:
        """The objective, and the parameters after the M step."""
        inner = self.tree.order[1:]
        latents = np.log(self.prior).sum() + np.log(self.transition[inner]).sum()
        objective = expected.log_likelihood + strength / len(self) * float(latents)
        objective += log_prior_of(self.distributions, strength)
        return objective, self.maximised(expected, strength)

    def maximised(self, expected: Expected, strength: float) -> TreeParameters:
        """The M step: maximum a posteriori given expected statistics."""
        roots, pairs = expected.latents
        prior = _normalised(roots + strength / len(self))
        transition = _normalised(pairs + strength / len(self))
        transition[self.tree.order[0]] = prior
        distributions = maximised(self.distributions, expected.distributions, strength)
        return TreeParameters(self.tree, prior, transition, distributions)

    def log_density(self, rows: EncodedRows) -> Floats:
        """Log p of rows, for comparisons: a row that needs log space is far out."""
        return np.nan_to_num(self.log_likelihood(rows.packed), nan=FAR_OUT, neginf=FAR_OUT)

    def log_likelihood(self, packed: Packed) -> Floats:
        """Log p of rows; NaN where a log-space evaluation is needed to be sure."""
        tables, model = self._for_kernels(packed)
        out = np.empty(len(packed))

        def work(start: int, stop: int) -> None:
            values = packed.values(start, stop)
            kernels.log_likelihood(values, tables, model, LOST, out[start:stop])

        over_chunks(work, len(packed), BLOCKS[0])
        return out + packed.base

    def posterior_states(self, packed: Packed, uniform: Floats) -> Ints:
        """Latents drawn from p(z | row) with uniform numbers: (rows, draws, variables).

        Rows of probability 0 get -1.
        """
        tables, model = self._for_kernels(packed)
        states = np.empty(uniform.shape, dtype=np.int64)
        # The numbers of a coordinate lie together in memory, and rows may share them.
        by_variable = uniform.transpose(0, 2, 1)
        shared = np.ascontiguousarray(by_variable[:1]) if uniform.strides[0] == 0 else None

        def work(start: int, stop: int) -> None:
            values = packed.values(start, stop)
            own = np.ascontiguousarray(by_variable[start:stop]) if shared is None else shared
            kernels.draw_states(values, tables, model, own, states[start:stop])

        over_chunks(work, len(packed), BLOCKS[0])
        return states

    def _for_kernels(self, packed: Packed) -> tuple[DistributionTables, Model]:
        model = Model(self.tree.order, self.tree.parent, self.prior, self.transition)
        return tables_of(packed, self.distributions), model


def tables_of(packed: Packed, distributions: Sequence[Univariate]) -> DistributionTables:
    """The distributions' parameters in the layout of packed rows."""
    table, linear, square = packed.parameters(distributions)
    peak = table.max(axis=1)
    # A code that is impossible in every state has factor 0 (and peak -inf).
    factor = np.exp(table - np.where(np.isfinite(peak), peak, 0.0)[:, None])
    return DistributionTables(table, linear, square, peak, factor)


def _normalised(weights: Floats) -> Floats:
    total = weights.sum(axis=-1, keepdims=True)
    even = 1.0 / weights.shape[-1]
    shares = np.divide(weights, total, out=np.full_like(weights, even), where=total > 0)
    shares = np.maximum(shares, FLOOR)
    return np.asarray(shares / shares.sum(axis=-1, keepdims=True))
