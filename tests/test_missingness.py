"""Each mechanism has the property that defines it, at exactly the rate asked for."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from knothole import missingness
from knothole.errors import ColumnMismatch, InvalidInput

ROWS = 4000


@pytest.fixture(scope="module")
def table() -> np.ndarray:
    """Correlated columns, so that a dependence on the wrong one would show."""
    rng = np.random.default_rng(5)
    mixing = rng.normal(size=(6, 6))
    return rng.normal(size=(ROWS, 6)) @ mixing


@pytest.fixture(scope="module")
def mixed() -> pd.DataFrame:
    rng = np.random.default_rng(6)
    return pd.DataFrame(
        {
            "age": rng.integers(18, 65, ROWS),
            "bmi": np.where(rng.random(ROWS) < 0.2, np.nan, rng.normal(30, 5, ROWS)),
            "smoker": rng.random(ROWS) < 0.2,
            "region": rng.choice(["north", "south", "east"], ROWS),
            "sex": pd.Categorical(rng.choice(["f", "m"], ROWS)),
        }
    )


def one_hot(mixed: pd.DataFrame) -> pd.DataFrame:
    return pd.get_dummies(mixed[["age", "region", "sex"]], dtype=float)


# --- the rate ------------------------------------------------------------------------------------

PROBABILITIES = {
    "mcar": lambda X, rate, seed: missingness.mcar_probability(X, rate),
    "mar": missingness.mar_probability,
    "self": missingness.mnar_probability,
    "quantile": lambda X, rate, seed: missingness.mnar_probability(
        X, rate, seed, kind="quantile", share=min(1.0, rate + 0.2), tail="both"
    ),
}


@pytest.mark.parametrize("mechanism", PROBABILITIES)
@given(rate=st.floats(0, 1), seed=st.integers(0, 1000), rows=st.integers(2, 40))
@settings(max_examples=40, deadline=None)
def test_probabilities_average_to_the_rate(mechanism, rate, seed, rows):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 4)).round(1)  # ties
    X[0, 0] = np.nan
    p = PROBABILITIES[mechanism](X, rate, seed)
    known = ~np.isnan(X)
    mean = np.array([p[known[:, j], j].mean() for j in range(4)])
    can = p.any(axis=0)
    assert can.any() or rate < 1e-300
    np.testing.assert_allclose(mean[can], rate, rtol=1e-9, atol=1e-12)
    assert (p >= 0).all() and (p <= 1).all()


@pytest.mark.parametrize(
    "mask", [missingness.mcar_mask, missingness.mar_mask, missingness.mnar_mask]
)
def test_masks_are_drawn_from_their_probabilities(table, mask):
    missing = mask(table, 0.3, 11)
    columns = missing.any(axis=0)
    count = missing[:, columns].sum()
    total = missing[:, columns].size
    assert abs(count - 0.3 * total) < 4 * np.sqrt(total * 0.3 * 0.7)
    again = mask(table, 0.3, 11)
    np.testing.assert_array_equal(missing, again)
    assert (missing != mask(table, 0.3, 12)).any()


# --- what it depends on --------------------------------------------------------------------------


def association(mask: np.ndarray, values: np.ndarray) -> float:
    """P-value of independence of a mask and the decile of values."""
    decile = np.searchsorted(np.quantile(values, np.linspace(0.1, 0.9, 9)), values)
    counts = np.array([[np.sum(mask[decile == d] == m) for d in range(10)] for m in (False, True)])
    return float(stats.chi2_contingency(counts).pvalue)


def test_mcar_depends_on_nothing(table):
    mask = missingness.mcar_mask(table, 0.3, 0)
    p_values = [association(mask[:, i], table[:, j]) for i in range(6) for j in range(6)]
    assert stats.kstest(p_values, "uniform").pvalue > 0.01
    between = np.corrcoef(mask.T)[np.triu_indices(6, 1)]
    assert np.abs(between).max() < 4 / np.sqrt(ROWS)


def logistic_z(mask: np.ndarray, predictors: np.ndarray) -> np.ndarray:
    """Wald z of each predictor in a logistic regression of the mask, by Newton's method."""
    Z = np.column_stack([np.ones(len(predictors)), predictors])
    beta = np.zeros(Z.shape[1])
    for _ in range(25):
        p = 1 / (1 + np.exp(-Z @ beta))
        information = (Z * (p * (1 - p))[:, None]).T @ Z
        beta = beta + np.linalg.solve(information, Z.T @ (mask - p))
    return (beta / np.sqrt(np.diag(np.linalg.inv(information))))[1:]


def test_mar_depends_on_observed_columns_and_given_them_not_on_the_masked_one(table):
    mask = missingness.mar_mask(table, 0.3, 1, observed=[0, 3])
    assert not mask[:, [0, 3]].any()
    for j in (1, 2, 4, 5):
        z = logistic_z(mask[:, j], np.column_stack([table[:, [0, 3]], table[:, j]]))
        assert np.abs(z[:2]).max() > 8
        assert abs(z[2]) < 3.5
    assert association(mask[:, 1], table[:, 1]) < 1e-6  # without them it does, by correlation


def test_mar_probabilities_are_a_function_of_the_observed_columns(table):
    other = table.copy()
    other[:, [1, 2, 4, 5]] = np.random.default_rng(8).normal(size=(ROWS, 4))
    one, two = (
        missingness.mar_probability(X, 0.3, 1, observed=[0, 3], reference=table)
        for X in (table, other)
    )
    np.testing.assert_array_equal(one, two)


def test_mar_is_as_strong_as_asked_whatever_drives_it(table):
    """The standard deviation of the log odds, with one driver and with three."""
    for observed in ([0], [0, 2, 3]):
        p = missingness.mar_probability(table, 0.3, 1, observed=observed, strength=1.5)
        others = [j for j in range(p.shape[1]) if j not in observed]
        p = p[:, others]
        np.testing.assert_allclose(np.log(p / (1 - p)).std(axis=0), 1.5)


def test_mar_reads_missing_values_of_observed_columns_as_the_mean():
    X = np.array([[1.0, 0.0], [3.0, 0.0], [np.nan, 0.0], [2.0, 0.0]])
    p = missingness.mar_probability(X, 0.5, 0, observed=[0])
    assert p[2, 1] == p[3, 1]


@pytest.mark.parametrize("strength", [-2.0, 2.0])
def test_self_masking_depends_on_the_entry_itself(table, strength):
    p = missingness.mnar_probability(table, 0.3, 0, strength=strength)
    for j in range(6):
        order = np.argsort(table[:, j])
        steps = np.diff(p[order, j])
        assert (steps * strength >= 0).all() and p[:, j].std() > 0.1
    mask = missingness.mnar_mask(table, 0.3, 0, strength=strength)
    gap = table[mask[:, 2], 2].mean() - table[~mask[:, 2], 2].mean()
    assert gap * strength > table[:, 2].std()


def test_cut_off_takes_exactly_what_is_beyond_the_quantile(table):
    mask = missingness.mnar_mask(table, 0.2, 0, kind="quantile")
    np.testing.assert_array_equal(mask.sum(axis=0), ROWS // 5)
    for j in range(6):
        assert table[mask[:, j], j].min() > table[~mask[:, j], j].max()
    lower = missingness.mnar_mask(-table, 0.2, 0, kind="quantile", tail="lower")
    np.testing.assert_array_equal(lower, mask)
    both = missingness.mnar_mask(table, 0.2, 0, kind="quantile", tail="both", share=0.4)
    distance = np.abs(table - np.median(table, axis=0))
    assert not both[distance < np.quantile(distance, 0.6, axis=0)].any()


def test_cut_off_divides_ties():
    X = np.repeat([0.0, 1.0], [700, 300])[:, None]
    p = missingness.mnar_probability(X, 0.15, 0, kind="quantile").ravel()
    assert p[0] == 0 and p[-1] == pytest.approx(0.5)
    p = missingness.mnar_probability(X, 0.65, 0, kind="quantile").ravel()
    assert p[0] == pytest.approx(0.5) and p[-1] == 1


def test_categories_matter_for_mar_and_mnar(mixed):
    p = missingness.mar_probability(mixed, 0.3, 3, observed=["region"])
    by_region = pd.DataFrame(p, columns=mixed.columns).groupby(mixed["region"])["age"]
    assert (by_region.std() < 1e-12).all() and by_region.mean().std() > 0.05
    p = missingness.mnar_probability(mixed, 0.3, 3)[:, 3]
    assert pd.Series(p).groupby(mixed["region"]).mean().std() > 0.05


# --- training and deployment ---------------------------------------------------------------------


def test_one_mechanism_in_two_tables(table):
    train, test = table[:2000], table[2000:] + 1.0
    whole = missingness.mar_probability(table, 0.3, 4, reference=train)
    np.testing.assert_array_equal(missingness.mar_probability(train, 0.3, 4), whole[:2000])
    options = {"mechanism": 4, "reference": train}
    shifted = missingness.mar_probability(test, 0.3, 9, **options)
    np.testing.assert_array_equal(shifted.any(axis=0), whole.any(axis=0))
    assert abs(shifted[:, shifted.any(axis=0)].mean() - 0.3) > 1e-3  # the table moved, not the rate
    one, two = (missingness.mar_mask(test, 0.3, seed, **options) for seed in (9, 10))
    assert (one != two).any()
    np.testing.assert_array_equal(one.any(axis=0), two.any(axis=0))


def test_a_cut_off_stays_where_the_reference_has_it():
    reference, X = np.arange(10.0)[:, None], np.array([[3.5], [6.9], [7.5], [100.0]])
    mask = missingness.mnar_mask(X, 0.3, 0, kind="quantile", reference=reference)
    assert mask.ravel().tolist() == [False, False, True, True]


def test_a_category_that_the_reference_lacks_is_no_driver():
    reference = pd.DataFrame({"city": ["Graz", "Linz"], "size": [1.0, 2.0]})
    X = pd.DataFrame({"city": ["Wien", None], "size": [1.0, 2.0]})
    p = missingness.mar_probability(X, 0.3, 0, observed=["city"], reference=reference)
    assert p[0, 1] == p[1, 1] > 0


# --- one-hot groups ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mask", [missingness.mcar_mask, missingness.mar_mask, missingness.mnar_mask]
)
def test_before_encoding_the_dummies_of_a_one_hot_group_go_together(mixed, mask):
    X = one_hot(mixed)
    together = mask(X, 0.3, 2, one_hot="auto")
    assert (together[:, [1]] == together[:, 1:4]).all()
    assert (together[:, [4]] == together[:, 4:6]).all()
    alone = mask(X, 0.3, 2)
    assert (alone[:, [1]] != alone[:, 1:4]).any()


def test_masking_before_encoding_is_encoding_a_masked_table(mixed):
    raw = mixed[["age", "region", "sex"]]
    X = one_hot(mixed)
    mask = missingness.mcar_mask(X, 0.3, 2, one_hot="auto")
    of_variables = missingness.mcar_mask(raw, 0.3, 2)
    np.testing.assert_array_equal(mask[:, [0, 1, 4]], of_variables)


def test_outage_takes_columns_and_one_hot_groups(mixed):
    X = one_hot(mixed)
    assert missingness.outage_mask(X, ["region"], one_hot="auto").all(axis=0).tolist() == [
        False, True, True, True, False, False,
    ]  # fmt: skip
    assert missingness.outage_mask(X, ["region_east", -1]).sum(axis=0).tolist() == [
        0, ROWS, 0, 0, 0, ROWS,
    ]  # fmt: skip


# --- tables --------------------------------------------------------------------------------------


def test_a_frame_keeps_its_index_names_and_kinds(mixed):
    frame = mixed.set_index(np.arange(ROWS) * 2)
    before = frame.copy(deep=True)
    incomplete = missingness.mcar(frame, 0.4, 1)
    pd.testing.assert_frame_equal(frame, before)
    assert incomplete.columns.equals(frame.columns) and incomplete.index.equals(frame.index)
    assert incomplete["age"].dtype == incomplete["smoker"].dtype == np.float64
    assert (
        incomplete["sex"].dtype == frame["sex"].dtype
        and incomplete["region"].dtype == frame["region"].dtype
    )
    expected = frame.isna().to_numpy() | missingness.mcar_mask(frame, 0.4, 1)
    np.testing.assert_array_equal(incomplete.isna().to_numpy(), expected)
    kept = ~expected[:, 3]
    assert (incomplete["region"][kept] == frame["region"][kept]).all()


def test_missing_values_that_are_there_are_not_counted(mixed):
    mask = missingness.mcar_mask(mixed, 1.0, 1)
    np.testing.assert_array_equal(mask, mixed.notna().to_numpy())


def test_arrays_of_any_dtype():
    mask = np.array([[True, False], [False, False]])
    assert missingness.apply_mask(np.array([[1, 2], [3, 4]]), mask).dtype == np.float64
    single = missingness.apply_mask(np.ones((2, 2), dtype=np.float32), mask)
    assert single.dtype == np.float32 and np.isnan(single[0, 0])
    assert missingness.apply_mask(np.array([["a", 1], ["b", 2]], dtype=object), mask)[0, 0] is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda X: missingness.mcar(X, 1.2, 0), "rate must be a number from 0 to 1; got 1.2"),
        (lambda X: missingness.mcar(X, 0.2, -1), "seed must be a whole number"),
        (lambda X: missingness.mcar(X, 0.2, None), "seed must be a whole number"),
        (
            lambda X: missingness.mar(X, 0.2, 0, observed=1.5),
            "observed must be a number above 0",
        ),
        (lambda X: missingness.mar(X, 0.2, 0, observed=range(6)), "of 6 columns 6 would stay"),
        (lambda X: missingness.mar(X, 0.2, 0, observed=[]), "of 6 columns 0 would stay"),
        (lambda X: missingness.mnar(X, 0.2, 0, kind="odd"), "kind must be 'self' or 'quantile'"),
        (lambda X: missingness.mnar(X, 0.2, 0, kind="quantile", tail="left"), "tail must be"),
        (
            lambda X: missingness.mnar(X, 0.2, 0, kind="quantile", share=0.1),
            "share must be a number from",
        ),
        (lambda X: missingness.outage(X, "x1"), "columns must be a list"),
        (lambda X: missingness.apply_mask(X, np.zeros((2, 2), bool)), "mask must be booleans"),
        (lambda X: missingness.apply_mask(X.tolist(), np.zeros(X.shape, bool)), "got list"),
    ],
)
def test_errors_say_what_is_wrong(table, call, message):
    with pytest.raises(InvalidInput, match=message):
        call(table)


def test_unknown_columns_are_named(table):
    with pytest.raises(ColumnMismatch, match=r"columns names column 'odd'"):
        missingness.outage(table, ["odd"])
