"""EM for latent trees: compiled passes, and the parameters.

Each variable v has a latent z_v with h states; z_v depends on the latent of the parent of v, and
the variable on its own latent alone. All kernels work on a *tile*: up to ``TILE`` rows, states
before rows, so that every inner loop runs over contiguous rows whatever h is. Messages stay in
linear space; whenever two are multiplied, the row's largest entry is moved into a running log
scale, so that nothing underflows that matters.

``transition[v, i, j]`` is p(z_v = j | z_parent = i).

The objective that a step never lowers is the log likelihood of the rows plus the log prior:
``strength`` rows in each state, with the column's own marginal (distributions) and spread evenly
over the states (latents).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Ints
from knothole.compiled.exp import exponentials
from knothole.compiled.policy import inner, njit
from knothole.compiled.threads import over_chunks, summed
from knothole.densities.em import EncodedRows, Expected
from knothole.densities.latent_tree.chow_liu import Tree
from knothole.densities.univariate.base import Univariate, log_prior_of, maximised
from knothole.densities.univariate.packed import Packed, Stacked, Values

# Rows that go through a pass together: a few variables' messages should stay in the cache.
TILE = 128
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
    """The tree and its latents: ``transposed[v] = transition[v].T``."""

    order: Ints
    parent: Ints
    prior: Floats
    transition: Floats
    transposed: Floats


class TileScratch(NamedTuple):
    """Room for a tile: messages (variables, states, TILE), and numbers a row (TILE,)."""

    beta: Floats
    message: Floats
    gamma: Floats
    bits: Ints  # beta, seen as whole numbers
    scale: Floats
    spare: Floats
    fall: Floats
    code: NDArray[np.int32]


class TreeSums(NamedTuple):
    """Where statistics are added up: of latents, and of distributions."""

    roots: Floats
    pairs: Floats
    distributions: Stacked


def scratch_for(n_variables: int, n_states: int) -> TileScratch:
    """Scratch for one thread."""
    beta, message, gamma = (np.empty((n_variables, n_states, TILE)) for _ in range(3))
    scale, spare, fall = np.empty((3, TILE))
    code = np.empty(TILE, dtype=np.int32)
    return TileScratch(beta, message, gamma, beta.view(np.int64), scale, spare, fall, code)


@inner
def fill_terms(values, tables, rows, scratch):  # type: ignore[no-untyped-def]
    """Beta starts as p(x_v | z_v), divided by its largest entry, whose log goes to the scale."""
    scratch.scale[: len(rows)] = 0.0
    for v in range(values.code.shape[1]):
        if values.slot[v] < 0:
            _look_up(values, tables, rows, v, scratch)
        else:
            _compute(values, tables, rows, v, scratch)


@inner
def _look_up(values, tables, rows, v, scratch):  # type: ignore[no-untyped-def]
    """Terms of a variable without z, which are tabulated."""
    beta, scale = scratch.beta[v], scratch.scale
    for n in range(len(rows)):
        c = values.code[rows[n], v]
        if c < 0:
            for k in range(len(beta)):
                beta[k, n] = 1.0
        else:
            scale[n] += tables.peak[c]
            for k in range(len(beta)):
                beta[k, n] = tables.factor[c, k]


@inner
def _compute(values, tables, rows, v, scratch):  # type: ignore[no-untyped-def]
    """Terms of a variable with z, which take exponentials."""
    beta, peak, z, code = scratch.beta[v], scratch.spare, scratch.fall, scratch.code
    slot = values.slot[v]
    linear, square = tables.linear[slot], tables.square[slot]
    width = len(rows)
    for n in range(width):
        code[n] = values.code[rows[n], v]
        z[n] = values.z[rows[n], slot] if code[n] >= 0 else 0.0
        peak[n] = -np.inf
    for k in range(len(beta)):
        terms = beta[k]
        for n in range(width):
            known = tables.table[max(code[n], 0), k]
            terms[n] = (known if code[n] >= 0 else 0.0) + z[n] * (linear[k] + z[n] * square[k])
            peak[n] = max(peak[n], terms[n])
    for n in range(width):
        scratch.scale[n] += peak[n]
        # Impossible in every state: all terms become 0.
        peak[n] = peak[n] if peak[n] > -np.inf else 0.0
    for k in range(len(beta)):
        exponentials(beta[k], peak, code, scratch.bits[v, k], width)


@inner
def upward(model, scratch, width, limit, out):  # type: ignore[no-untyped-def]
    """Collect evidence towards the root; ``out[n]`` becomes log p of row n.

    Afterwards ``beta[v]`` is proportional to p(evidence at and below v | z_v) and ``message[v]``
    to p(evidence at and below v | z_parent).

    A state whose distribution term vanished beside the row's largest one is lost. That is harmless
    unless the children say the opposite just as strongly: where their product falls below
    ``exp(limit)`` at one variable, ``out[n]`` is NaN, and the caller must evaluate the row in log
    space.
    """
    order, parent = model.order, model.parent
    beta, message, scale, fall = scratch.beta, scratch.message, scratch.scale, scratch.fall
    above = -1
    for position in range(len(order) - 1, 0, -1):
        v = order[position]
        if parent[v] != above:  # children of one parent follow each other in the order
            above = parent[v]
            fall[:width] = 0.0
        _product(model.transition[v], beta[v], message[v], width)
        _multiply_in(beta[above], message[v], scratch, width)
        for n in range(width):
            if fall[n] < limit:
                scale[n] = np.nan
    root = order[0]
    for n in range(width):
        total = 0.0
        for k in range(len(model.prior)):
            total += model.prior[k] * beta[root, k, n]
        out[n] = np.log(total) + scale[n]


@inner
def downward(model, weight, scratch, width, sums):  # type: ignore[no-untyped-def]
    """Distribute evidence from the root: ``gamma[v]`` becomes weight times p(z_v | row).

    ``sums.pairs[v, i, j]`` gains the weighted sum of p(z_parent = i, z_v = j | row), but for the
    factor ``transition[v, i, j]``, which is the same for all rows and is left to the caller.
    Overwrites the messages.
    """
    beta, message, gamma, spare = scratch.beta, scratch.message, scratch.gamma, scratch.spare
    n_states = len(model.prior)
    root = model.order[0]
    spare[:width] = 0.0
    for k in range(n_states):
        for n in range(width):
            gamma[root, k, n] = model.prior[k] * beta[root, k, n]
            spare[n] += gamma[root, k, n]
    for n in range(width):
        spare[n] = weight[n] / spare[n] if spare[n] > 0.0 else 0.0
    for k in range(n_states):
        total = 0.0
        for n in range(width):
            gamma[root, k, n] *= spare[n]
            total += gamma[root, k, n]
        sums.roots[k] += total
    for v in model.order[1:]:
        ratio = message[v]
        above = gamma[model.parent[v]]
        for k in range(n_states):
            for n in range(width):
                # Where the message is 0, so is gamma above.
                ratio[k, n] = above[k, n] / ratio[k, n] if ratio[k, n] > 0.0 else 0.0
        _add_outer(ratio, beta[v], width, sums.pairs[v])
        _product(model.transposed[v], ratio, gamma[v], width)
        for k in range(n_states):
            for n in range(width):
                gamma[v, k, n] *= beta[v, k, n]


@njit
def add_statistics(values, rows, gamma, sums):  # type: ignore[no-untyped-def]
    """Responsibilities of the observed entries, summed per code and weighted by z and z**2."""
    codes, first, second = sums
    for v in range(values.code.shape[1]):
        for n in range(len(rows)):
            c = values.code[rows[n], v]
            if c < 0:
                continue
            for k in range(gamma.shape[1]):
                codes[c, k] += gamma[v, k, n]
            if values.slot[v] >= 0:
                slot = values.slot[v]
                z = values.z[rows[n], slot]
                for k in range(gamma.shape[1]):
                    first[slot, k] += gamma[v, k, n] * z
                    second[slot, k] += gamma[v, k, n] * (z * z)


@njit
def expectation(values, tables, model, rows, weight, scratch, out, sums):  # type: ignore[no-untyped-def]
    """Both passes over ``rows``, tile by tile: log p into ``out``, statistics added up.

    Without weights the upward pass alone, and NaN as :func:`upward` has it.
    """
    alone = len(weight) == 0
    for start in range(0, len(rows), TILE):
        stop = min(start + TILE, len(rows))
        tile = rows[start:stop]
        fill_terms(values, tables, tile, scratch)
        upward(model, scratch, stop - start, LOST if alone else -np.inf, out[start:stop])
        if not alone:
            downward(model, weight[start:stop], scratch, stop - start, sums)
            add_statistics(values, tile, scratch.gamma, sums.distributions)


@njit
def draw_states(values, tables, model, rows, scratch, uniform, out):  # type: ignore[no-untyped-def]
    """Latents drawn from p(z | row); ``uniform`` and ``out`` are (rows, draws, variables).

    Rows of probability 0 get -1.
    """
    for start in range(0, len(rows), TILE):
        stop = min(start + TILE, len(rows))
        fill_terms(values, tables, rows[start:stop], scratch)
        upward(model, scratch, stop - start, -np.inf, scratch.spare)
        _descend(model, scratch.beta, uniform[start:stop], out[start:stop])


@inner
def _descend(model, beta, uniform, out):  # type: ignore[no-untyped-def]
    """Latents of a tile, parents before children, after :func:`upward`."""
    n_states = len(model.prior)
    for n in range(out.shape[0]):
        for draw in range(out.shape[1]):
            for v in model.order:
                # The root's transitions are its prior, whatever the state above.
                above = out[n, draw, model.parent[v]] if model.parent[v] >= 0 else 0
                weights = model.transition[v, above]
                total = 0.0
                for k in range(n_states):
                    total += weights[k] * beta[v, k, n]
                left = uniform[n, draw, v] * total
                state = -1
                for k in range(n_states):
                    share = weights[k] * beta[v, k, n]
                    if share > 0.0:
                        state = k
                        if left < share:
                            break
                        left -= share
                out[n, draw, v] = state


@inner
def _product(matrix, messages, out, width):  # type: ignore[no-untyped-def]
    """``out = matrix @ messages`` on the first ``width`` rows of the tile."""
    n_states = len(matrix)
    even = n_states - n_states % 4
    for i in range(n_states):
        target = out[i]
        for n in range(width):
            target[n] = 0.0
        for j in range(0, even, 4):
            # Four states at a time: a quarter of the loads and stores of the target.
            m0, m1, m2, m3 = matrix[i, j], matrix[i, j + 1], matrix[i, j + 2], matrix[i, j + 3]
            b0, b1, b2, b3 = messages[j], messages[j + 1], messages[j + 2], messages[j + 3]
            for n in range(width):
                target[n] += (m0 * b0[n] + m1 * b1[n]) + (m2 * b2[n] + m3 * b3[n])
        for j in range(even, n_states):
            m0 = matrix[i, j]
            b0 = messages[j]
            for n in range(width):
                target[n] += m0 * b0[n]


@inner
def _add_outer(left, right, width, out):  # type: ignore[no-untyped-def]
    """``out += left @ right.T`` over the first ``width`` rows of the tile."""
    n_states = len(left)
    even = n_states - n_states % 4
    for i in range(n_states):
        a = left[i]
        for j in range(0, even, 4):
            b0, b1, b2, b3 = right[j], right[j + 1], right[j + 2], right[j + 3]
            s0 = s1 = s2 = s3 = 0.0
            for n in range(width):
                s0 += a[n] * b0[n]
                s1 += a[n] * b1[n]
                s2 += a[n] * b2[n]
                s3 += a[n] * b3[n]
            out[i, j] += s0
            out[i, j + 1] += s1
            out[i, j + 2] += s2
            out[i, j + 3] += s3
        for j in range(even, n_states):
            b0 = right[j]
            s0 = 0.0
            for n in range(width):
                s0 += a[n] * b0[n]
            out[i, j] += s0


@inner
def _multiply_in(target, factor, scratch, width):  # type: ignore[no-untyped-def]
    """``target *= factor``, then divide each row by its largest entry and log that.

    A row that is 0 in every state stays so.
    """
    scale, spare, fall = scratch.scale, scratch.spare, scratch.fall
    spare[:width] = 0.0
    for k in range(len(target)):
        for n in range(width):
            target[k, n] *= factor[k, n]
            spare[n] = max(spare[n], target[k, n])
    for n in range(width):
        if spare[n] > 0.0:
            largest = np.log(spare[n])
            scale[n] += largest
            fall[n] += largest
            spare[n] = 1.0 / spare[n]
    for k in range(len(target)):
        for n in range(width):
            target[k, n] *= spare[n]


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
        values, tables, model = self._for_kernels(packed)

        def work(start: int, stop: int) -> tuple[float, TreeSums]:
            here, by, out = np.arange(start, stop), weight[start:stop], np.empty(stop - start)
            pairs, nothing = np.zeros_like(self.transition), packed.nothing(len(self))
            sums = TreeSums(np.zeros_like(self.prior), pairs, nothing)
            expectation(values, tables, model, here, by, self._scratch(), out, sums)
            return float(by @ (out + packed.base[here])), sums

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
        values, tables, model = self._for_kernels(packed)
        out, none = np.empty(len(packed)), np.empty(0)
        sums = TreeSums(none, np.empty((0, 0, 0)), packed.nothing(0))

        def work(start: int, stop: int) -> None:
            here, room = np.arange(start, stop), self._scratch()
            expectation(values, tables, model, here, none, room, out[start:stop], sums)

        over_chunks(work, len(packed), BLOCKS[0])
        return out + packed.base

    def posterior_states(self, packed: Packed, uniform: Floats) -> Ints:
        """Latents drawn from p(z | row) with uniform numbers: (rows, draws, variables).

        Rows of probability 0 get -1.
        """
        values, tables, model = self._for_kernels(packed)
        states = np.empty(uniform.shape, dtype=np.int64)

        def work(start: int, stop: int) -> None:
            draw_states(
                values, tables, model, np.arange(start, stop), self._scratch(),
                uniform[start:stop], states[start:stop],
            )  # fmt: skip

        over_chunks(work, len(packed), BLOCKS[0])
        return states

    def _for_kernels(self, packed: Packed) -> tuple[Values, DistributionTables, Model]:
        transposed = np.ascontiguousarray(self.transition.transpose(0, 2, 1))
        model = Model(self.tree.order, self.tree.parent, self.prior, self.transition, transposed)
        return packed.values(), tables_of(packed, self.distributions), model

    def _scratch(self) -> TileScratch:
        return scratch_for(len(self.distributions), len(self))


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
