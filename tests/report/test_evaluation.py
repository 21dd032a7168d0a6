"""What the report measures, against the libraries' own predictions and slow twins."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.tree import DecisionTreeClassifier

import knothole as kh
from knothole import missingness
from knothole.errors import InvalidInput
from knothole.report import Case, evaluate
from knothole.report.evaluation import (
    Comparison,
    asked,
    compare,
    coverage,
    density_fit,
    evaluation_steps,
    outages,
)
from knothole.report.methods import (
    DRAWS,
    ITERATIVE,
    KNOTHOLE,
    MEDIAN,
    METHODS,
    NATIVE,
    FrozenTrees,
    Method,
    as_frame,
)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = 500
    common = rng.normal(size=n)
    return pd.DataFrame(
        {
            "size": common + 0.3 * rng.normal(size=n),
            "weight": 2 * common + 0.4 * rng.normal(size=n),
            "age": rng.integers(1, 30, n).astype(float),
            "city": pd.Categorical(rng.choice(["Graz", "Linz", "Wien"], n)),
        }
    )


@pytest.fixture(scope="module")
def target(table) -> np.ndarray:
    return (3 * table["size"] + 0.1 * table["age"] + (table["city"] == "Graz")).to_numpy()


@pytest.fixture(scope="module")
def model(table, target) -> xgboost.XGBRegressor:
    made = xgboost.XGBRegressor(n_estimators=15, max_depth=3, enable_categorical=True, n_jobs=1)
    return made.fit(table[:350], target[:350])


@pytest.fixture(scope="module")
def case(table, target, model) -> Case:
    density = kh.Mixture(n_components=4, random_state=0)
    robust = kh.wrap(model, table[:350], density=density)
    return Case.of(robust, table[:350], table[350:], target[350:], target[:350])


def rmse(predicted, target) -> float:
    return float(np.sqrt(np.mean((np.asarray(predicted) - target) ** 2)))


def test_frozen_trees_answer_as_the_library_does(case, model, table):
    incomplete = missingness.mcar(table, 0.4, 1)
    ours = FrozenTrees(case.robust).predict(incomplete)
    np.testing.assert_allclose(ours, model.predict(incomplete), rtol=1e-5, atol=1e-5)


def test_errors_are_those_of_the_methods_done_by_hand(case, model, table, target):
    found = compare(case, Comparison((0.0, 0.4), 2, (KNOTHOLE, NATIVE, MEDIAN)))
    train, test, truth = table[:350], table[350:].reset_index(drop=True), target[350:]
    for repeat in range(2):
        incomplete = missingness.mcar(test, 0.4, 1000 * repeat + 1)
        middle = {name: train[name].median() for name in ("size", "weight", "age")}
        filled = incomplete.fillna(middle | {"city": train["city"].mode()[0]})
        by_hand = {
            KNOTHOLE: case.robust.predict(incomplete),
            NATIVE: model.predict(incomplete),
            MEDIAN: model.predict(filled),
        }
        for method, predicted in by_hand.items():
            error = found.errors["RMSE"][method][1, repeat]
            assert error == pytest.approx(rmse(predicted, truth), rel=1e-5)
    complete = rmse(model.predict(test), truth)
    for errors in found.errors["RMSE"].values():
        assert errors[0] == pytest.approx([complete, complete], rel=1e-5)
    assert found.constant["RMSE"] == pytest.approx(rmse(target[:350].mean(), truth))


def test_all_methods_share_rows_and_advance(case):
    told = []
    comparison = Comparison(rates=(0, 0.3), repeats=1)
    found = evaluate(case, comparison, advance=told.append)
    assert list(found.robustness.errors["RMSE"]) == list(METHODS)
    assert len(told) == evaluation_steps(case, comparison)
    assert found.robustness.table().loc[KNOTHOLE, 0.3] < found.robustness.table().loc[NATIVE, 0.3]
    assert found.robustness.labels[NATIVE] == "XGBoost alone"


def test_methods_that_take_too_long_are_left_out(case, monkeypatch):
    clock = [0.0]
    costs = {KNOTHOLE: 9.0, MEDIAN: 0.001, NATIVE: 0.02}  # seconds a row

    def predict(self, table):
        name = MEDIAN if self.imputer else (KNOTHOLE if self.model is case.robust else NATIVE)
        clock[0] += 0.5 + costs[name] * len(table)
        return np.zeros(len(table))

    monkeypatch.setattr(Method, "predict", predict)
    monkeypatch.setattr("knothole.report.evaluation.time.perf_counter", lambda: clock[0])
    told = []
    comparison = Comparison((0.0, 0.3), 2, (KNOTHOLE, NATIVE, MEDIAN), patience=5.0)
    found = compare(case, comparison, advance=lambda *said: told.append((*said, 1.0)[1]))
    rows = len(case.test)
    assert found.left_out == {NATIVE: pytest.approx(2 * (0.5 + 0.02 * rows))}
    assert list(found.errors["RMSE"]) == [KNOTHOLE, MEDIAN]
    assert sum(told) == evaluation_steps(case, comparison) - 4
    assert not compare(case, replace(comparison, patience=None)).left_out


def test_questions_are_those_that_rows_are_asked(case):
    found = asked(case, rate=0.5, rows=12, seed=3)
    incomplete = missingness.mcar(case.test.iloc[:12], 0.5, 3)
    why = case.robust.explain(incomplete, tol=0.1)
    known = np.ma.masked_array(np.abs(why.values), mask=incomplete.isna().to_numpy())
    by_name = dict(zip(why.data.columns, known.mean(axis=0), strict=True))
    assert found.adds.to_dict() == pytest.approx(by_name)
    assert found.adds.is_monotonic_decreasing and (found.adds > 0).any()
    gain = case.robust.acquire(incomplete).gain.mean()
    assert found.gains.to_dict() == pytest.approx(gain.to_dict()) and (gain > 0).any()


def test_averaged_draws_average_what_single_passes_average(case):
    """One pass over repeated rows has the distribution of many passes."""
    at_once = case.methods((DRAWS,))[DRAWS].learn(case.train)
    one_by_one = replace(case.methods((DRAWS,))[DRAWS], copies=1).learn(case.train)
    incomplete = missingness.mcar(case.test, 0.4, 3)

    def averaged():
        return np.mean([one_by_one.predict(incomplete) for _ in range(at_once.copies)], axis=0)

    assert at_once.copies == 20
    twin, ours = averaged(), at_once.predict(incomplete)
    passes = np.array([averaged() for _ in range(4)])  # each the mean of 20 draws
    spread = np.sqrt(passes.var(axis=0, ddof=1).mean() * 2)
    assert rmse(ours, twin) < 2 * spread
    assert rmse(ours, twin) > 0
    assert at_once.predict(case.test) == pytest.approx(case.robust.predict(case.test), rel=1e-6)


def test_outage_is_the_error_with_a_column_gone_and_sorted(case, model):
    found = outages(case)
    gone = case.test.assign(weight=np.nan)
    place = found.names.index("weight")
    own = rmse(model.predict(gone), case.target)
    assert found.errors[NATIVE][place] == pytest.approx(own, rel=1e-5)
    assert (np.diff(found.errors[NATIVE]) <= 0).all()
    assert sorted(found.names) == sorted(case.test.columns)


def test_coverage_of_the_right_density_is_what_it_promises():
    rng = np.random.default_rng(1)
    X = rng.integers(0, 2, size=(6000, 3)).astype(float)
    y = 4 * X[:, 0] + 2 * X[:, 1] + X[:, 2]
    model = xgboost.XGBRegressor(n_estimators=20, max_depth=3, n_jobs=1).fit(X[:3000], y[:3000])
    robust = kh.wrap(model, X[:3000], density=kh.Factorized())
    case = Case.of(robust, X[:3000], X[3000:], y[3000:])
    found = coverage(case, rates=(0.4,), levels=(0.2, 0.5, 0.8))
    # 2,350 rows have a missing value: a standard deviation of one percent; draws add a little.
    assert found.covered[0.4] == pytest.approx([0.2, 0.5, 0.8], abs=0.045)


def test_coverage_tells_a_density_that_is_too_narrow():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(1500, 2))
    y = X.sum(axis=1)
    model = xgboost.XGBRegressor(n_estimators=30, max_depth=3, n_jobs=1).fit(X, y)
    narrow = kh.Factorized().fit(0.2 * X)
    case = Case.of(kh.wrap(model, X, density=narrow), X, X, y)
    found = coverage(case, rates=(0.5,), levels=(0.5, 0.9))
    assert (found.covered[0.5] < [0.35, 0.6]).all()


def test_density_fit_agrees_with_data_and_tells_independence(case, model):
    fitted = density_fit(case, ["city", "weight"], shown=3)
    assert [marginal.name for marginal in fitted.marginals][:2] == ["city", "weight"]
    assert fitted.marginals[0].labels == ("Graz", "Linz", "Wien")
    shares = case.train["city"].value_counts(normalize=True).loc[["Graz", "Linz", "Wien"]]
    assert fitted.marginals[0].observed == pytest.approx(shares.to_numpy())
    assert fitted.marginals[1].observed.sum() == pytest.approx(1.0)
    assert all(marginal.distance < 0.15 for marginal in fitted.marginals)
    assert fitted.pairs[0].names in {("weight", "size"), ("size", "weight")}
    assert np.abs(fitted.observed).max() == pytest.approx(
        abs(case.train[["size", "weight"]].corr("spearman").iloc[0, 1])
    )
    flat = kh.wrap(model, case.train, density=kh.Factorized())
    independent = density_fit(Case.of(flat, case.train, case.test, case.target))
    assert np.abs(independent.modelled).max() < 0.1 < np.abs(independent.observed).max()


def test_a_classifier_has_log_loss_and_error_rate_and_labels_however_spelled(table, target):
    numbers = table.drop(columns="city")
    labels = np.where(target > 3, "high", np.where(target > 0, "mid", "low"))
    model = DecisionTreeClassifier(max_depth=4, random_state=0).fit(numbers[:350], labels[:350])
    robust = kh.wrap(model, numbers[:350], density=kh.Mixture(n_components=3, random_state=0))
    case = Case.of(robust, numbers[:350], numbers[350:], labels[350:])
    found = compare(case, Comparison((0.0, 0.3), 1, (KNOTHOLE, ITERATIVE)))
    assert list(found.errors) == ["log loss", "error rate"]
    own = 1 - model.score(numbers[350:], labels[350:])
    assert found.errors["error rate"][KNOTHOLE][0, 0] == pytest.approx(own)
    with pytest.raises(InvalidInput, match=r"the model's classes .* got 'none'"):
        Case.of(robust, numbers, numbers[:1], ["none"])


def test_a_model_that_refuses_nan_has_no_line_of_its_own(table, target):
    numbers = table.drop(columns="city")
    model = GradientBoostingRegressor(n_estimators=5).fit(numbers, target)
    robust = kh.wrap(model, numbers, density=kh.Factorized())
    case = Case.of(robust, numbers, numbers[:50], target[:50], takes_nan=False)
    assert NATIVE not in case.methods()
    assert list(outages(case).errors) == [KNOTHOLE]


def test_as_frame_keeps_missing_values_levels_and_order(case, table):
    incomplete = missingness.mcar(table, 0.5, 0)
    again = as_frame(incomplete, case.robust.columns_)
    pd.testing.assert_frame_equal(again, incomplete)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": [1.0]}, "one entry for each of the 150 test rows"),
        ({"target": ["a"] * 150}, "target must hold numbers"),
        ({"target": [np.nan] * 150}, "target must be finite everywhere; leave out rows"),
    ],
)
def test_bad_input_is_named(case, change, message):
    arguments = {"target": case.target} | change
    with pytest.raises(InvalidInput, match=message):
        Case.of(case.robust, case.train, case.test, **arguments)


def test_bad_arguments_are_named(case):
    with pytest.raises(InvalidInput, match="repeats must be a whole number from 1 on"):
        Comparison(repeats=0)
    with pytest.raises(InvalidInput, match="methods must be among"):
        compare(case, Comparison(methods=("magic",)))
