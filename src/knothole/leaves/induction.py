"""Trees grown under the expected loss: weighted draws of incomplete rows, for any learner.

The gain of a split, summed over weighted draws of every row, estimates its expected gain. So a
library that accepts sample weights grows its trees, top down, under the expected loss. In forests
and bags, each tree is grown on one draw of its own bootstrap sample: draws and bags are then one
source of randomness.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.model_selection import train_test_split

from knothole.arrays import Floats, Mask
from knothole.checks import check_whole
from knothole.columns.evidence import missing_in
from knothole.columns.outputs import filled
from knothole.columns.read import class_of, row_weights
from knothole.densities.base import Density, drawn_rows, refuse_beside_parts
from knothole.errors import InvalidInput, NotFitted
from knothole.out_of_core.files import is_path
from knothole.out_of_core.lazy import as_announced, collected, filled_meta
from knothole.out_of_core.partitions import DaskPartitions, Partition, is_lazy, key
from knothole.trees.libraries import unfitted, weight_name

if TYPE_CHECKING:
    pass

Rows = NDArray[np.intp]

#: Draws of an incomplete row; more of them change little.
DRAWS = 8
# Draws made at once for trees that have one each.
AT_ONCE = 64
# Bytes that draws may take up.
MEMORY = 1 << 31
# Parameters that count rows.
COUNTS = ("min_samples_leaf", "min_samples_split", "min_child_samples", "min_data_in_leaf")
# Rows from which scikit-learn's HistGradientBoosting stops early by itself.
MANY = 10_000
# Libraries' names for the weights of eval_set.
EVAL_WEIGHTS = ("sample_weight_eval_set", "eval_sample_weight")


# ---- draws of a table ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TableDraws:
    """A table whose missing values can be drawn.

    Attributes
    ----------
    parts : tuple of (Density, rows)
        The density from which the missing values of some rows are drawn; every row is in one part.
    table : table
    matrix : float64 (rows, columns)
        The rows, encoded.
    gone : bool (rows, columns)
        True where a value is to be drawn; all other NaN stay.
    target : array (rows,) or None
        Targets in the densities' form.
    redraw : float
        Fraction of the observed variables of an incomplete row that are drawn anew too, different
        ones in every draw. The rows are still draws from p.
    """

    parts: tuple[tuple[Density, Rows], ...]
    table: Any
    matrix: Floats
    gone: Mask
    target: NDArray[Any] | None = None
    redraw: float = 0.0

    @property
    def incomplete(self) -> Mask:
        """Rows that have missing values, (rows,)."""
        return np.asarray(self.gone.any(axis=1))

    def drawn(self, n_draws: int, seed: int) -> Floats:
        """Encoded draws (incomplete rows, draws, columns), NaN where nothing was drawn."""
        numbers = np.cumsum(self.incomplete) - 1
        out = np.full((int(self.incomplete.sum()), n_draws, self.gone.shape[1]), np.nan)
        for density, of in self.parts:
            rows = of[self.incomplete[of]]
            if not len(rows):
                continue
            if self.redraw == 0:
                out[numbers[rows]] = self._drawn(density, rows, self.gone[rows], n_draws, seed)
                continue
            for draw in range(n_draws):
                rng = np.random.default_rng([seed, draw])
                hidden = self.gone[rows] | self._redrawn(density, rows, rng)
                new = self._drawn(density, rows, hidden, 1, int(rng.integers(2**31)))
                out[numbers[rows], draw] = new[:, 0]
        return out

    def _redrawn(self, density: Density, rows: Rows, rng: np.random.Generator) -> Mask:
        """Entries to draw anew, whole variables at a time."""
        hidden = np.zeros((len(rows), self.gone.shape[1]), dtype=np.bool_)
        for variable in density.columns_.variables:
            members = list(variable.columns)
            known = ~np.isnan(self.matrix[rows][:, members]).any(axis=1)
            hidden[:, members] = (known & (rng.random(len(rows)) < self.redraw))[:, None]
        return hidden

    def _drawn(self, density: Density, rows: Rows, hidden: Mask, n_draws: int, seed: int) -> Floats:
        columns = density.columns_
        own = columns.evidence(np.where(hidden, np.nan, self.matrix[rows]), hidden)
        given = None if self.target is None else self.target[rows]
        evidence = density.extended(own, given)
        points = drawn_rows(density, evidence, n_draws, seed)
        points = points[:, :, : len(columns.variables)].reshape(len(rows) * n_draws, -1)
        matrix = columns.decode(points).reshape(len(rows), n_draws, -1)
        return np.where(hidden[:, None, :], matrix, np.nan)

    def expanded(self, n_draws: int, seed: int, complete: int = 1) -> tuple[Any, Rows]:
        """Incomplete rows ``n_draws`` times, others ``complete`` times, and each one's number."""
        row = np.repeat(np.arange(len(self.gone)), np.where(self.incomplete, n_draws, complete))
        matrix = np.full((len(row), self.gone.shape[1]), np.nan)
        matrix[self.incomplete[row]] = self.drawn(n_draws, seed).reshape(-1, matrix.shape[1])
        return self.filled(row, matrix), row

    def filled(self, row: Rows, matrix: Floats) -> Any:
        """Rows by number, filled with the values drawn for them."""
        table = take(self.table, row)
        if hasattr(table, "reset_index"):
            table = table.reset_index(drop=True)
        return filled(table, self.parts[0][0].columns_, matrix, ~np.isnan(matrix))


def aligned(params: Mapping[str, Any], n: int, rows: Rows) -> dict[str, Any]:
    """Parameters of ``fit`` for some of n rows: those with one entry per row are indexed too."""
    return {
        name: take(value, rows) if hasattr(value, "__len__") and len(value) == n else value
        for name, value in params.items()
    }


def take(values: Any, rows: Rows) -> Any:
    """Some rows of a table, or of an array with one entry per row."""
    if hasattr(values, "iloc"):
        return values.iloc[rows]
    kind = class_of(values)
    if kind is not None and kind[0] == "pyarrow":
        return values.take(rows)
    return np.asarray(values)[rows] if kind is None else values[rows]


# ---- for any learner ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Expanded:
    """Complete rows with sample weights, made by drawing missing values.

    Attributes
    ----------
    X : table
        Complete rows once, the others ``n_draws`` times, in the order of the rows; with the class,
        data types and levels of the given table.
    y : array or None
        Targets of these rows.
    weight : float64 array
        Sample weights: the draws of a row share its weight.
    row : int array
        The row of X that each came from; for a Dask collection, its number within its partition.
    """

    X: Any
    y: Any
    weight: Floats
    row: NDArray[np.intp]


def expand(
    density: Density,
    X: Any,
    y: Any = None,
    n_draws: int = DRAWS,
    *,
    sample_weight: Any = None,
    missing_mask: NDArray[np.bool_] | None = None,
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
        Of a Dask collection, draws are lazy, partition by partition: Series and frames that
        have the labels of the rows they came from, or arrays. A row has the same ones wherever
        partitions begin.
    y : array (rows,), optional
    n_draws : int
        Draws of each row that has missing values.
    sample_weight : array (rows,), optional
    missing_mask : bool array (rows, columns), optional
        True where a NaN is an unknown value, to be drawn; by default every NaN of a column that
        is not nullable.
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
    >>> full = kh.expand(kh.Factorized(random_state=0).fit(X), X, [1, 2, 3], n_draws=2)
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
    check_whole("n_draws", n_draws)
    if not hasattr(density, "columns_"):
        raise NotFitted(f"this {type(density).__name__} is not fitted yet; call fit(X) first.")
    if is_path(X):
        raise InvalidInput(
            "X must be a table: draws of a file are many times as large. Read it with Dask "
            "(dd.read_parquet), whose draws are lazy."
        )
    if is_lazy(X):
        refuse_beside_parts(missing_mask=missing_mask)
        options = {"n_draws": n_draws, "condition_on_target": condition_on_target, "seed": seed}
        return _lazily(density, X, y, sample_weight, options)
    matrix = density.columns_.matrix(X)
    n = len(matrix)
    if y is not None and len(y) != n:
        raise InvalidInput(f"X has {n} rows; y must have as many, but has {len(y)}.")
    gone = (
        missing_in(density.columns_, matrix) if missing_mask is None else np.asarray(missing_mask)
    )
    target = np.asarray(y) if condition_on_target and density.target_ and y is not None else None
    table_draws = TableDraws(((density, np.arange(n)),), X, matrix, gone, target)
    weight = row_weights(sample_weight, n)
    table, row = table_draws.expanded(int(n_draws), seed)
    return Expanded(table, None if y is None else np.asarray(y)[row], shared(weight, row), row)


def _lazily(density: Density, X: Any, y: Any, weight: Any, options: dict[str, Any]) -> Expanded:
    """Draws for a Dask collection, partition by partition."""
    import dask
    import pandas as pd

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
    """The draws for a partition's rows, which keep their labels."""
    import pandas as pd

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
    return Expanded(as_announced(found.X.set_axis(label), kinds), **beside)


def shared(weight: Floats, row: NDArray[np.intp]) -> Floats:
    """Weights of draws, such that the draws of a row share its weight."""
    return np.asarray((weight / np.maximum(np.bincount(row, minlength=len(weight)), 1))[row])


# ---- for estimators of trees ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TrainingOnDraws:
    """Training rows, and how their missing values are drawn.

    Attributes
    ----------
    table_draws : TableDraws
    y : array (rows,)
        Targets, as the estimator takes them.
    weight : array (rows,) or None
        Sample weights, if any were given.
    n_draws, seed : int
        Draws of each incomplete row, and their seed.
    others : callable
        Draws of other rows (X, y), which are used for early stopping.
    """

    table_draws: TableDraws
    y: NDArray[Any]
    weight: Floats | None
    n_draws: int
    seed: int
    others: Callable[[Any, NDArray[Any]], TableDraws]

    def fit(self, estimator: Any, **fit_params: Any) -> Any:
        """A clone of the estimator, trained on draws."""
        model = unfitted(estimator)
        kinds = {base.__name__ for base in type(model).__mro__}
        params = self._validation(fit_params)
        if kinds & {"BaseForest", "BaseBagging"}:
            return self._tree_by_tree(model, params)
        if "BaseHistGradientBoosting" in kinds:
            return self._stopped_early(model, params)
        if "BaseGradientBoosting" in kinds and model.n_iter_no_change and self.n_draws > 1:
            raise InvalidInput(
                f"estimator: {type(model).__name__} with n_iter_no_change holds rows out by "
                f"itself, and draws of one row would be on both sides. Use n_draws=1, "
                f"n_iter_no_change=None, or HistGradientBoosting."
            )
        return self._weighted(model, params)

    def _weighted(self, model: Any, params: dict[str, Any], held: Mask | None = None) -> Any:
        """Train on all draws at once; those of a row share its weight.

        If the estimator has a minimum number of rows, for a leaf say, it is multiplied by the
        number of draws. Rows that are ``held`` out decide when to stop.
        """
        table, row = self.table_draws.expanded(self._affordable, self.seed)
        weight = shared(np.ones(len(self.y)) if self.weight is None else self.weight, row)
        params = aligned(params, len(self.y), row) | {weight_name(model): weight}
        if held is not None:
            out, kept = np.flatnonzero(held[row]), np.flatnonzero(~held[row])
            params = aligned(params, len(row), kept)
            params |= {"X_val": take(table, out), "y_val": self.y[row[out]]}
            params["sample_weight_val"] = weight[out]
            table, row = take(table, kept), row[kept]
        # CatBoost's parameters cannot be unset, and it counts rows only if it is told to.
        known = {} if type(model).__module__.startswith("catboost") else model.get_params()
        least = {
            name: known[name] for name in COUNTS if isinstance(known.get(name), int | np.integer)
        }
        times = len(row) / len(np.unique(row))
        if least:
            model.set_params(**{name: ceil(times * count) for name, count in least.items()})
        model.fit(table, self.y[row], **params)
        return model.set_params(**least) if least else model

    @property
    def _affordable(self) -> int:
        """The number of draws that fit in memory."""
        n, columns = self.table_draws.gone.shape
        incomplete = max(1, int(self.table_draws.incomplete.sum()))
        rows = MEMORY // (8 * columns) - (n - incomplete)
        return int(min(self.n_draws, max(1, rows // incomplete)))

    def _tree_by_tree(self, model: Any, params: dict[str, Any]) -> Any:
        """Train every tree on its own draw, with the library's way to add one tree at a time."""
        if model.oob_score:
            raise InvalidInput(
                "estimator: oob_score needs rows that all trees share, but each tree grown under "
                "the expected loss has its own draws; use oob_score=False."
            )
        if self.weight is not None:
            params["sample_weight"] = self.weight
        trees, before = model.n_estimators, model.warm_start
        incomplete, rows = self.table_draws.incomplete, np.arange(len(self.y))
        matrix = np.full(self.table_draws.gone.shape, np.nan)
        for start in range(0, trees, AT_ONCE):
            drawn = self.table_draws.drawn(min(AT_ONCE, trees - start), self.seed + start)
            for place in range(drawn.shape[1]):
                matrix[incomplete] = drawn[:, place]
                model.set_params(warm_start=True, n_estimators=start + place + 1)
                with warnings.catch_warnings():
                    # The warning is about targets that change between trees; here they do not.
                    warnings.filterwarnings("ignore", message="class_weight presets")
                    model.fit(self.table_draws.filled(rows, matrix), self.y, **params)
        return model.set_params(warm_start=before)

    # ---- rows that tell when to stop -------------------------------------------------------------

    def _stopped_early(self, model: Any, params: dict[str, Any]) -> Any:
        """Train HistGradientBoosting with early stopping on rows held out before draws are made."""
        early, given = model.early_stopping, params.get("X_val") is not None
        stops = given or (len(self.y) > MANY if early == "auto" else early)
        held = None
        if stops and not given and model.validation_fraction is not None:
            _, out = train_test_split(
                np.arange(len(self.y)), test_size=model.validation_fraction,
                stratify=self.y if is_classifier(model) else None, random_state=model.random_state,
            )  # fmt: skip
            held = np.isin(np.arange(len(self.y)), out)
        model.set_params(early_stopping=bool(stops))
        return self._weighted(model, params, held).set_params(early_stopping=early)

    def _validation(self, fit_params: dict[str, Any]) -> dict[str, Any]:
        """Parameters of ``fit`` with the validation rows completed too."""
        found = dict(fit_params)
        if found.get("X_val") is not None:
            goes = ("y_val", "sample_weight_val")
            X, rest = self._completed(found["X_val"], *(found.get(name) for name in goes))
            found |= {"X_val": X} | dict(zip(goes, rest, strict=True))
        if found.get("eval_set") is None:
            return found
        single = isinstance(found["eval_set"], tuple)
        pairs = [found["eval_set"]] if single else list(found["eval_set"])
        name = next((name for name in EVAL_WEIGHTS if found.get(name) is not None), None)
        weights = [None] * len(pairs) if name is None else list(found[name])
        for place, pair in enumerate(pairs):
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise InvalidInput(
                    f"eval_set must hold pairs (X, y), so that their missing values can be "
                    f"completed; got {type(pair).__name__}."
                )
            X, (y, weights[place]) = self._completed(*pair, weights[place])
            pairs[place] = (X, y)
        found |= {} if name is None else {name: weights}
        return found | {"eval_set": pairs[0] if single else pairs}

    def _completed(self, X: Any, y: Any, weight: Any) -> tuple[Any, list[Any]]:
        """As many copies of each row, complete or not, as there are draws: without weights."""
        others = self.others(X, np.asarray(y))
        if not others.incomplete.any():
            return X, [y, weight]
        table, row = others.expanded(self.n_draws, self.seed, self.n_draws)
        return table, [np.asarray(y)[row], None if weight is None else np.asarray(weight)[row]]
