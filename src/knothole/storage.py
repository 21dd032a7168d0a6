"""One file for a :class:`Robust`: the trees, the density, and what was chosen. No pickle.

The file is a container (:mod:`knothole.files`), as that of a density
(:mod:`knothole.densities.storage`). The library's own model is not in it.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from knothole.checks import check_array, check_type, require
from knothole.compiled.ahead import compile_ahead
from knothole.densities.base import Density
from knothole.densities.gaussian.density import GaussianMixture
from knothole.densities.storage import density_from, describe_density
from knothole.densities.univariate.base import owned, part_of
from knothole.errors import InvalidInput
from knothole.expectation.expectation import LARGEST, Expectation, by_class
from knothole.expectation.tolerance import Spread
from knothole.files import fitting_together, read_container, write_container
from knothole.inspection.conformal import Calibration, Scale
from knothole.inspection.correction import Correction, Part
from knothole.inspection.dependencies import FunctionalDependencies
from knothole.leaves.options import TuningSummary
from knothole.missingness.inference import LossPrior, Reading
from knothole.trees.ensemble import Ensemble
from knothole.trees.state import describe_ensemble, ensemble_from

if TYPE_CHECKING:
    import pandas as pd

    from knothole.robust import Robust

FORMAT = "knothole model"
VERSION = 1

# What is read a second time, to compile what it needs ahead, is no larger.
MOST_BYTES = 2**26

# Where the arrays of each part are kept.
TREES, DENSITY, CALIBRATION, CORRECTION = "trees", "density", "calibration", "correction"


def save(robust: Robust, path: str | os.PathLike[str]) -> None:
    """Write a robust model to one file; it is either there as a whole or not at all."""
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
        "tuning": _describe_summary(robust.tuning_),
        "correction": _describe_table(robust.correction_),
        "parts": None,
    }
    arrays = owned(TREES, tree_arrays) | owned(DENSITY, density_arrays)
    if robust.calibration_ is not None:
        arrays |= owned(CALIBRATION, describe_calibration(robust.calibration_))
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
        Where the file is truncated, corrupt, of another format, or from a newer version.

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
        if os.path.getsize(path) <= MOST_BYTES:
            drawn = isinstance(density, GaussianMixture) and header["trees"]["classes"] is None
            file = os.path.abspath(path)
            compile_ahead(by_class(LARGEST, density), "use_file", file, walks=drawn)
        ensemble = ensemble_from(header["trees"], part_of(arrays, TREES))
        check_type("model", header["model"], str)
        rows = part_of(arrays, CALIBRATION)
        n_variables = len(density.columns_.variables)
        return Robust(
            _expectation(ensemble, density, header),
            name=header["model"],
            selection=_table_from(header["selection"]),
            prior_selection=_table_from(header["priors"]),
            tuning=_summary_from(header["tuning"]),
            calibration=calibration_from(rows, n_variables) if rows else None,
            correction=correction_from(header["parts"], arrays, ensemble, density),
            correction_table=_table_from(header["correction"]),
        )


def _expectation(ensemble: Ensemble, density: Density, header: dict[str, Any]) -> Expectation:
    """The model under its density, with the tolerance and seed of its draws."""
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
    """What missing values mean, for JSON; the inverse of :func:`reading_from`."""
    prior, rates = reading.prior, reading.rates
    return {
        "policy": reading.policy,
        "prior": None if prior is None else vars(prior),
        "rates": None if rates is None else rates.tolist(),
    }


def reading_from(header: Any, n_variables: int) -> Reading:
    """What missing values mean, from what a file held."""
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


def describe_calibration(calibration: Calibration) -> dict[str, NDArray[Any]]:
    """A calibration as arrays; the inverse of :func:`calibration_from`."""
    arrays = {name: getattr(calibration, name) for name in ("points", "target", "residual", "cost")}
    arrays |= calibration.scale._asdict()
    return {name: np.asarray(values) for name, values in arrays.items()}


def calibration_from(arrays: dict[str, NDArray[Any]], n_variables: int) -> Calibration:
    """A calibration from arrays that a file held."""
    points, target, cost = (arrays[name] for name in ("points", "target", "cost"))
    fits = points.shape == (len(target), n_variables) and cost.shape == (n_variables,)
    require(fits, f"calibration rows of shape {points.shape}")
    fits = arrays["weights"].shape == (5,) and arrays["limits"].shape == (2,)
    require(fits, "the scale of a calibration has five weights and two limits")
    floor, power, residual = (float(arrays[name]) for name in ("floor", "power", "residual"))
    scale = Scale(arrays["weights"], arrays["limits"], floor, power)
    return Calibration(points, target, scale, residual, cost)


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
    """A correction that fits the model, from what a file held; None where it held none."""
    if header is None:
        return None
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


def _describe_summary(summary: TuningSummary | None) -> Any:
    if summary is None:
        return None
    return {**vars(summary), "unreached": summary.unreached.tolist()}


def _summary_from(description: Any) -> TuningSummary | None:
    if description is None:
        return None
    unreached = np.array(description["unreached"], dtype=np.intp)
    return TuningSummary(**{**description, "unreached": unreached})


def _describe_table(table: pd.DataFrame | None) -> Any:
    if table is None:
        return None
    described = json.loads(table.to_json(orient="split", double_precision=15))
    described["dtypes"] = [str(dtype) for dtype in table.dtypes]
    return described


def _table_from(description: Any) -> pd.DataFrame | None:
    if description is None:
        return None
    import pandas as pd

    names = description["columns"]
    for dtype in description["dtypes"]:
        # Of all that pandas knows by name: some dtypes have a size that the name says.
        require(re.fullmatch(r"u?int\d+|float\d+|bool|object|str|string", dtype), f"dtype {dtype}")
    table = pd.DataFrame(description["data"], columns=names)
    return table.astype(dict(zip(names, description["dtypes"], strict=True)))
