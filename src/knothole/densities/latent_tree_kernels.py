"""Compiled passes over a latent tree.

Each variable v has a latent z_v with h states; z_v depends on the latent of the parent of v, and
the variable on its own latent alone. All kernels work on a *tile*: up to ``TILE`` rows, states
before rows, so that every inner loop runs over contiguous rows whatever h is. Messages stay in
linear space; whenever two are multiplied, the row's largest entry is moved into a running log
scale, so that nothing underflows that matters.

Shapes: ``beta`` and ``message`` are (variables, states, TILE), ``transition[v, i, j]`` is
p(z_v = j | z_parent = i), and ``transposed[v] = transition[v].T``.
"""

from __future__ import annotations

import numpy as np

from knothole.compiled import njit

# Rows that go through a pass together: a few variables' messages should stay in the cache.
TILE = 128


@njit
def fill_terms(code, z, which, rows, factor, table, linear, square, peak, beta, scale):  # type: ignore[no-untyped-def]
    """Beta starts as p(x_v | z_v), divided by its largest entry, whose log goes to ``scale``.

    ``which[v]`` is the column of ``z`` that variable v uses, -1 for a variable without one. For
    those, ``factor = exp(table - peak)`` is tabulated; the others need exponentials of
    ``table[c] + z * linear + z**2 * square``.
    """
    n_states = table.shape[1]
    width = len(rows)
    for v in range(code.shape[1]):
        if which[v] < 0:
            for n in range(width):
                c = code[rows[n], v]
                if c < 0:
                    for k in range(n_states):
                        beta[v, k, n] = 1.0
                else:
                    for k in range(n_states):
                        beta[v, k, n] = factor[c, k]
                    scale[n] += peak[c]
            continue
        for n in range(width):
            c = code[rows[n], v]
            if c < 0:
                for k in range(n_states):
                    beta[v, k, n] = 1.0
                continue
            value = z[rows[n], which[v]]
            largest = -np.inf
            for k in range(n_states):
                term = table[c, k] + value * (linear[v, k] + value * square[v, k])
                beta[v, k, n] = term
                largest = max(largest, term)
            scale[n] += largest
            for k in range(n_states):
                beta[v, k, n] = np.exp(beta[v, k, n] - largest) if largest > -np.inf else 0.0


@njit
def upward(order, parent, prior, transition, beta, message, scale, spare, width, out):  # type: ignore[no-untyped-def]
    """Collect evidence towards the root; ``out[n]`` becomes log p of row n.

    Afterwards ``beta[v]`` is proportional to p(evidence at and below v | z_v) and ``message[v]``
    to p(evidence at and below v | z_parent).
    """
    n_states = len(prior)
    for position in range(len(order) - 1, 0, -1):
        v = order[position]
        _product(transition[v], beta[v], message[v], width)
        _multiply_in(beta[parent[v]], message[v], scale, spare, width)
    root = order[0]
    for n in range(width):
        total = 0.0
        for k in range(n_states):
            total += prior[k] * beta[root, k, n]
        out[n] = np.log(total) + scale[n]


@njit
def downward(order, parent, prior, transposed, weight, beta, message, gamma, spare, width, pairs):  # type: ignore[no-untyped-def]
    """Distribute evidence from the root: ``gamma[v]`` becomes weight times p(z_v | row).

    ``pairs[v, i, j]`` gains the weighted sum of p(z_parent = i, z_v = j | row), but for the factor
    ``transition[v, i, j]``, which is the same for all rows and is left to the caller. Overwrites
    ``message``.
    """
    n_states = len(prior)
    root = order[0]
    spare[:width] = 0.0
    for k in range(n_states):
        for n in range(width):
            gamma[root, k, n] = prior[k] * beta[root, k, n]
            spare[n] += gamma[root, k, n]
    for n in range(width):
        spare[n] = weight[n] / spare[n] if spare[n] > 0.0 else 0.0
    for k in range(n_states):
        for n in range(width):
            gamma[root, k, n] *= spare[n]
    for position in range(1, len(order)):
        v = order[position]
        ratio = message[v]
        above = gamma[parent[v]]
        for k in range(n_states):
            for n in range(width):
                # Where the message is 0, so is gamma above.
                ratio[k, n] = above[k, n] / ratio[k, n] if ratio[k, n] > 0.0 else 0.0
        _add_outer(ratio, beta[v], width, pairs[v])
        _product(transposed[v], ratio, gamma[v], width)
        for k in range(n_states):
            for n in range(width):
                gamma[v, k, n] *= beta[v, k, n]


@njit
def add_statistics(code, z, which, rows, gamma, count, first, second):  # type: ignore[no-untyped-def]
    """Responsibilities of the observed entries, summed per code and weighted by z and z**2."""
    width = len(rows)
    for v in range(code.shape[1]):
        for n in range(width):
            c = code[rows[n], v]
            if c < 0:
                continue
            for k in range(gamma.shape[1]):
                count[c, k] += gamma[v, k, n]
            if which[v] >= 0:
                value = z[rows[n], which[v]]
                for k in range(gamma.shape[1]):
                    first[v, k] += gamma[v, k, n] * value
                    second[v, k] += gamma[v, k, n] * (value * value)


@njit
def draw_states(order, parent, prior, transition, beta, uniform, width, out):  # type: ignore[no-untyped-def]
    """Latents drawn from p(z | row), after :func:`upward`.

    ``uniform`` and ``out`` are (rows, draws, variables).
    """
    n_states = len(prior)
    for n in range(width):
        for draw in range(out.shape[1]):
            for v in order:
                weights = prior if parent[v] < 0 else transition[v, out[n, draw, parent[v]]]
                total = 0.0
                for k in range(n_states):
                    total += weights[k] * beta[v, k, n]
                left = uniform[n, draw, v] * total
                state = n_states - 1
                for k in range(n_states):
                    left -= weights[k] * beta[v, k, n]
                    if left < 0.0:
                        state = k
                        break
                out[n, draw, v] = state


@njit
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


@njit
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


@njit
def _multiply_in(target, factor, scale, spare, width):  # type: ignore[no-untyped-def]
    """``target *= factor``, then divide each row by its largest entry and log that."""
    spare[:width] = 0.0
    for k in range(len(target)):
        for n in range(width):
            target[k, n] *= factor[k, n]
            spare[n] = max(spare[n], target[k, n])
    for n in range(width):
        if spare[n] > 0.0:
            scale[n] += np.log(spare[n])
            spare[n] = 1.0 / spare[n]
        else:
            scale[n] = -np.inf
    for k in range(len(target)):
        for n in range(width):
            target[k, n] *= spare[n]


@njit
def expectation(
    code, z, which, rows, weight, factor, table, linear, square, peak,
    order, parent, prior, transition, transposed,
    beta, message, gamma, scale, spare, out, pairs, roots, count, first, second,
):  # type: ignore[no-untyped-def]  # fmt: skip
    """Both passes over ``rows``, tile by tile: log p into ``out``, statistics added up."""
    for start in range(0, len(rows), TILE):
        stop = min(start + TILE, len(rows))
        tile = rows[start:stop]
        width = stop - start
        scale[:width] = 0.0
        fill_terms(code, z, which, tile, factor, table, linear, square, peak, beta, scale)
        upward(order, parent, prior, transition, beta, message, scale, spare, width, out[start:stop])
        downward(
            order, parent, prior, transposed, weight[start:stop],
            beta, message, gamma, spare, width, pairs,
        )  # fmt: skip
        for k in range(len(prior)):
            total = 0.0
            for n in range(width):
                total += gamma[order[0], k, n]
            roots[k] += total
        add_statistics(code, z, which, tile, gamma, count, first, second)


@njit
def log_likelihood(
    code, z, which, rows, factor, table, linear, square, peak,
    order, parent, prior, transition, beta, message, scale, spare, out,
):  # type: ignore[no-untyped-def]  # fmt: skip
    """The upward pass over ``rows``, tile by tile: log p into ``out``."""
    for start in range(0, len(rows), TILE):
        stop = min(start + TILE, len(rows))
        tile = rows[start:stop]
        scale[: stop - start] = 0.0
        fill_terms(code, z, which, tile, factor, table, linear, square, peak, beta, scale)
        upward(
            order, parent, prior, transition, beta, message, scale, spare, stop - start, out[start:stop]
        )
