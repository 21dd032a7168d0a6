"""One file for a :class:`Robust`: the trees, the density, and what was chosen. No pickle.

The file is a container (:mod:`knothole.files`), as that of a density
(:mod:`knothole.densities.storage`). The library's own model is not in it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from knothole.checks import check_array, check_type, require
from knothole.densities.base import Density
from knothole.densities.storage import density_from, describe_density
from knothole.densities.univariate.base import owned, part_of
from knothole.errors import InvalidInput
from knothole.expectation.expectation import Expectation
from knothole.expectation.tolerance import Spread
from knothole.files import fitting_together, read_container, write_container
from knothole.leaves.options import RefitSummary
from knothole.missingness.inference import LossPrior, Reading
from knothole.trees.classes import class_lists, is_classifier
from knothole.trees.ensemble import Ensemble
from knothole.trees.state import describe_ensemble, ensemble_from

if TYPE_CHECKING:
    import pandas as pd

    from knothole.inspection.conformal import Conformal
    from knothole.inspection.correction import Correction
    from knothole.robust import Robust

FORMAT = "knothole model"
VERSION = 1

# Prefixes of the arrays of each part.
TREES, DENSITY, CONFORMAL, CORRECTION = "trees", "density", "conformal", "correction"


def save(robust: Robust, path: str | os.PathLike[str]) -> None:
    """Write a robust model to one file, completely or not at all."""
    if not isinstance(robust.density_, Density):
        raise InvalidInput(
            f"a density of your own ({robust.density_!r}) cannot be saved; keep it yourself and "
            f"wrap the model again, or use one of knothole's."
        )
    density, density_arrays = describe_density(robust.density_)
    trees, tree_arrays = describe_ensemble(robust.ensemble_)
    expectation = robust.expectation_
    spread = {name: values.tolist() for name, values in vars(expectation.spread).items()}
    header = {
        "format": FORMAT,
        "version": VERSION,
        "model": robust.model_name_,
        "trees": trees,
        "density": density,
        "reading": describe_reading(expectation.reading),
        "draws": {"tol": expectation.tol, "seed": expectation.seed, "spread": spread},
        "selection": _describe_table(robust.selection_),
        "priors": _describe_table(robust.prior_selection_),
        "refit": _describe_summary(robust.refit_),
        "correction": _describe_table(robust.correction_),
        "parts": None,
    }
    arrays = owned(TREES, tree_arrays) | owned(DENSITY, density_arrays)
    if robust.conformal_ is not None:
        arrays |= owned(CONFORMAL, describe_conformal(robust.conformal_))
    if robust.learned_correction is not None:
        header["parts"], correction_arrays = describe_correction(robust.learned_correction)
        arrays |= owned(CORRECTION, correction_arrays)
    write_container(Path(path), header, arrays)


def load(path: str | os.PathLike[str]) -> Robust:
    """Read what :meth:`Robust.save` wrote.

    Predictions are the same to the last bit. The library's own model is not in the file, so
    :meth:`Robust.to_native` needs to be given it.

    Raises
    ------
    DamagedFile
        The file is truncated, corrupt, of another format, or from a newer version.

    Examples
    --------
    >>> import tempfile
    >>> import knothole as kh
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> X = np.arange(40.0).reshape(20, 2)
    >>> robust = kh.wrap(DecisionTreeRegressor().fit(X, X[:, 0]), X, density=kh.Factorized())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     robust.save(f"{folder}/model.knothole")
    ...     again = kh.load(f"{folder}/model.knothole")
    >>> bool((again.predict(X) == robust.predict(X)).all())
    True
    """
    from knothole.robust import Robust

    path = Path(path)
    header, arrays = read_container(path, FORMAT, VERSION)
    with fitting_together(path):
        density = density_from(header["density"], part_of(arrays, DENSITY), path)
        ensemble = ensemble_from(header["trees"], part_of(arrays, TREES))
        check_type("model", header["model"], str)
        rows = part_of(arrays, CONFORMAL)
        n_variables = len(density.columns_.variables)
        return Robust(
            _expectation(ensemble, density, header),
            name=header["model"],
            selection=_table_from(header["selection"]),
            prior_selection=_table_from(header["priors"]),
            refit=_summary_from(header["refit"]),
            conformal=conformal_from(rows, ensemble, n_variables) if rows else None,
            correction=correction_from(header["parts"], arrays, ensemble, density),
            correction_table=_table_from(header["correction"]),
        )


def _expectation(ensemble: Ensemble, density: Density, header: dict[str, Any]) -> Expectation:
    """The expectation of a model under its density, with the tolerance and seed of its draws."""
    draws = header["draws"]
    check_type("draws", draws, dict)
    check_type("seed", draws["seed"], int)
    require(0 <= draws["seed"] < 2**64, f"seed {draws['seed']}")
    tol = draws["tol"]
    check_type("tol", tol, float, int, type(None))
    require(tol is None or 0 < tol < np.inf, f"tol must be a positive number; found {tol}")
    margin, prediction = (np.asarray(draws["spread"][name]) for name in ("margin", "prediction"))
    sizes = (ensemble.n_outputs, ensemble.n_responses)
    for values, size in zip((margin, prediction), sizes, strict=True):
        fits = values.shape == (size,) and values.dtype.kind in "fi"
        require(fits and bool((values >= 0).all()), "the spread of outputs does not fit the trees")
    return Expectation.of(
        ensemble, density, tol=tol, seed=draws["seed"],
        reading=reading_from(header["reading"], len(density.columns_.variables)),
        spread=Spread(margin, prediction),
    )  # fmt: skip


def describe_reading(reading: Reading) -> dict[str, Any]:
    """How missing values are read, for JSON; the inverse of :func:`reading_from`."""
    prior, rates = reading.prior, reading.rates
    return {
        "policy": reading.policy,
        "prior": None if prior is None else vars(prior),
        "rates": None if rates is None else rates.tolist(),
    }


def reading_from(header: Any, n_variables: int) -> Reading:
    """How missing values are read, from a file."""
    check_type("reading", header, dict)
    policy, prior, rates = (header[name] for name in ("policy", "prior", "rates"))
    require(policy in ("infer", "lost", "native"), f"policy {policy!r}")
    if prior is not None:
        check_type("prior", prior, dict)
        prior = LossPrior(**prior)
    if rates is not None:
        rates = np.asarray(rates)
        check_array("rates", rates, (n_variables,))
        require(bool(((rates >= 0) & (rates <= 1)).all()), "rates are probabilities")
    return Reading(policy, prior, rates)


def describe_conformal(conformal: Conformal) -> dict[str, NDArray[Any]]:
    """Conformal prediction as arrays; the inverse of :func:`conformal_from`."""
    names = ("points", "target", "residual", "cost")
    arrays = {name: getattr(conformal, name) for name in names}
    missingness = conformal.missingness
    own = {one.name: getattr(missingness, one.name) for one in fields(missingness)}
    arrays |= owned("missingness", own)
    if conformal.scale is not None:
        arrays |= conformal.scale._asdict()
    return {name: np.asarray(values) for name, values in arrays.items()}


def conformal_from(
    arrays: dict[str, NDArray[Any]], ensemble: Ensemble, n_variables: int
) -> Conformal:
    """Conformal prediction from the arrays of a file."""
    from knothole.inspection.conformal import Conformal, Scale
    from knothole.inspection.missingness_model import MissingnessModel

    points, target, cost = (arrays[name] for name in ("points", "target", "cost"))
    fits = points.shape == (len(target), n_variables) and cost.shape == (n_variables,)
    require(fits, f"calibration rows of shape {points.shape}")
    scale = None
    if is_classifier(ensemble):
        fits = bool(np.isin(target, np.arange(len(class_lists(ensemble)[0]))).all())
        require(fits, "calibration rows of classes that the model does not have")
    else:
        fits = arrays["weights"].shape == (5,) and arrays["limits"].shape == (2,)
        require(fits, "the scale of conformal scores has five weights and two limits")
        floor, power = float(arrays["floor"]), float(arrays["power"])
        scale = Scale(arrays["weights"], arrays["limits"], floor, power)
    missingness = MissingnessModel(**part_of(arrays, "missingness"))
    variable, n_features = missingness.variable, len(missingness.variable)
    fits = missingness.coefficients.shape == (n_variables, 1 + n_features)
    fits &= all(
        getattr(missingness, name).shape == (n_features,)
        for name in ("variable", "level", "centre", "width")
    )
    fits &= bool(((variable >= 0) & (variable < n_variables)).all())
    require(fits, "features and coefficients of the missingness model")
    return Conformal(points, target, scale, float(arrays["residual"]), cost, missingness)


def describe_correction(correction: Correction) -> tuple[list[Any], dict[str, NDArray[Any]]]:
    """The parts of a correction for JSON, and arrays; the inverse of :func:`correction_from`."""
    header: list[Any] = []
    arrays: dict[str, NDArray[Any]] = {"determined": correction.dependencies.table}
    for number, part in enumerate(correction.parts):
        trees, of_trees = describe_ensemble(part.ensemble)
        header.append({"variable": part.variable, "trees": trees})
        arrays |= owned(str(number), of_trees | {"spread": part.spread})
    return header, arrays


def correction_from(
    header: Any, arrays: dict[str, NDArray[Any]], ensemble: Ensemble, density: Density
) -> Correction | None:
    """The correction in a file, which must fit the model; None if it has none."""
    if header is None:
        return None
    from knothole.inspection.correction import Correction, Part
    from knothole.inspection.dependencies import FunctionalDependencies

    check_type("parts", header, list)
    parts = []
    for number, entry in enumerate(header):
        check_type("variable", entry["variable"], int)
        own = part_of(arrays, f"{CORRECTION}.{number}")
        parts.append(Part(entry["variable"], ensemble_from(entry["trees"], own), own["spread"]))
    dependencies = FunctionalDependencies(arrays[f"{CORRECTION}.determined"])
    correction = Correction(tuple(parts), dependencies)
    correction.check(density.columns_, ensemble.n_responses)
    return correction


def _describe_summary(summary: RefitSummary | None) -> Any:
    if summary is None:
        return None
    return {**vars(summary), "unreached": summary.unreached.tolist()}


def _summary_from(description: Any) -> RefitSummary | None:
    if description is None:
        return None
    unreached = np.array(description["unreached"], dtype=np.intp)
    return RefitSummary(**{**description, "unreached": unreached})


def _describe_table(table: pd.DataFrame | None) -> Any:
    if table is None:
        return None
    described = json.loads(table.to_json(orient="split", double_precision=15))
    described["dtypes"] = [str(dtype) for dtype in table.dtypes]
    return described


def _table_from(description: Any) -> Callable[[], pd.DataFrame] | None:
    """A function that builds the table described in a file, checked as far as numpy can."""
    if description is None:
        return None
    names, dtypes, rows = (description[name] for name in ("columns", "dtypes", "data"))
    check_type("columns", names, list)
    for name in names:
        check_type("the name of a column", name, str)
    require(len(dtypes) == len(names) == len(set(names)), f"dtypes {dtypes} of {names}")
    for dtype in dtypes:
        # Of pandas' names of data types: some have a size that the name states.
        require(re.fullmatch(r"u?int\d+|float\d+|bool|object|str|string", dtype), f"dtype {dtype}")
    check_type("data", rows, list)
    for row in rows:
        check_type("a row", row, list)
        require(len(row) == len(names), f"a row of {len(row)} values for {len(names)} columns")
    for dtype, values in zip(dtypes, zip(*rows, strict=True), strict=False):
        if dtype not in ("object", "str", "string"):
            np.array(values, dtype=dtype)
    return partial(_as_frame, names, dtypes, rows)


def _as_frame(names: list[str], dtypes: list[str], rows: list[list[Any]]) -> pd.DataFrame:
    import pandas as pd

    table = pd.DataFrame(rows, columns=names)
    return table.astype(dict(zip(names, dtypes, strict=True)))
