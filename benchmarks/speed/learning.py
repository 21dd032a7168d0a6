"""Refitting leaves on rows with missing values, against predicting those rows."""

from benchmarks.speed.densities import one_thread
from benchmarks.speed.setting import Ratio, cpu, process, table, with_missing, xgboost_model
from knothole.densities.gaussian.density import GaussianMixture
from knothole.densities.mixture.density import Mixture
from knothole.expectation.expectation import Expectation
from knothole.leaves.options import RefitOptions
from knothole.leaves.refit import refit
from knothole.leaves.sums import LeafSums, Summands
from knothole.trees.read import read
from knothole.wrapping import wrap


def run():
    X, y = table(100_000)
    model = xgboost_model(X[:10_000], y[:10_000])
    incomplete = with_missing(X, 0.2)
    expectation = Expectation.of(read(model), Mixture(32, random_state=0).fit(X[:10_000]))
    evidence = expectation.evidence(incomplete)
    weight = y * 0 + 1

    def sums():
        rows = Summands(evidence, y[:, None], weight)
        return LeafSums.gathered(expectation.engine, rows, threads=1)

    predicting = cpu(lambda: expectation.margin(expectation.evidence(incomplete), threads=1), 1)
    yield Ratio(
        "learning", "Prop. 2 for 100 trees, 100,000 x 20, 20 % missing values, Mixture(32), one "
        "thread",
        cpu(sums, 1), predicting, "predicting these rows", 2.0,
    )  # fmt: skip

    # The second is what refitting does by default.
    few = slice(0, 20_000)
    options = RefitOptions(condition_on_target=False, learning_rate=0.3, n_jobs=1)
    predicting = cpu(
        lambda: expectation.margin(expectation.evidence(incomplete[few]), threads=1), 1
    )
    for objective, what in (
        ("expected", "Prop. 4"),
        ("deployed", "Prop. 4 and the deployed error"),
    ):
        yield Ratio(
            "learning", f"{what} for 100 trees, 20,000 x 20, 20 % missing values, Mixture(32), "
            "one thread",
            cpu(
                lambda objective=objective: refit(
                    read(model), expectation.density, incomplete[few], y[few],
                    options.changed(objective=objective),
                ),
                1,
            ),
            predicting, "predicting these rows", 10.0,
        )  # fmt: skip

    yield from _in_all(xgboost_model(incomplete[few], y[few]), incomplete[few], y[few])
    # 47 trees of depth 6 have about 3,000 leaves.
    model = xgboost_model(X[:10_000], y[:10_000], trees=47)
    ensemble = read(model)
    X, y, incomplete = X[:20_000], y[:20_000], incomplete[:20_000]
    density = GaussianMixture(8, random_state=0).fit(X[:10_000])
    options = RefitOptions(method="forest", condition_on_target=False, n_jobs=1)

    def predict():
        expectation = Expectation.of(ensemble, density)
        return expectation.margin(expectation.evidence(incomplete), threads=1)

    predicting = cpu(predict, 1)
    yield Ratio(
        "learning", f"Prop. 3 with {ensemble.n_leaves:,} leaves, 20,000 rows, GaussianMixture(8)",
        cpu(lambda: refit(ensemble, density, incomplete, y, options), 1),
        predicting, "predicting these rows", 20.0,
    )  # fmt: skip


def _in_all(model, X, y):
    """``refit`` as users call it, with the density that knows y."""
    with one_thread():
        robust = wrap(model, X, y, nan_policy="lost")
        yield Ratio(
            "learning", "robust.refit_leaves(X, y), 100 trees, 20,000 x 20, 20 % missing values, "
            "one thread",
            process(lambda: robust.refit_leaves(X, y)),
            process(lambda: wrap(model, X, y, nan_policy="lost")),
            "wrap(model, X, y)", 2.0,
        )  # fmt: skip
