"""Expected predictions against XGBoost's own, and against what people do instead."""

import numpy as np
import pandas as pd
import xgboost
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer

from benchmarks.speed.setting import (
    Ratio,
    cpu,
    side_by_side,
    table,
    wall,
    with_missing,
    xgboost_model,
)
from knothole.densities.gaussian.density import GaussianMixture
from knothole.densities.latent_tree.density import LatentTree
from knothole.densities.mixture.density import Mixture
from knothole.expectation.expectation import Expectation
from knothole.robust import Robust
from knothole.trees.read import read

DRAWS = 20


def run():
    X, y = table(10_000)
    fresh, truth = table(10_000, seed=5)
    model = xgboost_model(X, y)
    booster = model.get_booster()
    ensemble = read(model)
    targets = {
        "Mixture(32)": (Mixture(32, random_state=0), {0.05: 1.5, 0.3: 3.0}, 0.2),
        "GaussianMixture(16)": (GaussianMixture(16, random_state=0), {0.05: 2.0, 0.3: 5.0}, 0.2),
        "LatentTree(16)": (LatentTree(16, random_state=0), {0.3: 12.0}, 0.4),
    }
    speeds = {}
    for name, (density, limits, one) in targets.items():
        expectation = Expectation.of(ensemble, density.fit(X))
        for rate, limit in limits.items():
            incomplete = with_missing(fresh, rate)
            native, ours = side_by_side(
                lambda incomplete=incomplete: booster.inplace_predict(incomplete),
                lambda e=expectation, incomplete=incomplete: e.margin(
                    e.evidence(incomplete), threads=1
                ),
            )
            mean, error = expectation.margin(expectation.evidence(incomplete))
            rmse = np.sqrt(np.mean((mean[:, 0] - truth) ** 2))
            spread = np.sqrt(np.mean(error**2)) / truth.std()
            note = f"RMSE {rmse:.3f}"
            if not expectation.exact:
                note += f", standard error {100 * spread:.2f} % of the target's sd"
            yield Ratio(
                "expectation", f"{name}, 10,000 rows, {rate:.0%} missing values, one thread", ours,
                native,
                "XGBoost inplace_predict of these rows", limit, note,
            )  # fmt: skip
            speeds[name, rate] = ours
        yield _one_row(name, expectation, model, with_missing(fresh[:1], 0.3), one)
        if name == "Mixture(32)":
            yield _classified(X, y, with_missing(fresh, 0.3), expectation)
        yield _two_threads(name, expectation, with_missing(fresh, 0.3))

    incomplete = with_missing(fresh, 0.3)
    imputer = IterativeImputer(sample_posterior=True, random_state=0).fit(X)
    instead = cpu(lambda: _averaged(imputer, booster, incomplete), 1)
    rmse = np.sqrt(np.mean((_averaged(imputer, booster, incomplete) - truth) ** 2))
    for name in ("Mixture(32)", "GaussianMixture(16)"):
        yield Ratio(
            "expectation", f"{name} against {DRAWS} averaged posterior imputations, 30 % missing "
            "values",
            speeds[name, 0.3], instead, "IterativeImputer(sample_posterior=True), XGBoost",
            1 / 100, f"their RMSE {rmse:.3f}",
        )  # fmt: skip


def _one_row(name, expectation, model, row, limit):
    """``robust.predict`` of a frame of one row: what it may take beyond XGBoost's own call."""
    robust, frame = Robust(expectation, model), pd.DataFrame(row)
    native, ours = (
        cpu(lambda call=call: call(frame), 500) for call in (model.predict, robust.predict)
    )
    note = f"{1e3 * ours:.2f} ms and {1e3 * native:.2f} ms"
    return Ratio(
        "expectation", f"{name}: robust.predict of a frame of one row", ours, native + 1e-3 * limit,
        f"XGBoost's own predict of it, and {limit} ms", 1.0, note,
    )  # fmt: skip


def _classified(X, y, incomplete, regressor):
    """A classifier's probabilities with their errors, against the regressor's time."""
    labels = (y > np.median(y)).astype(int)
    model = xgboost.XGBClassifier(n_estimators=100, max_depth=6, n_jobs=1).fit(X, labels)
    classifier = Expectation.of(read(model), regressor.density)

    def ask(expectation):
        return expectation.predict(expectation.evidence(incomplete), threads=1)

    _, error = ask(classifier)
    ours, theirs = side_by_side(lambda: ask(classifier), lambda: ask(regressor))
    return Ratio(
        "expectation", "Mixture(32), a classifier: 10,000 rows, 30 % missing values, one thread",
        ours, theirs, "a regressor's expected predictions", 2.0,
        f"standard error {np.sqrt(np.mean(error**2)):.4f}",
    )  # fmt: skip


def _two_threads(name, expectation, incomplete):
    """By the wall clock: nothing else may run."""
    one, two = (
        wall(lambda n=n: expectation.margin(expectation.evidence(incomplete), threads=n), 5)
        for n in (1, 2)
    )
    return Ratio(
        "expectation", f"{name}, 10,000 rows, 30 % missing values, two threads", two, one,
        "one thread, by the wall clock", 1 / 1.8,
    )  # fmt: skip


def _averaged(imputer, booster, incomplete):
    return np.mean(
        [booster.inplace_predict(imputer.transform(incomplete)) for _ in range(DRAWS)], axis=0
    )
