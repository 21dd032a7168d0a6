"""The masks that the authors published, and the errors that they and others had on them.

The model and the density are chosen on the training and validation rows only: an XGBoost model by
its RMSE, a density by its log p, both on the complete validation rows. Test rows are seen once.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xgboost
from numpy.typing import NDArray

from benchmarks.paper.binning import AuthorsSplit
from benchmarks.paper.panels import authors_split, learn, rmse
from benchmarks.suite import datasets
from knothole.columns.columns import Columns
from knothole.densities.base import Density
from knothole.densities.latent_tree.density import LatentTree
from knothole.densities.mixture.density import Mixture
from knothole.errors import InvalidInput
from knothole.wrapping import wrap

OURS = "knothole"
DEPTHS = (2, 3, 4, 5)
LEARNING_RATES = (0.03, 0.1, 0.3)
MOST_TREES = 400
#: The errors that this project set itself, by the number of missing values.
TARGETS: Mapping[int, float] = {3: 4700, 7: 5200, 10: 5900, 14: 6700, 18: 7650}

_MASKS = "mc2/insurance/masks_tryI.npz"
_ERRORS = "mc2/published_rmse.csv"


@dataclass(frozen=True, eq=False)
class Published:
    """Masks of the test rows, and published errors.

    Attributes
    ----------
    missing : int array (numbers,)
        Missing values of every row.
    masks : bool array (numbers, repeats, rows, columns)
        True where an entry is missing.
    errors : DataFrame
        Published means: a row for each number of missing values, a column for each method.
    """

    missing: NDArray[np.int64]
    masks: NDArray[np.bool_]
    errors: pd.DataFrame

    @classmethod
    def load(cls, data: str | os.PathLike[str] | None = None) -> Published:
        """Read the files from a folder, by default the one that ``KNOTHOLE_DATA`` names."""
        folder = Path(data if data is not None else os.environ.get(datasets.FOLDER, ""))
        absent = [name for name in (_MASKS, _ERRORS) if not (folder / name).is_file()]
        if absent:
            raise InvalidInput(
                f"the published masks need {absent[0]}, which is not in {os.fspath(folder)!r}; set "
                f"{datasets.FOLDER} to a folder that has it."
            )
        with np.load(folder / _MASKS) as file:
            missing, masks = file["k"].astype(np.int64), file["masks"].astype(np.bool_)
        table = pd.read_csv(folder / _ERRORS)
        table = table[table["dataset"] == "insurance"]
        errors = table.pivot_table(index="k_missing", columns="method", values="rmse_mean")
        return cls(missing, masks, errors)


@dataclass(frozen=True, eq=False)
class Choice:
    """A model or density, and how all candidates did on the validation rows, the best first."""

    chosen: Any
    tried: pd.DataFrame


def choose_model(split: AuthorsSplit) -> Choice:
    """The XGBoost model with the smallest RMSE on the validation rows."""
    tried = []
    for depth, rate in itertools.product(DEPTHS, LEARNING_RATES):
        settings = {"max_depth": depth, "learning_rate": rate, "n_jobs": 1}
        model = xgboost.XGBRegressor(n_estimators=MOST_TREES, **settings)
        valid = [(split.valid.table, split.valid.target)]
        model.fit(split.train.table, split.train.target, eval_set=valid, verbose=False)
        errors = model.evals_result()["validation_0"]["rmse"]
        trees = int(np.argmin(errors)) + 1
        tried.append(
            {"max_depth": depth, "learning_rate": rate, "n_estimators": trees,
             "valid_rmse": errors[trees - 1]}
        )  # fmt: skip
    table = pd.DataFrame(tried).sort_values("valid_rmse", kind="stable", ignore_index=True)
    best = xgboost.XGBRegressor(
        max_depth=int(table["max_depth"][0]),
        learning_rate=float(table["learning_rate"][0]),
        n_estimators=int(table["n_estimators"][0]),
        n_jobs=1,
    )
    return Choice(best.fit(split.train.table, split.train.target), table)


def choose_density(split: AuthorsSplit) -> Choice:
    """The density with the largest mean log p on the validation rows.

    Candidates know the dummies' one-hot groups or do not; both kinds give a probability to a row of
    dummies, so that they can be compared.
    """
    train, valid = split.train.table, split.valid.table
    one_hot = {name: list(columns) for name, columns in split.one_hot.items()}
    views = {
        "one-hot groups": Columns.infer(train, one_hot=one_hot),
        "dummies": Columns.infer(train),
    }
    densities: Sequence[Density] = (Mixture(random_state=0), LatentTree(random_state=0))
    tried: list[dict[str, Any]] = []
    fitted = {}
    for (view, columns), density in itertools.product(views.items(), densities):
        name = f"{type(density).__name__} on {view}"
        fitted[name] = learn(density, train, columns)
        score = float(np.mean(fitted[name].score_samples(valid)))
        tried.append({"density": name, "valid_log_p": score})
    table = pd.DataFrame(tried).sort_values(
        "valid_log_p", ascending=False, kind="stable", ignore_index=True
    )
    return Choice(fitted[table["density"][0]], table)


def evaluate(data: str | os.PathLike[str] | None = None) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Errors on the published masks, and how model and density were chosen.

    Returns
    -------
    results : DataFrame
        A row for each number of missing values and repeat: ``missing``, ``repeat``, ``rmse``.
    choices : dict
        Candidates for model and density with their scores on the validation rows.
    """
    published, split = Published.load(data), authors_split(data)
    model, density = choose_model(split), choose_density(split)
    robust = wrap(model.chosen, split.train.table, density=density.chosen)
    rows = []
    for missing, repeats in zip(published.missing, published.masks, strict=True):
        for repeat, mask in enumerate(repeats):
            answer = robust.predict(split.test.table.mask(mask), n_jobs=1)
            rows.append(
                {"missing": int(missing), "repeat": repeat, "rmse": rmse(split.test.target, answer)}
            )
    choices = {
        "model": model.tried.to_dict("records"), "density": density.tried.to_dict("records")
    }  # fmt: skip
    return pd.DataFrame(rows), choices


def compare(results: pd.DataFrame, errors: pd.DataFrame) -> pd.DataFrame:
    """Ours and every published mean error side by side, a row for each number of missing values."""
    means = results.groupby("missing")["rmse"].mean().rename(OURS)
    return pd.concat([means, errors.rename_axis(index="missing")], axis=1)


def not_below(table: pd.DataFrame) -> list[str]:
    """Where :func:`compare` has a published method at or below ours."""
    found = []
    for missing, errors in table.iterrows():
        for method, error in errors.drop(OURS).items():
            if error <= errors[OURS]:
                found.append(
                    f"{missing} missing values: {method} has {error:.1f}, ours {errors[OURS]:.1f}."
                )
    return found


def above_target(table: pd.DataFrame) -> list[str]:
    """Where :func:`compare` is above the project's own targets."""
    own = table[OURS].to_dict()
    return [
        f"{missing} missing values: {own[missing]:.0f}, the target is {target:.0f}."
        for missing, target in TARGETS.items()
        if own[missing] > target
    ]
