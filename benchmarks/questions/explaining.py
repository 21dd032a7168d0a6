"""Explaining: shapr's bike model over all coalitions, and the time against shap's."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import knothole as kh
from benchmarks.speed.setting import table, xgboost_model
from knothole.arrays import Floats
from knothole.inspection.shapley import Game, Players, all_coalitions

#: Mean squared errors of v(S) as shapr's authors have them, and its v(S) per second.
INDEPENDENCE, SHAPR, SHAPR_SPEED = 1_520_051, 1_169_051, 580
SEEDS = 3


def bike() -> dict[str, Any]:
    """Mean squared error of v(S), over coalitions and rows, and v(S) per second of one thread."""
    folder = Path(os.environ["KNOTHOLE_DATA"]) / "anchors" / "bike"
    train, rows = (pd.read_csv(folder / f"x_{part}.csv") for part in ("train", "explain"))
    y = pd.read_csv(folder / "y_train.csv")["y_train"].to_numpy(dtype=float)
    model = folder / "model.ubj"
    by_seed = {}
    for seed in range(SEEDS):
        robust = kh.wrap(model, train, y, random_state=seed)
        by_seed[seed] = {"density": type(robust.density_).__name__, "mse": _mse(robust, rows)}
        if seed == 0:
            speed = _speed(robust, rows)
    others = {
        "Factorized": kh.Factorized(),
        "Mixture": kh.Mixture(random_state=0),
        "LatentTree": kh.LatentTree(random_state=0),
    }
    return {
        "seeds": by_seed,
        "speed": speed,
        "others": {
            name: _mse(kh.wrap(model, train, density=density), rows)
            for name, density in others.items()
        },
    }


def _mse(robust: kh.Robust, rows: pd.DataFrame) -> float:
    """Of E[f | x_S] against f(x), over all coalitions but none and all."""
    told = all_coalitions(rows.shape[1])[0][1:-1]
    masked = np.where(told[:, None], rows.to_numpy(dtype=float), np.nan)
    asked = pd.DataFrame(masked.reshape(-1, rows.shape[1]), columns=rows.columns)
    v = np.asarray(robust.predict(asked, corrected=False)).reshape(len(told), -1)
    return float(np.mean((v - np.asarray(robust.predict(rows))) ** 2))


def _speed(robust: kh.Robust, rows: pd.DataFrame) -> float:
    """v(S) per second of all coalitions, 64 draws each where the density is drawn."""
    expectation = robust.expectation_
    evidence = expectation.evidence(rows)
    game = Game(expectation, Players.of(expectation), margins=False, threads=1)
    told = all_coalitions(rows.shape[1])[0][1:-1]
    seconds = _cpu(lambda: game.values(evidence, told, range(1)))
    return len(told) * len(rows) / seconds


def _cpu(call: Callable[[], Any], repeats: int = 3) -> float:
    """Best CPU time of this thread."""
    best = np.inf
    for _ in range(repeats):
        start = time.thread_time()
        call()
        best = min(best, time.thread_time() - start)
    return float(best)


def speed(n: int = 1000) -> dict[str, Any]:
    """Seconds of CPU for ``n`` rows of 20 columns, 100 trees of depth 6, against shap's."""
    import shap

    X, y = table(10_000)
    rows, _ = table(n, seed=5)
    model = xgboost_model(X, y)
    explainer = shap.TreeExplainer(model, feature_perturbation="tree_path_dependent")
    found: dict[str, Any] = {"rows": n, "shap": _cpu(lambda: explainer.shap_values(rows))}
    unit = float(np.std(model.predict(rows)))
    densities = {
        "Mixture(32)": kh.Mixture(32, random_state=0),
        "GaussianMixture(16)": kh.GaussianMixture(16, random_state=0),
    }
    for name, density in densities.items():
        robust = kh.wrap(model, X, density=density)
        robust.explain(rows[:2], n_jobs=1)
        errors: list[Floats] = []

        def work(robust: kh.Robust = robust, errors: list[Floats] = errors) -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                errors.append(robust.explain(rows, n_jobs=1).errors / unit)

        seconds = _cpu(work, 1)
        error = errors[0]
        found[name] = {
            "seconds": seconds,
            "ratio": seconds / found["shap"],
            "error": float(error.max()),
            "mean error": float(np.sqrt((error**2).mean())),
        }
    return found
