"""What to find out next: gains are those of enumeration, and what they promise comes true."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import xgboost
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.ensemble import RandomForestClassifier
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from tests.expectation.cases import random_case

import knothole as kh
from knothole.errors import ColumnMismatch, InvalidInput
from knothole.expectation.expectation import Expectation
from knothole.inspection.acquisition import Gains
from knothole.inspection.shapley import Players


def enumerated(expectation, evidence, row, v, between):
    """The gain of a category by its definition, one level after the other."""
    density, one = expectation.density, evidence[row : row + 1]
    hide = np.arange(one.points.shape[1])[None] == v
    allowed = {u: sets[0] for u, _, sets in one.restricted()}
    levels = range(len(density.variables_[v].levels))
    log_p, outputs = [], []
    for level in levels:
        told = one.hidden(hide)
        told.points[0, v] = level
        possible = v not in allowed or allowed[v][level]
        log_p.append(density.log_evidence(told)[0] if possible else -np.inf)
        outputs.append(expectation.predict(told)[0][0])
    p = np.exp(np.array(log_p) - max(log_p))
    now = expectation.predict(one)[0][0]
    return sum(w * between(then, now) for w, then in zip(p / p.sum(), outputs, strict=True))


# ---- exactly -------------------------------------------------------------------------------------


@pytest.mark.parametrize("density", ["Mixture", "LatentTree"])
def test_gains_of_categories_are_those_of_enumeration(density):
    case = random_case(1, density, n_rows=8, rate=0.5, numeric=False)
    expectation = Expectation.of(case.ensemble, case.density)
    evidence = expectation.columns.evidence(case.rows, case.missing_mask)
    gains = Gains(expectation, evidence, Players.of(expectation), "variance", False)
    gain, error = gains.single()
    missing_mask = np.isnan(evidence.points)
    assert_array_equal(np.isnan(gain), ~missing_mask)
    assert evidence.partly_observed().any()
    for row, v in zip(*np.nonzero(missing_mask), strict=True):
        expected = enumerated(expectation, evidence, row, v, lambda a, b: ((a - b) ** 2).sum())
        assert_allclose(gain[row, v], expected, atol=1e-10)
    assert (error[missing_mask] == 0).all()


def test_gains_of_all_missing_values_are_what_the_variance_loses():
    """One missing value left: finding it out takes off the whole variance."""
    codes = np.random.default_rng(0).integers(3, size=(300, 3))
    table = pd.DataFrame(codes.astype(str), columns=list("abc")).astype("category")
    model = xgboost.XGBRegressor(n_estimators=5, max_depth=4, enable_categorical=True)
    model.fit(table, codes[:, 0] * codes[:, 1] + codes[:, 2])
    robust = kh.wrap(model, table, density=kh.Mixture(3, random_state=0))
    rows = table[:6].copy()
    rows["b"] = pd.Categorical([None] * 6, categories=["0", "1", "2"])
    found = robust.acquire(rows)
    std = robust.predict(rows, return_std=True)[1]
    assert_allclose(found.gain["b"], std**2, rtol=1e-9)
    assert found.gain[["a", "c"]].isna().all().all() and (found.best == "b").all()


@pytest.mark.parametrize("criterion", ["brier", "entropy"])
@pytest.mark.parametrize("several", [False, True])
def test_gains_of_classifiers(criterion, several):
    codes = np.array(list(product(range(2), repeat=3)) * 20)
    label = codes.sum(axis=1) if several else codes.sum(axis=1) > 1
    label = np.array(["a", "b", "c", "d"])[label] if several else label
    table = pd.get_dummies(pd.DataFrame(codes.astype(str), columns=list("xyz"))).astype(float)
    model = DecisionTreeClassifier(max_depth=2, random_state=0).fit(table, label)
    robust = kh.wrap(model, table, density=kh.Factorized(), one_hot="auto")
    row = table[:1] * np.nan
    row[["x_0", "x_1"]] = [0.0, 1.0]
    found = robust.acquire(row, criterion=criterion)
    now = robust.predict_proba(row).to_numpy()[0]
    for name in "yz":
        told = [row.assign(**{f"{name}_0": 1.0 - c, f"{name}_1": c}) for c in (0.0, 1.0)]
        then = [robust.predict_proba(each).to_numpy()[0] for each in told]
        if criterion == "brier":
            expected = np.mean([((p - now) ** 2).sum() for p in then]) * (1 if several else 0.5)
        else:
            terms = [p[p > 0] * np.log(p[p > 0] / now[p > 0]) for p in then]
            expected = np.mean([part.sum() for part in terms])
        assert_allclose(found.gain[name], expected, atol=1e-9)


# ---- what is promised comes true -----------------------------------------------------------------


def draw(density, n, seed):
    return density.columns_.decode(density.sample_points(n, np.random.default_rng(seed)))


@pytest.mark.parametrize("kind", ["Mixture", "GaussianMixture"])
def test_the_promised_fall_of_the_error_is_the_realised_one(kind):
    """Rows of the density itself: the squared error falls by the gain, within 5 %."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(800, 1)) + rng.normal(size=(800, 4)) * [0.3, 0.6, 1.0, 1.5]
    model = xgboost.XGBRegressor(n_estimators=20, max_depth=4).fit(X, X[:, 0] * X[:, 1] + X[:, 2])
    density = {"Mixture": kh.Mixture(5), "GaussianMixture": kh.GaussianMixture(2)}[kind]
    density = density.set_params(random_state=0).fit(X)
    robust = kh.wrap(model, X, density=density)
    truth = draw(density, 3000, 1)
    rows = truth.copy()
    rows[:, :3] = np.nan
    found = robust.acquire(rows)
    f = robust.predict(truth)
    before = (f - robust.predict(rows)) ** 2
    for j in range(3):
        told = rows.copy()
        told[:, j] = truth[:, j]
        fall = before - (f - robust.predict(told)) ** 2
        promised = found.gain[f"x{j}"].to_numpy()
        noise = (fall - promised).std() / np.sqrt(len(fall))
        assert abs(fall.mean() - promised.mean()) < 0.05 * before.mean() + 3 * noise
        assert noise < 0.05 * before.mean()
        if j < 2:
            assert abs(fall.mean() / promised.mean() - 1) < 0.05 + 3 * noise / promised.mean()


def test_errors_of_drawn_gains_hold():
    """Against many more draws, z has the standard deviation 1 or less."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 1)) + rng.normal(size=(600, 4))
    model = xgboost.XGBClassifier(n_estimators=20, max_depth=3).fit(X, X.sum(axis=1) > 0.5)
    density = kh.GaussianMixture(2, random_state=0).fit(X)
    rows = X[:40].copy()
    rows[:, :2] = np.nan
    found = [kh.wrap(model, X, density=density, random_state=s).acquire(rows) for s in range(12)]
    gain = np.array([each.gain[["x0", "x1"]].to_numpy() for each in found])
    error = np.array([each.error[["x0", "x1"]].to_numpy() for each in found])
    apart = gain.std(axis=0, ddof=1)
    assert 0.6 < np.sqrt((apart**2).mean() / (error**2).mean()) < 1.25
    assert (error < 0.25 * gain.max()).all()


# ---- what is best --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def robust():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(600, 5)), columns=list("abcde"))
    y = 3 * X["a"] + 2 * X["b"] + X["c"] * X["d"]
    model = xgboost.XGBRegressor(n_estimators=40, max_depth=3).fit(X, y)
    return kh.wrap(model, X, density=kh.Factorized())


def nothing(n=1):
    return pd.DataFrame(np.full((n, 5), np.nan), columns=list("abcde"))


def test_cost_decides_with_the_gain(robust):
    plain = robust.acquire(nothing())
    assert plain.best[0] == "a"
    dear = robust.acquire(nothing(), cost={"a": 100.0})
    assert dear.best[0] == "b"
    assert_allclose(dear.per_cost["a"], plain.gain["a"] / 100)
    table = dear.table()
    assert table["variable"].iloc[0] == "b" and table["best"].tolist() == [True] + [False] * 4
    assert table.columns.tolist() == ["row", "variable", "gain", "error", "per_cost", "best"]
    assert "per_cost" in dear._repr_html_()


def test_columns_that_come_together_count_as_one(robust):
    alone = robust.acquire(nothing())
    found = robust.acquire(nothing(), groups={"blood": ["c", "d"]})
    assert found.gain.columns.tolist() == ["a", "b", "blood", "e"]
    # What c and d say is worth something together, and nothing apart: f has their product.
    assert found.gain["blood"][0] > 4 * (alone.gain["c"][0] + alone.gain["d"][0])


def test_a_budget_gives_a_plan(robust):
    assert robust.acquire(nothing(), budget=2).plan[0] == ("a", "b")
    assert robust.acquire(nothing(), cost={"a": 5.0}, budget=2).plan[0][0] == "b"
    whole = robust.acquire(nothing(), budget=9).plan[0]
    assert whole[:2] == ("a", "b") and "e" not in whole  # which the model does not use
    assert len(set(whole)) == len(whole)
    row = nothing().assign(a=1.0, b=0.0, c=0.0, d=0.0, e=0.0)
    complete = robust.acquire(row, budget=3)
    assert complete.plan[0] == () and complete.best[0] is None
    assert complete.gain.isna().all().all() and complete.table().empty


def test_a_column_that_repeats_another_is_planned_once():
    rng = np.random.default_rng(0)
    code = rng.integers(2, size=400)
    X = pd.DataFrame({"a": code, "b": code, "c": rng.normal(size=400)}).astype(float)
    model = DecisionTreeRegressor(max_depth=4).fit(X, 3 * X["a"] + X["c"])
    robust = kh.wrap(model, X, density=kh.Mixture(2, random_state=0))
    plan = robust.acquire(pd.DataFrame([[np.nan] * 3], columns=X.columns), budget=2).plan[0]
    assert len(plan) == 2 and plan[1] == "c"


def test_a_label_that_is_sure_needs_nothing_more():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(500, 2)), columns=["a", "b"])
    model = RandomForestClassifier(20, max_depth=4, random_state=0).fit(
        X, X["a"] + 0.2 * X["b"] > 0
    )
    robust = kh.wrap(model, X, density=kh.Factorized())
    rows = pd.DataFrame({"a": [2.0, 0.02, np.nan], "b": [np.nan, np.nan, np.nan]})
    found = robust.acquire(rows, stop=0.95)
    assert found.change[0] < 0.05 and 0.2 < found.change[1] < 0.8 and 0.3 < found.change[2] < 0.7
    assert found.best.tolist() == [None, "b", "a"]
    assert robust.acquire(rows).best.tolist() == ["b", "b", "a"]
    draws = robust.impute(rows, n_draws=2000)
    labels = robust.predict(draws.drop(columns="draw")).to_numpy().reshape(2000, 3)
    assert_allclose(
        (labels != robust.predict(rows).to_numpy()).mean(axis=0), found.change, atol=0.05
    )


def test_one_row_one_answer(robust):
    rng = np.random.default_rng(1)
    rows = pd.DataFrame(rng.normal(size=(30, 5)), columns=list("abcde"))
    rows = rows.mask(rng.random(rows.shape) < 0.5)
    whole = robust.acquire(rows, budget=2)
    again = robust.acquire(rows[::-1], budget=2)
    pd.testing.assert_frame_equal(again.gain[::-1], whole.gain, check_exact=True)
    pd.testing.assert_frame_equal(again.error[::-1], whole.error, check_exact=True)
    assert again.plan[::-1].tolist() == whole.plan.tolist()
    one = robust.acquire(rows[7:8], budget=2)
    pd.testing.assert_frame_equal(one.gain, whole.gain[7:8], check_exact=True)


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"cost": {"z": 1.0}}, InvalidInput, "cost names 'z'"),
        ({"cost": {"a": 0.0}}, InvalidInput, "cost must be numbers above 0"),
        ({"cost": {"a": np.nan}}, InvalidInput, "cost must be numbers above 0"),
        ({"criterion": "brier"}, InvalidInput, "left out for a regressor"),
        ({"criterion": "gini"}, InvalidInput, "criterion must be"),
        ({"stop": 0.9}, InvalidInput, "stop must be between 0 and 1, and is for classifiers"),
        ({"budget": 0}, InvalidInput, "budget must be None or a number above 0"),
        ({"groups": {"g": ["z"]}}, ColumnMismatch, "names column 'z'"),
    ],
)
def test_bad_input_is_refused(robust, options, error, message):
    with pytest.raises(error, match=message):
        robust.acquire(nothing(), **options)


def test_noise_of_draws_is_no_gain():
    """Nothing is found out, and yet every group of draws has means of its own."""
    rng, rows, levels, groups = np.random.default_rng(0), 400, 5, 8
    then = rng.normal(size=(rows * levels, groups, 1))
    expectation = SimpleNamespace(by_group=lambda *how: then)
    gains = object.__new__(Gains)
    now = rng.normal(size=(rows, groups, 1))
    gains.__dict__.update(expectation=expectation, criterion="variance", binary=False, _now=now)
    gain, _ = gains._weighed(np.arange(rows), None, np.full((rows, levels), 1 / levels))
    assert abs(gain.mean()) < 4 * gain.std() / np.sqrt(rows)
    by_chance = 2 / groups  # the variance of a mean then, and of the one now
    assert gain.std() / np.sqrt(rows) < by_chance / 10
