"""Standard errors are honest, the tolerance holds, and spreads are what they are called."""

import itertools
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from scipy.stats import norm
from sklearn.ensemble import RandomForestRegressor
from sklearn.tree import DecisionTreeRegressor

import knothole as kh
from knothole import missingness
from knothole.errors import InvalidInput, ToleranceMissed
from knothole.expectation.expectation import Expectation
from knothole.expectation.tolerance import SHARE
from knothole.trees.read import read

FULL = os.environ.get("KNOTHOLE_FULL")
SEEDS = 50 if FULL else 30
ROWS = 80  # of which a third lack one number, or none: they are exact


def table(n, seed, d=6):
    rng = np.random.default_rng(seed)
    mix = np.random.default_rng(99).normal(size=(d, d)) * 0.6 + np.eye(d)
    return rng.normal(size=(n, d)) @ mix


@pytest.fixture(scope="module")
def models():
    X = table(1500, 0)
    score = 0.4 * X[:, 0] * X[:, 1] + np.sin(X[:, 2]) + 0.3 * X[:, 3:].sum(axis=1)
    common = {"n_estimators": 40, "max_depth": 4, "n_jobs": 1}
    regressor = xgb.XGBRegressor(**common).fit(X, score)
    classifier = xgb.XGBClassifier(**common).fit(X, score > 0.3)
    return X, regressor, classifier


DENSITIES = {
    "Mixture": lambda: kh.Mixture(6, n_init=1, random_state=0),
    "GaussianMixture": lambda: kh.GaussianMixture(2, random_state=0),
}


@pytest.fixture(scope="module")
def densities(models):
    return {name: make().fit(models[0]) for name, make in DENSITIES.items()}


def z_scores(model, density, kind):
    """Errors in units of the standard error that is reported, over rows and seeds.

    The truth is the mean answer of many other seeds, each with a small tolerance.
    """
    ensemble = read(model)
    rows = missingness.mcar(table(ROWS, 5), 0.35, 6)

    spread = Expectation.of(ensemble, density).spread

    def ask(seed, tol):
        expectation = Expectation.of(ensemble, density, tol=tol, seed=seed, spread=spread)
        evidence = expectation.evidence(rows)
        if kind == "std":
            return expectation.std(evidence)
        return expectation.predict(evidence)

    truth = np.mean([ask(1000 + seed, 0.0015)[0] for seed in range(6)], axis=0)
    z, met = [], []
    for seed in range(SEEDS):
        answer, error = ask(seed, SHARE)
        drawn = error > 0
        z.append(((answer - truth)[drawn] / error[drawn]).ravel())
        met.append((error <= SHARE * spread.prediction * (1 + 1e-9)).ravel())
    return np.concatenate(z), np.concatenate(met)


@pytest.mark.parametrize(
    ("name", "model"), [("GaussianMixture", 1), ("GaussianMixture", 2), ("Mixture", 2)]
)
@pytest.mark.filterwarnings("ignore::knothole.errors.ToleranceMissed")
def test_standard_errors_are_honest(models, densities, name, model):
    """Bounds for thousands of rows; fewer, as here, have a little more room."""
    z, met = z_scores(models[model], densities[name], "predict")
    slack = 0 if FULL else 0.03
    assert abs(z.mean()) < 0.1 + slack
    assert 0.8 - slack < z.std() < 1.2 + slack
    assert 0.04 - slack < (np.abs(z) > norm.ppf(0.975)).mean() < 0.07 + slack
    assert met.mean() >= 0.99


@pytest.mark.filterwarnings("ignore::knothole.errors.ToleranceMissed")
def test_standard_errors_of_spreads_are_honest(models, densities):
    z, met = z_scores(models[1], densities["GaussianMixture"], "std")
    assert abs(z.mean()) < 0.3  # a square root: its mean is a little below
    assert 0.7 < z.std() < 1.3
    assert met.mean() >= 0.99


def test_a_smaller_tolerance_is_met_too(models, densities):
    X, regressor, _ = models
    rows = missingness.mcar(X[:50], 0.3, 1)
    robust = kh.wrap(regressor, X, density=densities["GaussianMixture"], tol=0.004)
    margin, error = robust.margin(rows, return_error=True)
    assert error.max() <= 0.004 * regressor.predict(X).std() * (1 + 1e-6)
    rough = kh.wrap(regressor, X, density=densities["GaussianMixture"], tol=None)
    assert np.abs(rough.margin(rows) - margin).max() > error.max()


@pytest.mark.parametrize("tol", [0, -1, "small", np.nan, np.inf])
def test_bad_tolerances_are_refused(models, densities, tol):
    X, regressor, _ = models
    with pytest.raises(InvalidInput, match="tol must be None or a number above 0"):
        kh.wrap(regressor, X, density=densities["Mixture"], tol=tol)


def test_what_cannot_be_reached_is_said(models, densities):
    X, regressor, _ = models
    robust = kh.wrap(regressor, X, density=densities["GaussianMixture"], tol=1e-7)
    rows = missingness.mcar(X[:5], 0.5, 1)
    with pytest.warns(ToleranceMissed, match=r"rows have a margin whose standard error"):
        robust.margin(rows)


def test_leaf_probabilities_times_values_are_the_margin(models, densities):
    """Rows with more draws for their margin have as many for their leaf probabilities."""
    X, regressor, _ = models
    robust = kh.wrap(regressor, X, density=densities["GaussianMixture"])
    rows = missingness.mcar(X[:40], 0.5, 2)
    ensemble = robust.ensemble_
    values = ensemble.value[:, 0] * ensemble.tree_weight[ensemble.leaf_tree]
    margin = robust.leaf_probabilities(rows) @ values + ensemble.base[0]
    np.testing.assert_allclose(margin, robust.margin(rows), rtol=1e-10, atol=1e-10)


def test_every_answer_can_be_returned_with_its_error(models, densities):
    X, regressor, classifier = models
    rows = missingness.mcar(X[:20], 0.4, 3)
    robust = kh.wrap(regressor, X, density=densities["GaussianMixture"], tol=0.05)
    prediction, std, error, std_error = robust.predict(rows, return_std=True, return_error=True)
    np.testing.assert_array_equal(prediction, robust.predict(rows))
    np.testing.assert_array_equal(robust.predict(rows, return_error=True)[1], error)
    quantiles, errors = robust.predict(rows, quantiles=[0.5], return_error=True)
    assert quantiles.shape == errors.shape == (20, 1)
    missing_mask = np.isnan(rows).any(axis=1)
    assert (
        (error[missing_mask] > 0).any()
        and (std_error[missing_mask] > 0).any()
        and (errors[missing_mask] > 0).any()
    )
    assert not error[~missing_mask].any() and not std[~missing_mask].any()
    other = kh.wrap(classifier, X, density=densities["Mixture"])
    proba, spread, error, its = other.predict_proba(rows, return_std=True, return_error=True)
    assert proba.shape == spread.shape == error.shape == its.shape == (20, 2)
    label, label_error = other.predict(rows, return_error=True)
    chosen = np.argmax(proba, axis=1)
    np.testing.assert_array_equal(label_error, error[np.arange(20), chosen])
    np.testing.assert_array_equal(label, other.classes_[chosen])


def test_rows_that_lack_only_categories_are_exact_under_a_gaussian_mixture():
    """Rare categories, which 64 draws may never meet, are all accounted for."""
    rng = np.random.default_rng(0)
    n = 2000
    X = pd.DataFrame({"x": rng.normal(size=n), "c": rng.choice(4, n, p=[0.9, 0.07, 0.02, 0.01])})
    X["c"] = X["c"].astype("category")
    y = X["x"] + np.array([0.0, 5.0, -20.0, 50.0])[X["c"].cat.codes]
    model = xgb.XGBRegressor(n_estimators=20, max_depth=3, enable_categorical=True).fit(X, y)
    density = kh.GaussianMixture(2, random_state=0)
    robust = kh.wrap(model, X, density=density)
    rows = X.head(30).copy()
    rows["c"] = rows["c"].where(np.arange(30) < 0)
    margin, error = robust.margin(rows, return_error=True)
    assert not error.any()
    evidence = robust.expectation_.evidence(rows)
    _, share = robust.density_.responsibilities(evidence)
    (distribution,) = robust.density_.distributions_
    chance = share @ np.exp(distribution.natural().table).T
    slow = np.zeros(30)
    for code, level in enumerate(robust.columns_[1].levels):
        filled = rows.assign(c=pd.Categorical([level] * 30, categories=X["c"].cat.categories))
        slow += chance[:, code] * model.predict(filled)
    np.testing.assert_allclose(margin, slow, rtol=1e-5)


@pytest.mark.parametrize("circuit", [False, True])
def test_spreads_do_not_drown_in_a_large_common_value(circuit):
    """The variance is taken about a centre: outputs near 1.7e9 have the spread they have near 0."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    forest = RandomForestRegressor(4, max_depth=3, random_state=0).fit(X, X.sum(axis=1))
    ensemble = read(forest)
    shifted = ensemble.with_values(ensemble.value + 1.7e9)
    density = kh.Mixture(3, n_init=1, random_state=0).fit(X)
    density = density.to_circuit() if circuit else density
    rows = missingness.mcar(X[:20], 0.4, 1)

    def spread(trees):
        expectation = Expectation.of(trees, density)
        return expectation.std(expectation.evidence(rows))[0]

    np.testing.assert_allclose(spread(shifted), spread(ensemble), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["Mixture", "LatentTree", "Circuit"])
@pytest.mark.parametrize("large", [1e9, 1e15])
@pytest.mark.parametrize("trees", ["one", "several"])
def test_leaves_that_a_row_cannot_reach_do_not_drown_its_spread(kind, large, trees):
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=3000), rng.random(3000) < 0.5])
    X[:30, 0] = 50.0
    far = X[:, 0] > 20
    tree = DecisionTreeRegressor(max_depth=3, random_state=0)
    ensemble = read(tree.fit(X, np.where(far, large, X[:, 1])))
    if trees == "several":  # the large values of two trees cancel, and a third matters too
        forest = RandomForestRegressor(3, max_depth=4, random_state=0, max_features=None)
        ensemble = read(forest.fit(X, np.where(far, large, X[:, 1] + (X[:, 0] > 0))))
    density = kh.LatentTree(2, random_state=0) if kind == "LatentTree" else None
    density = density or kh.Mixture(2, random_state=0)
    density = density.fit(X)
    row = np.array([[0.1, np.nan]])
    chance = np.exp(density.log_mass(row, {"x1": (0.5, np.inf)}) - density.score_samples(row))
    fitted = density.to_circuit() if kind == "Circuit" else density
    expectation = Expectation.of(ensemble, fitted)
    std, error = expectation.std(expectation.evidence(row))
    low, high = ensemble.predict(np.array([[0.1, 0.0], [0.1, 1.0]]))
    expected = np.abs(high - low) * np.sqrt(chance * (1 - chance))
    assert error == 0 and expected > 0.2
    np.testing.assert_allclose(std[0], expected, rtol=1e-6)


@pytest.mark.parametrize("kind", ["tree", "boosted"])
def test_probabilities_match_enumeration(kind):
    """Discrete columns: every draw can be weighed. One tree is exact, many are drawn well."""
    rng = np.random.default_rng(0)
    X = rng.integers(3, size=(600, 4)).astype(float)
    y = (X.sum(axis=1) + rng.normal(size=600)) > 4
    n = 1 if kind == "tree" else 30
    model = xgb.XGBClassifier(n_estimators=n, max_depth=3, n_jobs=1).fit(X, y)
    columns = kh.Columns.infer(pd.DataFrame(X.astype(int)).astype("category").to_numpy())
    density = kh.Mixture(3, n_init=1, families=dict.fromkeys(columns.names, "integer"))
    robust = kh.wrap(model, X, density=density)
    rows = missingness.mcar(X[:30], 0.4, 1)
    proba, error = robust.predict_proba(rows, return_error=True)
    evidence = robust.expectation_.evidence(rows)
    _, share = robust.density_.responsibilities(evidence)
    cells = np.array(np.meshgrid(*[np.arange(-3.0, 7.0)] * 4)).reshape(4, -1).T
    own = model.predict_proba(cells)[:, 1]
    terms = [e.log_density(cells[:, v]) for v, e in enumerate(robust.density_.distributions_)]
    for row, weights, p, e in zip(rows, share, proba[:, 1], error[:, 1], strict=True):
        missing = np.isnan(row)
        fits = (cells == row)[:, ~missing].all(axis=1)
        log = sum((terms[v][fits] for v in np.flatnonzero(missing)), np.zeros((fits.sum(), 3)))
        chance = np.exp(log) @ weights
        truth = (chance @ own[fits]) / chance.sum()
        assert abs(p - truth) < (1e-3 if kind == "tree" else 4 * e + 1e-3)
        assert e == 0 if kind == "tree" else e <= SHARE * 0.5


@pytest.mark.parametrize(("given", "points"), [("the truth", 1), ("learned", 3)])
def test_quantiles_cover_what_the_model_would_say(given, points):
    """Rows come from a known density; the intervals are about what is missing, and only that.

    Where the model's answer to the whole row lies among the quantiles is uniform, ties broken.
    """
    truth = kh.GaussianMixture(2, random_state=0).fit(table(3000, 1, 4))
    n = 12000 if FULL else 4000
    X = truth.sample(n)
    y = X[:, 0] + X[:, 1] * X[:, 2]
    model = xgb.XGBRegressor(n_estimators=40, max_depth=4, n_jobs=1).fit(X[:2000], y[:2000])
    density = truth if given == "the truth" else kh.GaussianMixture(2, random_state=1)
    robust = kh.wrap(model, X[:2000], density=density, tol=None)
    rows = missingness.mcar(X, 0.4, 2)
    missing_mask = np.isnan(rows).any(axis=1)
    found = robust.predict(rows[missing_mask], quantiles=np.linspace(0, 1, 201))
    own = robust.predict(X[missing_mask])[:, None]
    below, up_to = (found < own - 1e-9).mean(axis=1), (found <= own + 1e-9).mean(axis=1)
    place = below + np.random.default_rng(0).random(len(own)) * (up_to - below)
    chance = 0 if FULL else 0.01  # two standard errors of the rows of the small form, less one
    for level in (0.5, 0.8, 0.95):
        covered = (np.abs(2 * place - 1) <= level).mean()
        assert covered == pytest.approx(level, abs=points / 100 + chance)
    mean, std = robust.predict(rows[missing_mask], return_std=True)
    z = (own[:, 0] - mean)[std > 0] / std[std > 0]
    assert z.std() == pytest.approx(1, abs=0.05)


SUITE = ("concrete", "abalone", "titanic") if not FULL else None


@pytest.mark.slow
def test_default_tolerance_is_met_on_real_tables():
    folder = os.environ.get("KNOTHOLE_DATA")
    if not folder:
        pytest.skip("KNOTHOLE_DATA is not set")
    late = rows = 0
    for path in sorted((Path(folder) / "suite").glob("*.csv")):
        if SUITE and path.stem not in SUITE:
            continue
        data = pd.read_csv(path).sample(frac=1, random_state=0).head(800)
        X = data.drop(columns="target").select_dtypes("number").astype(float)
        target = data["target"]
        classify = target.nunique() < 6
        make = xgb.XGBClassifier if classify else xgb.XGBRegressor
        y = target.astype("category").cat.codes if classify else target
        model = make(n_estimators=60, max_depth=4, n_jobs=1).fit(X, y)
        robust = kh.wrap(model, X, density=kh.GaussianMixture(random_state=0))
        incomplete = missingness.mcar(X.head(300), 0.3, 1)
        ask = robust.predict_proba if classify else robust.predict
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ToleranceMissed)
            error = np.asarray(ask(incomplete, return_error=True)[1]).reshape(len(incomplete), -1)
        allowed = SHARE * robust.expectation_.spread.prediction.min()
        late += int((error > allowed * (1 + 1e-6)).any(axis=1).sum())
        rows += len(incomplete)
    assert rows and late <= 0.01 * rows


@pytest.mark.parametrize("normal_scores", [False, True])
def test_a_single_number_has_the_masses_of_its_intervals(normal_scores):
    """The slow twin: between two thresholds of the trees, every value has the same prediction.

    The mass of each such interval is the density's own, by another way.
    """
    X = table(800, 3, d=4)
    X[:, 1] = np.exp(X[:, 1])
    X[:, 2] = np.round(X[:, 2])
    y = X[:, 0] * X[:, 2] + X[:, 1] + X[:, 3]
    model = xgb.XGBRegressor(n_estimators=10, max_depth=3, n_jobs=1).fit(X, y)
    density = kh.GaussianMixture(3, normal_scores=normal_scores, random_state=0)
    robust = kh.wrap(model, X, density=density)
    ensemble, names = robust.ensemble_, robust.columns_.names
    for v in range(4):
        rows = X[:6].copy()
        rows[:, v] = np.nan
        margin, error = robust.margin(rows, return_error=True)
        assert not error.any()
        ends = [-np.inf, *np.unique(ensemble.threshold[ensemble.feature == v]), np.inf]
        base = robust.density_.score_samples(rows)
        slow, total = np.zeros(6), np.zeros(6)
        for low, high in itertools.pairwise(ends):
            mass = np.exp(robust.density_.log_mass(rows, {names[v]: (low, high)}) - base)
            inside = rows.copy()
            inside[:, v] = low if np.isfinite(low) else high - 1.0
            slow += mass * ensemble.margin(inside)[:, 0]
            total += mass
        np.testing.assert_allclose(total, 1, rtol=1e-9)
        np.testing.assert_allclose(margin, slow, rtol=1e-9, atol=1e-9 * np.ptp(y))


@pytest.mark.parametrize("classes", [2, 3])
def test_a_single_number_is_exact_through_links_under_a_mixture(classes):
    """The slow twin: the model's own probabilities in every interval, with the density's masses.

    A missing value that no tree asks about does not count, a second number does.
    """
    X = table(800, 3, d=5)
    X[:, 2] = np.round(X[:, 2])
    score = X[:, 0] * X[:, 2] + X[:, 1] + X[:, 3]
    y = np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))
    weights = np.ones(5) - np.eye(5)[4]
    common = {"n_estimators": 10, "max_depth": 3, "n_jobs": 1, "feature_weights": weights}
    model = xgb.XGBClassifier(**common, colsample_bytree=0.8, random_state=0).fit(X, y)
    robust = kh.wrap(model, X, density=kh.Mixture(4, n_init=1, random_state=0))
    ensemble, names = robust.ensemble_, robust.columns_.names
    assert not (ensemble.feature == 4).any()
    for v in range(4):
        rows = X[:6].copy()
        rows[:, v] = np.nan
        rows[3:, 4] = np.nan
        found, error = robust.predict_proba(rows, return_error=True)
        assert not error.any()
        ends = [-np.inf, *np.unique(ensemble.threshold[ensemble.feature == v]), np.inf]
        base = robust.density_.score_samples(rows)
        slow, total = np.zeros((6, classes)), np.zeros(6)
        for low, high in itertools.pairwise(ends):
            mass = np.exp(robust.density_.log_mass(rows, {names[v]: (low, high)}) - base)
            inside = np.nan_to_num(rows)
            inside[:, v] = low if np.isfinite(low) else high - 1.0
            slow += mass[:, None] * robust.predict_proba(inside)
            total += mass
        np.testing.assert_allclose(total, 1, rtol=1e-9)
        np.testing.assert_allclose(found, slow, rtol=1e-8, atol=1e-9)
        rows[:, (v + 1) % 4] = np.nan
        assert (robust.predict_proba(rows, return_error=True)[1] > 0).all()


@pytest.mark.parametrize("normal_scores", [False, True])
def test_rows_that_lack_a_single_number_are_exact_under_a_gaussian_mixture(normal_scores):
    """Against many draws of that number, sorted: the slow twin is a mean over quantiles."""
    rng = np.random.default_rng(1)
    group = rng.integers(2, size=1500)
    X = pd.DataFrame({"x": rng.normal(size=1500) + 3 * group, "w": rng.exponential(size=1500)})
    X["n"] = rng.poisson(2 + 2 * group)
    X["c"] = pd.Categorical(np.where(group + rng.normal(size=1500) > 0.5, "a", "b"))
    y = X["x"] * X["w"] + X["n"] + (X["c"] == "a")
    model = xgb.XGBRegressor(n_estimators=8, max_depth=3, enable_categorical=True).fit(X, y)
    density = kh.GaussianMixture(3, normal_scores=normal_scores, random_state=0)
    robust = kh.wrap(model, X, density=density)
    for column in ("x", "w", "n"):
        rows = X.head(12).assign(**{column: np.nan}).astype({column: float})
        margin, error = robust.margin(rows, return_error=True)
        assert not error.any()
        ensemble = robust.ensemble_
        values = ensemble.value[:, 0] * ensemble.tree_weight[ensemble.leaf_tree]
        probabilities = robust.leaf_probabilities(rows)
        np.testing.assert_allclose(probabilities @ values + ensemble.base[0], margin, rtol=1e-12)
        totals = np.add.reduceat(probabilities.toarray(), ensemble.leaf_start[:-1], axis=1)
        np.testing.assert_allclose(totals, 1, rtol=1e-12)
        drawn = robust.density_.complete(rows, draws=64 * 128)
        slow = ensemble.predict(drawn.reshape(-1, 4)).reshape(12, -1)
        spread = slow.std(axis=1) / np.sqrt(64)  # nets of 128 words are better than that
        assert (np.abs(slow.mean(axis=1) - margin) < 0.25 * spread + 1e-9).all()
