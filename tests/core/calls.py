"""Calls of the compiled core that the package makes, and the same with one array spoilt."""

from __future__ import annotations

import copy
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
)

import knothole as kh
from knothole import _core
from knothole.columns.columns import Column, Columns
from knothole.inspection import boosting

Call = tuple[str, Callable[..., Any], tuple[Any, ...]]


def submodules() -> dict[str, types.ModuleType]:
    """The core's submodules by name."""
    found = vars(_core.build).items()
    return {name: part for name, part in found if isinstance(part, types.ModuleType)}


def kernel_names() -> set[str]:
    """All kernels, as ``submodule.function``."""
    return {
        f"{name}.{each}"
        for name, part in submodules().items()
        for each, value in vars(part).items()
        if callable(value) and not each.startswith("_")
    }


@contextmanager
def recorded(calls: dict[str, Call]) -> Iterator[None]:
    """Keep the first call of each kernel, its arguments as they were before."""
    replaced = []
    for name, part in submodules().items():
        for each, kernel in list(vars(part).items()):
            if callable(kernel) and not each.startswith("_"):
                replaced.append((part, each, kernel))
                setattr(part, each, _recorder(f"{name}.{each}", kernel, calls))
    try:
        yield
    finally:
        for part, each, kernel in replaced:
            setattr(part, each, kernel)


def _recorder(name: str, kernel: Callable[..., Any], calls: dict[str, Call]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        if name not in calls:
            calls[name] = name, kernel, copied(args)
        return kernel(*args)

    return call


def copied(value: Any) -> Any:
    """Arguments with arrays of their own; records and tuples stay what they are."""
    if isinstance(value, np.ndarray):
        return np.array(value, order="C")
    if isinstance(value, tuple):
        parts = [copied(each) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return copy.copy(value)


def use_everything() -> None:
    """Ask for what the package can answer, so that every kernel is called."""
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(300, 3)) + rng.normal(size=(300, 1))
    table = pd.DataFrame(numbers, columns=list("abc"))
    table["count"] = rng.poisson(2, 300)
    table["level"] = pd.Categorical(rng.choice(["x", "y", "z"], 300))
    table.loc[:30, "b"] = np.nan
    y = numbers.sum(axis=1) + (table["level"] == "x")
    asked = table.mask(rng.random(table.shape) < 0.4).iloc[:20]
    trees: dict[str, Any] = {"max_iter": 5, "categorical_features": "from_dtype"}
    regressor = HistGradientBoostingRegressor(**trees).fit(table, y)
    classifier = HistGradientBoostingClassifier(**trees).fit(table, np.digitize(y, [-1, 1]))
    forest = RandomForestRegressor(5, max_depth=4, random_state=0).fit(numbers, y)
    densities = [
        kh.Mixture(3, random_state=0),
        kh.LatentTree(3, random_state=0),
        kh.GaussianMixture(3, random_state=0),
    ]
    for density in densities:
        robust = kh.wrap(regressor, table, y, density=density, random_state=0)
        _ask(robust, asked)
        robust = kh.wrap(classifier, table, density=density, random_state=0)
        robust.predict_proba(asked, return_error=True)
        of_numbers = kh.wrap(forest, numbers, density=density, random_state=0)
        _ask(of_numbers, asked[list("abc")].to_numpy())
        of_numbers.margin(np.where(np.eye(3, dtype=bool), np.nan, 0.1))
        incomplete = np.where(rng.random(numbers.shape) < 0.2, np.nan, numbers)
        of_numbers.refit_leaves(incomplete, y).predict(incomplete[:5])
        _large_trees_and_groups(density, numbers, y)
    # Draws of draws, by trees in turn and by all trees at once.
    for method in ("boosting", "forest"):
        of_numbers.refit_leaves(incomplete, y, method=method)
    circuit = kh.Mixture(2, random_state=0).fit(numbers).to_circuit()
    kh.wrap(forest, numbers, density=circuit, random_state=0).predict(incomplete[:5])
    columns = Columns(tuple(map(Column, "rgb"))).describe(np.eye(3), one_hot={"hue": [0, 1, 2]})
    columns.evidence(np.array([[0.0, np.nan, np.nan]]))  # two categories are left
    grower = boosting.Grower(numbers, boosting.thresholds_of(numbers))
    boosting.least_squares(grower, numbers[:, 0], numbers[:, 1] ** 2)
    mixture = kh.GaussianMixture(2, random_state=0).fit(incomplete)
    mixture.conditional(mixture.evidence(incomplete[:5]))
    mixture.scores_.decode(numbers[:5])


def _large_trees_and_groups(density: Any, numbers: Any, y: Any) -> None:
    """Trees of more than 64 leaves, one-hot groups observed in part, single missing numbers."""
    single = np.where(np.eye(3, dtype=bool), np.nan, 0.1)
    forest = RandomForestRegressor(3, random_state=0).fit(numbers, y)
    robust = kh.wrap(forest, numbers, density=density, random_state=0)
    for rows in (single, [[np.nan, np.nan, 0.1]]):
        robust.margin(rows)
        robust.predict(rows, return_std=True)
        robust.leaf_probabilities(rows)
    classifier = GradientBoostingClassifier(n_estimators=5, random_state=0).fit(numbers, y > 0)
    kh.wrap(classifier, numbers, density=density, random_state=0).predict_proba(single)
    level = np.random.default_rng(1).integers(0, 3, len(y))
    dummies = np.column_stack([level == 0, level == 1, level == 2, numbers[:, 0]]).astype(float)
    for n_leaves in (4, 200):
        trees = RandomForestRegressor(3, max_leaf_nodes=n_leaves, random_state=0)
        grouped = kh.wrap(
            trees.fit(dummies, y), dummies, density=density, one_hot={"hue": [0, 1, 2]},
            random_state=0,
        )  # fmt: skip
        for part in ([0.0, np.nan, np.nan, 0.1], [0.0, np.nan, np.nan, np.nan]):
            grouped.predict([part], return_std=True)
            grouped.leaf_probabilities([part])


def _ask(robust: Any, asked: Any) -> None:
    robust.predict(asked, return_std=True)
    robust.predict(asked, quantiles=[0.1, 0.9])
    robust.explain(asked[:3])
    robust.acquire(asked[:3])
    robust.impute(asked[:3], n_draws=2)


def spoilt(args: tuple[Any, ...], rng: np.random.Generator) -> tuple[Any, ...]:
    """The arguments with one array, of all in them, replaced by one that does not fit."""
    places = list(_places(args))
    return _replaced(args, places[rng.integers(len(places))], rng)


def _places(value: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    if isinstance(value, np.ndarray):
        yield path
    elif isinstance(value, tuple):
        for i, each in enumerate(value):
            yield from _places(each, (*path, i))


def _replaced(value: Any, path: tuple[int, ...], rng: np.random.Generator) -> Any:
    if not path:
        return _spoilt_array(value, rng)
    parts = list(value)
    parts[path[0]] = _replaced(parts[path[0]], path[1:], rng)
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


def _spoilt_array(array: Any, rng: np.random.Generator) -> Any:
    axis = int(rng.integers(max(array.ndim, 1)))
    half = array.shape[axis] // 2 if array.ndim else 0
    ways: list[Callable[[], Any]] = [
        lambda: None,
        lambda: array.tolist(),
        lambda: float(array.size),
        lambda: array.astype(rng.choice(["f4", "f8", "i4", "i8", "u8", "u4", "u1", "?", "c16"])),
        lambda: array.astype(array.dtype.newbyteorder()),
        lambda: array[None],
        lambda: array.reshape(-1),
        lambda: array.T.copy().T,
        lambda: np.repeat(array, 2, axis=axis),
        lambda: np.take(array, range(half), axis=axis),
        lambda: np.take(array, [0] * (array.shape[axis] + 1), axis=axis),
        lambda: np.empty((0,) * array.ndim, array.dtype),
        lambda: array[..., ::2],
        lambda: _readonly(array),
        lambda: (
            np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:].view(array.dtype)
            if array.dtype.itemsize > 1 and array.ndim == 1
            else None
        ),
    ]
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ways[rng.integers(len(ways))]()
    except (ValueError, IndexError, TypeError):  # nothing to take from an empty array
        return None


def _readonly(array: Any) -> Any:
    own = array.copy()
    own.flags.writeable = False
    return own
