"""Compiled sums over components. The component is the innermost index everywhere: it vectorises.

See :mod:`knothole.densities.emissions.packed` for the arrays.
"""

from __future__ import annotations

import numpy as np

from knothole.compiled.policy import njit
from knothole.densities.emissions.packed import Values

# exp(x) = 2**n * exp(f), n whole and |f| <= log(2) / 2.
LOG2_E = 1.4426950408889634
LN_2_HIGH = 0.693147180369123816490
LN_2_LOW = 1.90821492927058770002e-10
# The smallest number that is not denormal is about exp(-708): what is exp(LEAST) or less becomes 0.
LEAST = -700.0
NOTHING = 1e-303


@njit
def join(values, form, log_weight, out):  # type: ignore[no-untyped-def]
    """Log of weight times density, (rows, components), but for the base measure."""
    code, z, _, slot = values
    table, linear, square = form
    n_states = table.shape[1]
    for i in range(len(code)):
        joint = out[i]
        for k in range(n_states):
            joint[k] = log_weight[k]
        for v in range(code.shape[1]):
            c = code[i, v]
            if c < 0:
                continue
            row = table[c]
            s = slot[v]
            if s < 0:
                for k in range(n_states):
                    joint[k] += row[k]
            else:
                x = z[i, s]
                by_x = linear[s]
                by_square = square[s]
                for k in range(n_states):
                    joint[k] += row[k] + x * (by_x[k] + x * by_square[k])


@njit
def normalise(base, weight, joint, bits, log_p):  # type: ignore[no-untyped-def]
    """Turn log joint densities into shares, in place; ``log_p`` becomes log p of each row.

    ``bits`` is ``joint`` seen as int64: the power of two is added to the exponent there. A row
    that no component can have (log p = -inf) keeps the components' own ``weight`` as shares.
    """
    n_states = joint.shape[1]
    for i in range(len(joint)):
        share = joint[i]
        exponent = bits[i]
        largest = share[0]
        for k in range(n_states):
            largest = max(largest, share[k])
        if largest == -np.inf:
            log_p[i] = -np.inf
            for k in range(n_states):
                share[k] = weight[k]
            continue
        for k in range(n_states):
            x = max(share[k] - largest, LEAST)
            n = np.floor(x * LOG2_E + 0.5)
            f = (x - n * LN_2_HIGH) - n * LN_2_LOW
            # Taylor's series: |f| < 0.35, so the first term left out is below 1e-16.
            share[k] = 1 + f * (1 + f * (1 / 2 + f * (1 / 6 + f * (1 / 24 + f * (1 / 120 + f * (
                1 / 720 + f * (1 / 5040 + f * (1 / 40320 + f * (1 / 362880 + f * (
                    1 / 3628800 + f * (1 / 39916800 + f * (1 / 479001600))))))))))))  # fmt: skip
            exponent[k] += np.int64(n) << 52
        total = 0.0
        for k in range(n_states):
            share[k] = share[k] if share[k] > NOTHING else 0.0
            total += share[k]
        log_p[i] = largest + np.log(total) + base[i]
        for k in range(n_states):
            share[k] /= total


@njit
def gather(values, share, sums):  # type: ignore[no-untyped-def]
    """Add the rows' shares to the statistics: per code, and times z and z**2."""
    code, z, _, slot = values
    count, first, second = sums
    n_states = share.shape[1]
    for v in range(code.shape[1]):
        s = slot[v]
        for i in range(len(code)):
            c = code[i, v]
            if c < 0:
                continue
            of_row = share[i]
            of_code = count[c]
            if s < 0:
                for k in range(n_states):
                    of_code[k] += of_row[k]
            else:
                x = z[i, s]
                square = x * x
                sum_x = first[s]
                sum_square = second[s]
                for k in range(n_states):
                    of_code[k] += of_row[k]
                    sum_x[k] += x * of_row[k]
                    sum_square[k] += square * of_row[k]


@njit
def expect(values, weight, form, priors, scratch, total, sums):  # type: ignore[no-untyped-def]
    """One pass of EM over some rows, a scratch's length at a time.

    Adds to the shares' totals, and to the statistics of :func:`gather`, all weighted; ``priors``
    are the components' weights, their logarithms first. Returns the weighted sum of log p.
    """
    code, z, base, slot = values
    log_prior, prior = priors
    joint, bits, log_p = scratch
    tile = len(joint)
    n_states = len(prior)
    log_likelihood = 0.0
    for start in range(0, len(code), tile):
        stop = min(start + tile, len(code))
        width = stop - start
        share = joint[:width]
        part = Values(code[start:stop], z[start:stop], base[start:stop], slot)
        join(part, form, log_prior, share)
        normalise(part.base, prior, share, bits[:width], log_p)
        for i in range(width):
            w = weight[start + i]
            log_likelihood += w * log_p[i]
            for k in range(n_states):
                share[i, k] *= w
                total[k] += share[i, k]
        gather(part, share, sums)
    return log_likelihood


@njit
def pick(share, uniform, out):  # type: ignore[no-untyped-def]
    """Draw components: ``out`` (rows, draws) from shares and uniform numbers.

    The first whose sum with those before it is larger, or the last that is possible at all.
    """
    for i in range(len(share)):
        reached, last = 0.0, 0
        for d in range(uniform.shape[1]):
            out[i, d] = 0
        for k in range(share.shape[1]):
            reached += share[i, k]
            if share[i, k] > 0:
                last = k
            for d in range(uniform.shape[1]):
                out[i, d] += reached <= uniform[i, d]
        for d in range(uniform.shape[1]):
            out[i, d] = min(out[i, d], last)
