"""Expectation and maximisation for a latent tree, on packed rows.

The objective that a full pass never lowers is the log likelihood of the rows plus the log prior:
``smoothing`` rows in each state, with the column's own marginal (leaves) and spread evenly over
the states (latents).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from knothole.compiled import over_blocks
from knothole.densities import latent_tree_kernels as kernels
from knothole.densities.chow_liu import Tree
from knothole.densities.leaves.base import Leaf, Statistics
from knothole.densities.latent_tree_rows import Packed, spread_sets, tabulate

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Parts that a pass is cut into, for threads; a part has at least as many rows as this.
PARTS = 16
LEAST_ROWS = 256
# Latent probabilities stay above this, whatever the smoothing: no state is ever cut off for good,
# and scaled messages cannot underflow in every state at once.
FLOOR = 1e-12


@dataclass(frozen=True, eq=False)
class Parameters:
    """A latent tree.

    Attributes
    ----------
    tree : Tree
    prior : float64 (states,)
        p(z_root).
    transition : float64 (variables, states, states)
        ``transition[v, i, j]`` is p(z_v = j | z_parent = i); the root's rows all hold its prior.
    leaves : tuple of Leaf
    """

    tree: Tree
    prior: Floats
    transition: Floats
    leaves: tuple[Leaf, ...]

    def model(self) -> kernels.Model:
        """What the kernels take."""
        transposed = np.ascontiguousarray(self.transition.transpose(0, 2, 1))
        return kernels.Model(
            self.tree.order, self.tree.parent, self.prior, self.transition, transposed
        )


@dataclass(frozen=True, eq=False)
class Expected:
    """Expected sufficient statistics of some rows, additive.

    Attributes
    ----------
    weight, log_likelihood : float
        Summed over the rows.
    sums : Sums
        Responsibilities at the root (states,); of a parent's state and a child's together
        (variables, states, states); of observed codes (codes, states), and weighted by z and
        z**2 (variables, states).
    """

    weight: float
    log_likelihood: float
    sums: kernels.Sums

    def __add__(self, other: Expected) -> Expected:
        sums = kernels.Sums(*(a + b for a, b in zip(self.sums, other.sums, strict=True)))
        return Expected(
            self.weight + other.weight, self.log_likelihood + other.log_likelihood, sums
        )

    def scaled(self, factor: float) -> Expected:
        """As if every row had ``factor`` times its weight."""
        sums = kernels.Sums(*(factor * a for a in self.sums))
        return Expected(factor * self.weight, factor * self.log_likelihood, sums)


def expect(
    parameters: Parameters,
    packed: Packed,
    rows: Ints,
    weight: Floats,
    threads: int | None = None,
) -> Expected:
    """Statistics of some rows under the parameters.

    ``weight`` is that of all packed rows. Rows are cut into the same parts, and the parts' sums
    added in the same order, for any number of threads.
    """
    model, tables = parameters.model(), tabulate(parameters.leaves, packed)
    shape = parameters.transition.shape[:2]

    def work(start: int, stop: int) -> Expected:
        here = rows[start:stop]
        out = np.empty(len(here))
        sums = kernels.sums_for(*shape, packed.n_codes)
        scratch = kernels.scratch_for(*shape)
        kernels.expectation(packed.values, tables, model, here, weight[here], scratch, out, sums)
        total = float(weight[here] @ (out + packed.base[here]))
        return Expected(float(weight[here].sum()), total, sums)

    block = max(LEAST_ROWS, -(-len(rows) // PARTS))
    expected = reduce(Expected.__add__, over_blocks(work, len(rows), block, threads))
    sums = expected.sums._replace(
        pairs=expected.sums.pairs * parameters.transition,
        count=spread_sets(parameters.leaves, packed, expected.sums.count),
    )
    return replace(expected, sums=sums)


def log_likelihood(
    parameters: Parameters, packed: Packed, rows: Ints, threads: int | None = None
) -> Floats:
    """Log p of some rows; NaN where a log-space evaluation is needed to be sure."""
    model, tables = parameters.model(), tabulate(parameters.leaves, packed)

    def work(start: int, stop: int) -> Floats:
        here = rows[start:stop]
        out = np.empty(len(here))
        scratch = kernels.scratch_for(*parameters.transition.shape[:2])
        kernels.log_likelihood(packed.values, tables, model, here, scratch, out)
        return out + packed.base[here]

    parts = over_blocks(work, len(rows), LEAST_ROWS, threads)
    return np.concatenate(parts) if parts else np.empty(0)


def maximise(parameters: Parameters, expected: Expected, smoothing: float) -> Parameters:
    """The maximum a posteriori parameters given expected statistics."""
    tree, sums = parameters.tree, expected.sums
    n_states = len(parameters.prior)
    prior = _normalised(sums.roots + smoothing / n_states)
    transition = _normalised(sums.pairs + smoothing / n_states)
    transition[tree.order[0]] = prior
    return Parameters(tree, prior, transition, maximise_leaves(parameters.leaves, sums, smoothing))


def maximise_leaves(
    leaves: tuple[Leaf, ...], sums: kernels.Sums, smoothing: float
) -> tuple[Leaf, ...]:
    """The leaves' part of :func:`maximise`."""
    stops = np.cumsum([leaf.n_codes for leaf in leaves])
    counts = np.split(sums.count, stops[:-1])
    return tuple(
        leaf.maximise(Statistics(*own), smoothing)
        for leaf, *own in zip(leaves, counts, sums.first, sums.second, strict=True)
    )


def log_prior(parameters: Parameters, smoothing: float) -> float:
    """What the objective adds to the log likelihood, up to a constant."""
    latents = np.log(parameters.prior).sum()
    latents += np.log(np.delete(parameters.transition, parameters.tree.order[0], axis=0)).sum()
    leaves = sum(leaf.log_prior(smoothing) for leaf in parameters.leaves)
    return float(smoothing / len(parameters.prior) * latents + leaves)


def _normalised(weights: Floats) -> Floats:
    total = weights.sum(axis=-1, keepdims=True)
    even = 1.0 / weights.shape[-1]
    shares = np.divide(weights, total, out=np.full_like(weights, even), where=total > 0)
    shares = np.maximum(shares, FLOOR)
    return np.asarray(shares / shares.sum(axis=-1, keepdims=True))
