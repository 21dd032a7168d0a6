"""What answers look like when they are printed: short tables that name the class and the unit."""

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
)

import knothole as kh
from knothole.inspection.acquisition import SHOWN


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    z = rng.normal(size=200)
    return pd.DataFrame({"a": z, "b": z + 0.5 * rng.normal(size=200), "c": rng.normal(size=200)})


@pytest.fixture(scope="module")
def incomplete(table):
    return kh.missingness.mcar(table, 0.4, 1)


def wrapped(table, labels):
    model = RandomForestClassifier(5, max_depth=3, random_state=0).fit(table, labels)
    return kh.wrap(model, table, density="mixture")


@pytest.fixture(scope="module")
def two(table):
    labels = np.where(table["a"] > 0, "high", "low")
    model = HistGradientBoostingClassifier(max_iter=5, max_depth=3).fit(table, labels)
    return kh.wrap(model, table, density="mixture")


@pytest.fixture(scope="module")
def three(table):
    return wrapped(table, np.array(["x", "y", "z"])[np.digitize(table["a"], [-0.5, 0.5])])


@pytest.fixture(scope="module")
def regressor(table):
    model = RandomForestRegressor(5, max_depth=3, random_state=0).fit(table, table["a"])
    return kh.wrap(model, table, density="mixture")


def test_an_explanation_names_the_class_and_where_it_starts(two, incomplete):
    found = two.explain(incomplete[:8])
    lines = repr(found).splitlines()
    assert lines[0] == "Explanation of the probability of 'low' of 8 rows"
    assert lines[1] == f"{found.base:.4g} where nothing is known; each column adds:"
    assert lines[2].split() == ["a", "b", "c"]
    assert lines[-1] == "and 3 more rows; .table() has all"
    assert "probability of &#x27;low&#x27;" in found._repr_html_()
    assert repr(two.explain(incomplete[:1], of="margin")).startswith(
        "Explanation of the margin of 1 row\n"
    )


def test_an_explanation_of_several_classes_has_a_table_of_all(three, incomplete):
    found = three.explain(incomplete[:3])
    shown = repr(found)
    assert shown.startswith("Explanation of the probabilities of 3 rows\n")
    assert all(f"\n'{label}':\n" in shown for label in "xyz")
    everything = found.table()
    assert everything.shape == (9, 3) and everything.index.names == [None, "output"]
    for label in "xyz":
        pd.testing.assert_frame_equal(
            everything.xs(label, level="output"), found.table(label), check_names=False
        )


def test_an_acquisition_names_the_unit(two, regressor, incomplete, table):
    rows = incomplete[:10]
    found = regressor.acquire(rows)
    assert repr(found).startswith(
        "Acquisition of 10 rows: how much lower the variance of the prediction is expected to be\n"
    )
    assert len(repr(found).splitlines()) <= SHOWN + 3
    assert "per_cost" not in repr(found)
    assert "per_cost" in repr(regressor.acquire(rows, cost={"a": 2.0}))
    assert (
        "Brier score" in repr(two.acquire(rows))
        and "Brier score" in two.acquire(rows)._repr_html_()
    )
    assert "entropy" in repr(two.acquire(rows, criterion="entropy"))
    nothing = repr(regressor.acquire(table[:2]))
    assert nothing == "Acquisition of 2 rows: no missing values here, nothing to gain"


def test_gains_that_are_nothing_are_said_so():
    rows = pd.DataFrame({"a": np.arange(40.0) % 2, "b": np.arange(40.0) % 4 // 2})
    model = RandomForestRegressor(1, bootstrap=False).fit(rows, rows["a"])
    missing = pd.DataFrame({"a": [np.nan], "b": [np.nan]})
    shown = repr(kh.wrap(model, rows, density="independent").acquire(missing)).splitlines()
    assert shown[2].split() == ["0", "a", "0.25", "True"]
    assert shown[3].split() == ["0", "b", "about", "0", "False"]


def test_a_model_names_the_metric_of_its_choice_and_its_correction(table):
    candidates = [kh.Factorized(), kh.Mixture(n_components=4, random_state=0)]
    model = RandomForestRegressor(5, max_depth=3, random_state=0).fit(table, table["a"])
    robust = kh.wrap(model, table, table["a"], candidates)
    chosen = robust.selection_.iloc[0]
    assert chosen["metric"] == "RMSE"
    assert chosen["value"] == pytest.approx(np.sqrt(-chosen["score"]))
    assert f"held-out RMSE of {chosen['value']:.4g} (next: independent, " in repr(robust)
    assert "score" not in repr(robust)
    assert "correct" in repr(robust) and "\n" not in repr(robust)
    labels = np.where(table["a"] > 0, "high", "low")
    classifier = RandomForestClassifier(5, max_depth=3, random_state=0).fit(table, labels)
    robust = kh.wrap(classifier, table, labels, candidates)
    chosen = robust.selection_.iloc[0]
    assert chosen["metric"] == "log loss" and chosen["value"] == -chosen["score"]


def test_refitting_a_complete_table_has_nothing_to_gain(regressor, table, incomplete, tmp_path):
    refitted = regressor.refit_leaves(table, table["a"])
    assert "rows without missing values: nothing to gain" in repr(refitted)
    refitted.save(tmp_path / "model.knothole")
    assert kh.load(tmp_path / "model.knothole").refit_.complete
    assert "nothing to gain" not in repr(regressor.refit_leaves(incomplete, table["a"]))


def test_a_loaded_gaussian_mixture_can_be_refitted(table, incomplete, tmp_path):
    model = RandomForestRegressor(2, max_depth=2, random_state=0).fit(table, table["a"])
    kh.wrap(model, table, density="gaussian-mixture").save(tmp_path / "model.knothole")
    refitted = kh.load(tmp_path / "model.knothole").refit_leaves(incomplete, table["a"])
    assert refitted.refit_.before != refitted.refit_.after


def test_a_conformalized_model_says_so(regressor, table):
    assert "conformalized" not in repr(regressor)
    found = regressor.conformalize(table, table["a"])
    assert "conformalized with 160 rows" in repr(found) and "conformalized" in found._repr_html_()
