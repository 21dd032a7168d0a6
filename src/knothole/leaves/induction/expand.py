"""Weighted completions: any learner can minimise its own expected loss on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.checks import check_whole
from knothole.columns.evidence import holes_in
from knothole.columns.read import row_weights
from knothole.densities.base import Density
from knothole.densities.in_parts import refuse_beside_parts
from knothole.errors import InvalidInput, NotFitted
from knothole.leaves.induction.filling import Completions
from knothole.out_of_core.files import is_path
from knothole.out_of_core.lazy import as_told, collected, filled_meta
from knothole.out_of_core.partitions import DaskPartitions, Partition, is_lazy, key

#: Completions of an incomplete row: more of them change little.
DRAWS = 8


@dataclass(frozen=True, eq=False)
class Expanded:
    """Rows with every hole filled, and what each of them weighs.

    Attributes
    ----------
    X : table
        Rows without a hole once, the others ``draws`` times, in the order of the rows; of the
        class, the types and the levels of the table that was given.
    y : array or None
        Targets of these rows.
    weight : float64 array
        Sample weights: the completions of a row share its weight.
    row : int array
        The row of X that each came from; of a Dask collection, its number in its partition.
    """

    X: Any
    y: Any
    weight: Floats
    row: NDArray[np.intp]


def expand(
    density: Density,
    X: Any,
    y: Any = None,
    draws: int = DRAWS,
    *,
    sample_weight: Any = None,
    holes: NDArray[np.bool_] | None = None,
    condition_on_target: bool = True,
    seed: int = 0,
) -> Expanded:
    """Complete rows from p(x_m | x_o), or p(x_m | x_o, y) where the density has a target.

    A learner that takes sample weights, whatever its loss, minimises the expected loss when it is
    trained on the result. For tree models :class:`knothole.ExpectedRegressor` and
    :class:`knothole.ExpectedClassifier` do all of it with ``learn="expected"``.

    Parameters
    ----------
    density : Density
        Fitted; with ``target=y`` to condition on y.
    X : table
        Of a Dask collection, completions are lazy, partition by partition: Series and frames that
        have the labels of the rows they came from, or arrays. A row has the same ones wherever
        partitions begin.
    y : array (rows,), optional
    draws : int
        Completions of each row that has holes.
    sample_weight : array (rows,), optional
    holes : bool array (rows, columns), optional
        Which NaN are holes; by default every NaN of a column that is not nullable.
    condition_on_target : bool
        Whether to use y where the density has a target.
    seed : int
        Of the draws.

    Returns
    -------
    Expanded

    Examples
    --------
    >>> import knothole as kh
    >>> X = np.array([[0.0, 1.0], [1.0, np.nan], [0.5, 2.0]])
    >>> full = kh.expand(kh.Factorized(random_state=0).fit(X), X, [1, 2, 3], draws=2)
    >>> full.row.tolist(), full.weight.tolist(), full.y.tolist()
    ([0, 1, 1, 2], [1.0, 0.5, 0.5, 1.0], [1, 2, 2, 3])

    Any learner, any loss: a linear model with Huber's, half of one column missing. Its slopes are
    found again; filled with means they would not be.

    >>> from sklearn.linear_model import HuberRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.multivariate_normal([0, 0], [[1, 0.8], [0.8, 1]], 2000)
    >>> y = X @ [1.0, 2.0] + 0.1 * rng.normal(size=2000)
    >>> X[rng.random(2000) < 0.5, 1] = np.nan
    >>> joint = kh.GaussianMixture(1, random_state=0).fit(X, target=y)
    >>> full = kh.expand(joint, X, y)
    >>> learner = HuberRegressor().fit(full.X, full.y, sample_weight=full.weight)
    >>> learner.coef_.round(1).tolist()
    [1.0, 2.0]
    >>> means = np.where(np.isnan(X), np.nanmean(X, axis=0), X)
    >>> HuberRegressor().fit(means, y).coef_.round(1).tolist()
    [2.0, 1.2]
    """
    check_whole("draws", draws)
    if not hasattr(density, "columns_"):
        raise NotFitted(f"this {type(density).__name__} is not fitted yet; call fit(X) first.")
    if is_path(X):
        raise InvalidInput(
            "X must be a table: completions of a file are many times as large. Read it with Dask "
            "(dd.read_parquet), whose completions are lazy."
        )
    if is_lazy(X):
        refuse_beside_parts(holes=holes)
        options = {"draws": draws, "condition_on_target": condition_on_target, "seed": seed}
        return _lazily(density, X, y, sample_weight, options)
    matrix = density.columns_.matrix(X)
    n = len(matrix)
    if y is not None and len(y) != n:
        raise InvalidInput(f"X has {n} rows; y must have as many, but has {len(y)}.")
    gone = holes_in(density.columns_, matrix) if holes is None else np.asarray(holes)
    target = np.asarray(y) if condition_on_target and density.target_ and y is not None else None
    completions = Completions(((density, np.arange(n)),), X, matrix, gone, target)
    weight = row_weights(sample_weight, n)
    table, row = completions.expanded(int(draws), seed)
    return Expanded(table, None if y is None else np.asarray(y)[row], shared(weight, row), row)


def _lazily(density: Density, X: Any, y: Any, weight: Any, options: dict[str, Any]) -> Expanded:
    """Completions of a Dask collection, partition by partition."""
    import dask

    parts, index = DaskPartitions.of(X, y, weight), getattr(X._meta, "index", None)
    like: dict[str, Any] = {} if y is None else {"y": y._meta[:0]}
    like |= {"weight": np.empty(0), "row": np.empty(0, np.intp)}
    if index is None:
        like["X"] = np.empty((0, X.shape[1]), X.dtype)
    else:
        like = {name: pd.Series(one, index, name=name) for name, one in like.items()}
        like["X"] = filled_meta(X._meta, density.columns_, None)
        if y is not None:
            like["y"].name = getattr(y, "name", None)
    density.columns_.read(like["X"])  # refuses other columns
    found = parts.tasks(_expanded, density, options, None if index is None else like["X"].dtypes)
    pick = dask.delayed(getattr, pure=False)
    for name, empty in like.items():
        whole = key(name)
        several = [pick(one, name, dask_key_name=f"{whole}-{i}") for i, one in enumerate(found)]
        like[name] = collected(several, empty)
    return Expanded(**{"y": None} | like)


def _expanded(part: Partition, density: Density, options: dict[str, Any], kinds: Any) -> Expanded:
    """The completions of a partition's rows, which are known by their labels."""
    _, table, y, weight = part
    found = expand(density, table, y, sample_weight=weight, **options)
    if kinds is None:
        return found
    label = table.index[found.row]
    beside: dict[str, Any] = {
        "y": None if y is None else pd.Series(y).iloc[found.row].set_axis(label),
        "weight": pd.Series(found.weight, label, name="weight"),
        "row": pd.Series(found.row, label, name="row"),
    }
    return Expanded(as_told(found.X.set_axis(label), kinds), **beside)


def shared(weight: Floats, row: NDArray[np.intp]) -> Floats:
    """What completions weigh, so that those of a row share its weight."""
    return np.asarray((weight / np.maximum(np.bincount(row, minlength=len(weight)), 1))[row])
