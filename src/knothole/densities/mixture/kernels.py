"""Compiled sums over components. The component is the innermost index everywhere: it vectorises.

See :mod:`knothole.densities.univariate.packed` for the arrays.
"""

from __future__ import annotations

import numpy as np

from knothole.arrays import Floats, Integers, Ints
from knothole.compiled.exp import exponentials
from knothole.compiled.policy import njit
from knothole.densities.univariate.packed import Values


def room_for(joint: Floats) -> tuple[Floats, Ints, Floats, Integers]:
    """Joint densities (rows, components), as they are and seen as int64, and scratch of a row."""
    n_states = joint.shape[1]
    return joint, joint.view(np.int64), np.empty(n_states), np.empty(n_states, np.int32)


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
def normalise(base, weight, room, log_p):  # type: ignore[no-untyped-def]
    """Turn log joint densities into shares, in place; ``log_p`` becomes log p of each row.

    There are as many rows as in ``base``. A row that no component can have (log p = -inf) has the
    components' own ``weight`` as shares.
    """
    joint, bits, peak, shift = room
    n_states = joint.shape[1]
    for i in range(len(base)):
        share = joint[i]
        largest = share[0]
        for k in range(n_states):
            largest = max(largest, share[k])
        if largest == -np.inf:
            log_p[i] = -np.inf
            for k in range(n_states):
                share[k] = weight[k]
            continue
        for k in range(n_states):
            peak[k] = largest
        exponentials(share, peak, shift, bits[i], n_states)
        total = 0.0
        for k in range(n_states):
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
    """One pass of EM over some rows, as many at a time as there is room for.

    Adds to the shares' totals, and to the statistics of :func:`gather`, all weighted; ``priors``
    are the components' weights, their logarithms first. Returns the weighted sum of log p.
    """
    code, z, base, slot = values
    log_prior, prior = priors
    room, log_p = scratch
    joint, tile = room[0], len(log_p)
    n_states = len(prior)
    log_likelihood = 0.0
    for start in range(0, len(code), tile):
        stop = min(start + tile, len(code))
        width = stop - start
        share = joint[:width]
        part = Values(code[start:stop], z[start:stop], base[start:stop], slot)
        join(part, form, log_prior, share)
        normalise(part.base, prior, room, log_p)
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
