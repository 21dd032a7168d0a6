"""Lost or not recorded: what callers and policies say of missing values, and what is inferred."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.ensemble import HistGradientBoostingRegressor

import knothole as kh
from knothole.columns.columns import Column, Columns, Kind, OneHotGroup
from knothole.columns.evidence import (
    checked_lost,
    mark_missing,
    missing_in,
    nowhere,
    nullable_as_met,
    with_nan,
    without_nullable,
)
from knothole.errors import InvalidInput

NAN = np.nan
# Two numbers, a category, and a one-hot group of two dummies.
COLUMNS = Columns(
    (Column("a"), Column("b"), Column("c", Kind.CATEGORICAL, ("x", "y")), Column("d"), Column("e")),
    (OneHotGroup("group", (3, 4), baseline=True),),
)
VARIABLES = [[0], [1], [2], [3, 4]]
NOTHING = np.full((5, 2), NAN)


def by_variable(flags):
    """Flags of variables as flags of columns."""
    return np.repeat(np.asarray(flags, dtype=bool), [1, 1, 1, 2])


def twin(row, lost, nullable, zero_is_nan, native):
    """Which entries of a row are missing values, one by one; others are "not recorded"."""
    missing = []
    for v, members in enumerate(VARIABLES):
        entries = []
        for column in members:
            in_table = np.isnan(row[column])
            taken = zero_is_nan[column] and row[column] == 0 and len(members) == 1
            entries.append((in_table, in_table or taken))
        all_nan = all(to_model for _, to_model in entries)
        for in_table, to_model in entries:
            if nullable[v] and not in_table:
                missing.append(False)  # known to be what the model takes for NaN
            elif native and nullable[v] and all_nan and not lost[column]:
                missing.append(False)
            else:
                missing.append(to_model)
    return missing


flags = st.lists(st.booleans(), min_size=4, max_size=4)


@settings(max_examples=100, deadline=None)
@given(flags, st.lists(st.booleans(), min_size=5, max_size=5), st.integers(0, 2**31))
@pytest.mark.parametrize("native", [True, False])
def test_every_entry_by_itself(native, nullable, zero_is_nan, seed):
    rng = np.random.default_rng(seed)
    matrix = rng.choice([0.0, 1.0, NAN], (8, 5))
    matrix[:, 4] = np.where(matrix[:, 3] == 1, 0.0, matrix[:, 4])  # at most one dummy is 1
    columns = COLUMNS.with_nullable(by_variable(nullable))
    sentinel = np.where(np.array(zero_is_nan)[:, None], 0.0, NOTHING)
    # Of a one-hot group, all columns are lost or none.
    lost = np.isnan(matrix) & by_variable(rng.random(4) < 0.5)
    values, missing = mark_missing(matrix, sentinel, columns, native, lost)
    both = zip(matrix, lost, strict=True)
    expected = [twin(row, gone, nullable, zero_is_nan, native) for row, gone in both]
    found = np.isnan(values) if missing is None else missing
    np.testing.assert_array_equal(found, expected)
    # Nothing that was read says that a value is known which is not, or the other way round.
    points = columns.evidence(values, missing).points
    assert np.isnan(points[:, :3]).tolist() == found[:, :3].tolist()


def test_every_nan_of_columns_that_are_not_nullable_is_missing():
    matrix = np.array([[1.0, NAN, 0.0, NAN, NAN]])
    for native in (True, False):
        values, found = mark_missing(matrix, NOTHING, COLUMNS, native)
        assert values is matrix
        assert found is None
    np.testing.assert_array_equal(missing_in(COLUMNS, matrix), np.isnan(matrix))


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ("none", r"booleans of shape \(1, 5\); got <U4"),
        (np.zeros((1, 4), dtype=bool), r"booleans of shape \(1, 5\); got bool of shape \(1, 4\)"),
        (np.zeros((1, 5)), r"booleans of shape \(1, 5\); got float64"),
        (np.ones((1, 5), dtype=bool), "row 0 of 'a' is marked as lost, but it has a value"),
    ],
)
def test_what_is_no_mask_of_missing_values_is_refused(lost, message):
    with pytest.raises(InvalidInput, match=message):
        checked_lost(lost, np.zeros((1, 5)), "abcde")


def test_what_the_model_takes_for_nan_may_be_a_range_and_never_is_a_dummy():
    sentinel = np.tile([-1.0, 1.0], (5, 1))
    matrix = np.array([[-1.0, 1.5, 1.0, 0.0, 1.0]])
    np.testing.assert_array_equal(with_nan(matrix, sentinel, COLUMNS), [[NAN, 1.5, NAN, 0.0, 1.0]])
    assert with_nan(matrix, NOTHING, COLUMNS) is matrix


def test_training_says_which_columns_are_nullable():
    """Of a one-hot group only a row without any dummy does; what was nullable stays so."""
    matrix = np.array([[1.0, 2.0, 0.0, NAN, 0.0], [3.0, NAN, 1.0, 0.0, NAN]])
    columns = COLUMNS.with_nullable(by_variable([True, False, False, False]))
    met = nullable_as_met(columns, matrix)
    assert [column.nullable for column in met] == by_variable([True, True, False, False]).tolist()
    matrix[0, 4] = NAN
    assert [variable.nullable for variable in nullable_as_met(columns, matrix).variables][3]
    assert nowhere(columns.variables[3], matrix).tolist() == [True, False]
    assert not any(column.nullable for column in without_nullable(met))


# ---- what predictions make of it ----------------------------------------------------------------


@pytest.fixture(scope="module")
def feed():
    """A model that has learned what NaN in b means: it is 9 more."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=300), "b": rng.normal(size=300)})
    table.loc[rng.random(300) < 0.4, "b"] = NAN
    y = table["a"] + np.where(table["b"].isna(), 9.0, table["b"])
    model = HistGradientBoostingRegressor(max_iter=20).fit(table, y)
    return model, table, y


def wrapped(feed, **options):
    return kh.wrap(feed[0], feed[1], density=kh.Factorized(), **options)


def test_policies_and_masks(feed):
    """Not recorded: the model's own answer. Lost: that of recorded values. Inferred: between."""
    model, table, _ = feed
    rows = table.head(5).assign(b=NAN)
    native, lost, inferred = (
        wrapped(feed, nan_policy=policy) for policy in ("native", "lost", "infer")
    )
    assert [each.nan_policy_ for each in (native, lost, inferred)] == ["native", "lost", "infer"]
    assert_allclose(native.predict(rows), model.predict(rows))
    mask = rows.isna()
    assert_allclose(native.predict(rows, lost=mask), lost.predict(rows), rtol=0.01, atol=0.1)
    assert_allclose(inferred.predict(rows, lost=mask), lost.predict(rows), rtol=0.01, atol=0.1)
    assert (inferred.predict(rows) < native.predict(rows)).all()
    assert (inferred.predict(rows) > inferred.predict(rows, lost=mask)).all()
    none = np.zeros((5, 2), dtype=bool)
    assert_array_equal(inferred.predict(rows, lost=none), inferred.predict(rows))


def test_the_mixture_of_lost_and_not_recorded_is_weighed_by_its_probability(feed):
    """p(lost) E[f | lost] + p(not recorded) f(not recorded), as nothing else tells of b."""
    model, table, _ = feed
    rows = table.head(5).assign(b=NAN)
    robust = wrapped(feed)
    p = robust.lost_probability(rows)["b"]
    expected = p * robust.predict(rows, lost=rows.isna()) + (1 - p) * model.predict(rows)
    assert_allclose(robust.predict(rows), expected, rtol=1e-6)


def test_lost_probability_is_a_table_like_the_rows(feed):
    robust = wrapped(feed)
    rows = (
        feed[1].head(6).assign(a=lambda t: t["a"].mask(t.index % 2 == 0)).set_axis(list("uvwxyz"))
    )
    found = robust.lost_probability(rows)
    assert list(found.columns) == ["a", "b"] and found.index.equals(rows.index)
    assert_array_equal(found.isna(), rows.notna())
    assert (found["a"].dropna() == 1).all()  # never missing in training
    assert found["b"].dropna().between(0.001, 0.999).all()
    assert (robust.lost_probability(rows, lost=rows.isna())["b"].dropna() == 1).all()
    assert_array_equal(robust.lost_probability(rows.to_numpy()), found)
    assert_array_equal(robust.lost_probability(robust.encode(rows)), found)
    assert_array_equal(robust.explain(rows).lost_probability, found)
    native = wrapped(feed, nan_policy="native").lost_probability(rows)
    assert (native["a"].dropna() == 1).all() and (native["b"].dropna() == 0).all()
    assert_array_equal(native.isna(), rows.notna())
    dropped = robust.lost_probability(rows[["a"]], absent="missing")
    assert dropped["b"].notna().all()


def test_all_columns_of_a_group_have_its_probability():
    rng = np.random.default_rng(0)
    codes = rng.integers(3, size=300)
    hues = np.eye(3)[codes]
    hues[rng.random(300) < 0.3] = NAN
    table = pd.DataFrame(hues, columns=["hue_red", "hue_green", "hue_blue"]).assign(x=codes * 1.0)
    model = HistGradientBoostingRegressor(max_iter=5).fit(table, codes)
    robust = kh.wrap(model, table, density=kh.Mixture(3, random_state=0), one_hot="auto")
    rows = np.array([[NAN, NAN, NAN, 1.0], [0.0, NAN, NAN, 1.0], [0.0, 1.0, 0.0, NAN]])
    group, partly, known = robust.lost_probability(rows)
    assert 0 < group[0] == group[1] == group[2] < 1 and np.isnan(group[3])
    assert_array_equal(partly, [NAN, 1.0, 1.0, NAN])  # in part observed: it was recorded
    assert_array_equal(known, [NAN, NAN, NAN, 1.0])


def test_masks_of_dask_tables_go_by_partition(feed):
    dd = pytest.importorskip("dask.dataframe")
    robust = wrapped(feed)
    rows = feed[1].head(40)
    mask = rows.isna() & (np.arange(40) % 2 == 0)[:, None]
    lazy, lost = dd.from_pandas(rows, npartitions=3), dd.from_pandas(mask, npartitions=3)
    expected = robust.predict(rows, lost=mask)
    assert_array_equal(robust.predict(lazy, lost=lost).compute(), expected)
    arrays = lazy.to_dask_array(lengths=True), lost.to_dask_array(lengths=True)
    assert_array_equal(robust.predict(arrays[0], lost=arrays[1]).compute(), expected)
    found = robust.lost_probability(lazy, lost=lost).compute()
    pd.testing.assert_frame_equal(found, robust.lost_probability(rows, lost=mask))
    with pytest.raises(InvalidInput, match="must be a Dask collection"):
        robust.predict(lazy, lost=mask)
    with pytest.raises(InvalidInput, match="lost has 2 partitions; X has 3"):
        robust.predict(lazy, lost=dd.from_pandas(mask, npartitions=2))


def test_a_column_that_is_absent_says_nothing(feed):
    """Not even that it was lost: "not recorded" keeps the probability it has in training."""
    model, table, y = feed
    robust = wrapped(feed)
    asked, own = table[["a"]].head(5), table.head(5).assign(b=NAN)
    share = table["b"].isna().mean()
    recorded = robust.predict(own, lost=own.isna())
    expected = share * model.predict(own) + (1 - share) * recorded
    assert_allclose(robust.predict(asked, absent="missing"), expected, rtol=0.01)
    native = wrapped(feed, nan_policy="native")
    assert_allclose(native.predict(asked, absent="missing"), expected, rtol=0.01)
    rows = [{"a": value} for value in asked["a"]]
    assert_array_equal(
        robust.predict(rows, absent="missing"), robust.predict(asked, absent="missing")
    )
    assert robust.explain(asked, absent="missing").values[:, 1].tolist() == [0.0] * 5
    estimator = kh.ExpectedRegressor(model, prefit=True, density=kh.Factorized()).fit(table, y)
    assert_array_equal(
        estimator.predict(rows, absent="missing"), estimator.predict(asked, absent="missing")
    )


def test_masks_are_of_the_rows_and_of_some_columns_of_a_table():
    table = pd.DataFrame({"a": [np.nan, 1.0], "b": [np.nan, np.nan]}, index=[5, 7])
    columns, mask = Columns.infer(table), table.isna()
    np.testing.assert_array_equal(columns.mask(mask[["b"]], table), [[False, True], [False, True]])
    with pytest.raises(InvalidInput, match="another index than X"):
        columns.mask(mask.iloc[::-1], table)
    with pytest.raises(InvalidInput, match="names none of the model's columns"):
        columns.mask(mask[["a"]].set_axis(["c"], axis=1), table)
