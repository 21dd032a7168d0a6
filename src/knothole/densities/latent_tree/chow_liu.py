"""The structure of a latent tree: the spanning tree of maximal mutual information (Chow & Liu).

Mutual information of two variables is estimated on the rows that observe both, after continuous
and integer variables are discretised into quantile bins (Chow and Liu 1968). The plug-in estimate
is too high by about (a - 1)(b - 1) / (2 n) for a and b codes and n rows, the more so the fewer rows
observe the pair. That is subtracted, so that pairs with many missing values or many categories are
not favoured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from knothole._core import chow_liu as kernels
from knothole.arrays import Floats, Ints
from knothole.threads import over_chunks

# The most bins of a variable.
BINS = 8


@dataclass(frozen=True, eq=False)
class Tree:
    """A rooted tree over variables.

    Attributes
    ----------
    parent : int64 (variables,)
        The parent of each variable, -1 for the root.
    order : int64 (variables,)
        The variables with every parent before its children; the root first.
    """

    parent: Ints
    order: Ints


def chow_liu(points: Floats, weight: Floats, categorical: Sequence[bool] = ()) -> Tree:
    """The Chow-Liu tree of the variables of ``points`` (rows, variables), NaN for missing values.

    ``categorical`` says which variables hold codes without an order; none by default.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> a = rng.integers(2, size=500)
    >>> b = np.where(rng.random(500) < 0.9, a, 1 - a)
    >>> c = np.where(rng.random(500) < 0.9, b, 1 - b)
    >>> chow_liu(np.column_stack([a, b, c]).astype(float), np.ones(500)).parent.tolist()
    [1, -1, 1]
    """
    information = mutual_information(discretise(points, categorical), weight)
    return rooted(spanning_edges(information), len(information))


def discretise(points: Floats, categorical: Sequence[bool] = ()) -> NDArray[np.int32]:
    """Codes (variables, rows) from 0, at most ``BINS`` in a variable; -1 for missing values.

    A variable with few values keeps them; others are divided at quantiles. A categorical variable
    keeps its most frequent levels, and the others are merged.
    """
    codes = np.full(points.T.shape, -1, dtype=np.int32)
    unordered = dict(enumerate(categorical))
    for v, column in enumerate(points.T):
        seen = ~np.isnan(column)
        values = column[seen]
        levels, position, counts = np.unique(values, return_inverse=True, return_counts=True)
        if len(levels) <= BINS:
            codes[v, seen] = position
        elif unordered.get(v, False):
            rank = np.argsort(np.argsort(-counts, kind="stable"), kind="stable")
            codes[v, seen] = np.minimum(rank, BINS - 1)[position]
        else:
            inner = np.linspace(0, 1, BINS + 1)[1:-1]
            cuts = np.unique(np.quantile(values, inner, method="inverted_cdf"))
            codes[v, seen] = np.searchsorted(cuts, values, side="right")
    return codes


def mutual_information(codes: NDArray[np.int32], weight: Floats) -> Floats:
    """Mutual information in nats of every pair, on the rows that observe both.

    Corrected for the number of rows, so an estimate can be a little below 0.
    """
    n_variables = len(codes)
    n_codes = int(codes.max(initial=0)) + 1
    out = np.zeros((n_variables, n_variables))

    def work(start: int, stop: int) -> None:
        kernels.information(codes, weight, start, stop, n_codes, out)

    over_chunks(work, n_variables, 4)
    return out + out.T


def spanning_edges(information: Floats) -> Ints:
    """Edges (variables - 1, 2) of the spanning tree with the largest sum."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import minimum_spanning_tree

    # scipy minimises, and treats 0 as "no edge": all costs are made positive.
    cost = information.max() - information + 1.0
    upper = np.triu(cost, 1)
    edges = minimum_spanning_tree(csr_array(upper)).nonzero()
    return np.column_stack(edges).astype(np.int64)


def rooted(edges: Ints, n_variables: int) -> Tree:
    """The tree rooted at its centre, which makes it as shallow as possible."""
    from scipy.sparse.csgraph import breadth_first_order

    tree = np.zeros((n_variables, n_variables))
    tree[edges[:, 0], edges[:, 1]] = 1.0

    def hung(root: int) -> Tree:
        order, parent = breadth_first_order(tree, root, directed=False)
        return Tree(np.where(parent < 0, -1, parent).astype(np.int64), order.astype(np.int64))

    # Find a longest path, then go half-way back.
    longest = hung(int(hung(0).order[-1]))
    path = [int(longest.order[-1])]
    while longest.parent[path[-1]] >= 0:
        path.append(int(longest.parent[path[-1]]))
    return hung(path[(len(path) - 1) // 2])
