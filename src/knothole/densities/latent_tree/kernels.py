"""Compiled passes over a latent tree.

Each variable v has a latent z_v with h states; z_v depends on the latent of the parent of v, and
the variable on its own latent alone. All kernels work on a *tile*: up to ``TILE`` rows, states
before rows, so that every inner loop runs over contiguous rows whatever h is. Messages stay in
linear space; whenever two are multiplied, the row's largest entry is moved into a running log
scale, so that nothing underflows that matters.

``transition[v, i, j]`` is p(z_v = j | z_parent = i).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Ints
from knothole.compiled.exp import exponentials
from knothole.compiled.policy import inner, njit
from knothole.densities.univariate.packed import Stacked

# Rows that go through a pass together: a few variables' messages should stay in the cache.
TILE = 128
# Log of what a row's messages may fall by at one variable before lost states could matter.
LOST = -600.0


class EmissionTables(NamedTuple):
    """Parameters of all emissions (:class:`~knothole.densities.univariate.packed.Stacked`).

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
    """Where statistics are added up: of latents, and of emissions."""

    roots: Floats
    pairs: Floats
    emissions: Stacked


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

    A state whose emission term vanished beside the row's largest one is lost. That is harmless
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
            add_statistics(values, tile, scratch.gamma, sums.emissions)


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
