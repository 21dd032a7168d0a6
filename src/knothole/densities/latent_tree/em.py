"""Expectation and maximisation for a latent tree, on packed rows.

The objective that a full pass never lowers is the log likelihood of the rows plus the log prior:
``strength`` rows in each state, with the column's own marginal (emissions) and spread evenly over
the states (latents).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from knothole.arrays import Floats, Ints, joined
from knothole.compiled.threads import over_chunks, summed
from knothole.densities.latent_tree import kernels
from knothole.densities.latent_tree.chow_liu import Tree
from knothole.densities.rows import EncodedRows
from knothole.densities.univariate.base import Emission, Statistics, maximised
from knothole.densities.univariate.packed import Packed, Stacked

# The least rows of a block, and the most blocks that a pass is cut into, for threads.
BLOCKS = (256, 16)
# Latent probabilities stay above this, whatever the prior: no state is ever cut off for good,
# and scaled messages cannot underflow in every state at once.
FLOOR = 1e-12


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
    emissions : tuple of Emission
    """

    tree: Tree
    prior: Floats
    transition: Floats
    emissions: tuple[Emission, ...]

    @property
    def n_states(self) -> int:
        """States of each latent."""
        return len(self.prior)

    def model(self) -> kernels.Model:
        """What the kernels take."""
        transposed = np.ascontiguousarray(self.transition.transpose(0, 2, 1))
        return kernels.Model(
            self.tree.order, self.tree.parent, self.prior, self.transition, transposed
        )

    def scratch(self) -> kernels.TileScratch:
        """Room for a tile."""
        return kernels.scratch_for(len(self.emissions), self.n_states)


@dataclass(frozen=True, eq=False)
class TreeStatistics:
    """Expected sufficient statistics of some rows, additive.

    Attributes
    ----------
    log_likelihood : float
        Summed over the rows.
    roots : float64 (states,)
        Responsibilities at the root.
    pairs : float64 (variables, states, states)
        Responsibilities of a parent's state and a child's together.
    emissions : Stacked
        Of all emissions.
    """

    log_likelihood: float
    roots: Floats
    pairs: Floats
    emissions: Stacked

    def moved(self, other: TreeStatistics, step: float) -> TreeStatistics:
        """``(1 - step)`` of this and ``step`` of another."""
        moved: TreeStatistics = joined(self, other, lambda own, new: own + step * (new - own))
        return moved


def expect(
    parameters: TreeParameters,
    packed: Packed,
    rows: Ints,
    weight: Floats,
    total: float | None = None,
) -> TreeStatistics:
    """Statistics of some rows under the parameters, scaled to ``total`` weight if that is given.

    ``weight`` is that of all packed rows. Rows are cut into the same parts, and the parts' sums
    added in the same order, for any number of threads.
    """
    values, tables = packed.values(), tables_of(packed, parameters.emissions)
    model = parameters.model()
    own = weight[rows]
    scaled = own if total is None else own * (total / own.sum())

    def work(start: int, stop: int) -> tuple[float, kernels.TreeSums]:
        here, by = rows[start:stop], scaled[start:stop]
        out = np.empty(len(here))
        pairs, nothing = np.zeros_like(parameters.transition), packed.nothing(parameters.n_states)
        sums = kernels.TreeSums(np.zeros_like(parameters.prior), pairs, nothing)
        kernels.expectation(values, tables, model, here, by, parameters.scratch(), out, sums)
        return float(by @ (out + packed.base[here])), sums

    log_likelihood, sums = summed(work, len(rows), BLOCKS)
    pairs = sums.pairs * parameters.transition
    return TreeStatistics(log_likelihood, sums.roots, pairs, sums.emissions)


def log_likelihood(parameters: TreeParameters, packed: Packed) -> Floats:
    """Log p of rows; NaN where a log-space evaluation is needed to be sure."""
    values, tables = packed.values(), tables_of(packed, parameters.emissions)
    model = parameters.model()
    out, none = np.empty(len(packed)), np.empty(0)
    sums = kernels.TreeSums(none, np.empty((0, 0, 0)), packed.nothing(0))

    def work(start: int, stop: int) -> None:
        here, room = np.arange(start, stop), parameters.scratch()
        kernels.expectation(values, tables, model, here, none, room, out[start:stop], sums)

    over_chunks(work, len(packed), BLOCKS[0])
    return out + packed.base


def posterior_states(parameters: TreeParameters, packed: Packed, uniform: Floats) -> Ints:
    """Latents drawn from p(z | row) with uniform numbers: (rows, draws, variables).

    Rows of probability 0 get -1.
    """
    values, tables = packed.values(), tables_of(packed, parameters.emissions)
    model = parameters.model()
    states = np.empty(uniform.shape, dtype=np.int64)

    def work(start: int, stop: int) -> None:
        kernels.draw_states(
            values, tables, model, np.arange(start, stop), parameters.scratch(),
            uniform[start:stop], states[start:stop],
        )  # fmt: skip

    over_chunks(work, len(packed), BLOCKS[0])
    return states


def maximise(
    parameters: TreeParameters, packed: Packed, expected: TreeStatistics, strength: float
) -> TreeParameters:
    """The maximum a posteriori parameters given expected statistics of packed rows."""
    return _maximised(parameters, found_in(packed, parameters, expected), strength)


@dataclass(frozen=True, eq=False)
class Found:
    """Expected statistics, those of sets of levels given to the levels. Additive over all rows."""

    log_likelihood: float
    roots: Floats
    pairs: Floats
    emissions: tuple[Statistics, ...]


def found_in(packed: Packed, parameters: TreeParameters, expected: TreeStatistics) -> Found:
    """Statistics of packed rows as all rows have them."""
    own = tuple(packed.statistics(parameters.emissions, expected.emissions))
    return Found(expected.log_likelihood, expected.roots, expected.pairs, own)


def found(rows: EncodedRows, parameters: TreeParameters) -> Found:
    """A pass over some rows."""
    packed, weight = rows.packed, rows.weight
    return found_in(packed, parameters, expect(parameters, packed, np.arange(len(rows)), weight))


def stepped(
    parameters: TreeParameters, found: Found, strength: float
) -> tuple[float, TreeParameters]:
    """The objective, and the parameters after a step, from what a pass over all rows has found."""
    each, inner = strength / parameters.n_states, parameters.tree.order[1:]
    latents = np.log(parameters.prior).sum() + np.log(parameters.transition[inner]).sum()
    emissions = sum(emission.log_prior(strength) for emission in parameters.emissions)
    objective = found.log_likelihood + each * float(latents) + emissions
    return objective, _maximised(parameters, found, strength)


def _maximised(parameters: TreeParameters, found: Found, strength: float) -> TreeParameters:
    tree = parameters.tree
    each = strength / parameters.n_states
    prior = _normalised(found.roots + each)
    transition = _normalised(found.pairs + each)
    transition[tree.order[0]] = prior
    emissions = maximised(parameters.emissions, found.emissions, strength)
    return TreeParameters(tree, prior, transition, emissions)


def tables_of(packed: Packed, emissions: Sequence[Emission]) -> kernels.EmissionTables:
    """The emissions' parameters in the layout of packed rows."""
    table, linear, square = packed.parameters(emissions)
    peak = table.max(axis=1)
    # A code that is impossible in every state has factor 0 (and peak -inf).
    factor = np.exp(table - np.where(np.isfinite(peak), peak, 0.0)[:, None])
    return kernels.EmissionTables(table, linear, square, peak, factor)


def _normalised(weights: Floats) -> Floats:
    total = weights.sum(axis=-1, keepdims=True)
    even = 1.0 / weights.shape[-1]
    shares = np.divide(weights, total, out=np.full_like(weights, even), where=total > 0)
    shares = np.maximum(shares, FLOOR)
    return np.asarray(shares / shares.sum(axis=-1, keepdims=True))
