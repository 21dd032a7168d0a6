"""Which NaN is a hole, against a slow twin that asks every entry by itself."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from sklearn.ensemble import HistGradientBoostingRegressor

import knothole as kh
from knothole.columns.columns import Block, Column, Columns, Kind
from knothole.columns.evidence import (
    holes_in,
    mark_holes,
    nowhere,
    nullable_as_met,
    with_nan,
    without_nullable,
)
from knothole.errors import InvalidInput

NAN = np.nan
# Two numbers, a category, and a one-hot block of two dummies.
COLUMNS = Columns(
    (Column("a"), Column("b"), Column("c", Kind.CATEGORICAL, ("x", "y")), Column("d"), Column("e")),
    (Block("block", (3, 4), baseline=True),),
)
VARIABLES = [[0], [1], [2], [3, 4]]
NOTHING = np.full((5, 2), NAN)


def by_variable(flags):
    """Flags of variables as flags of columns."""
    return np.repeat(np.asarray(flags, dtype=bool), [1, 1, 1, 2])


def twin(row, nullable, integrate, zero_is_nan, choice):
    """Which entries of a row are holes, one by one."""
    holes = []
    for v, members in enumerate(VARIABLES):
        entries = []
        for column in members:
            in_table = np.isnan(row[column])
            taken = zero_is_nan[column] and row[column] == 0 and len(members) == 1
            entries.append((in_table, in_table or taken))
        all_nan = all(to_model for _, to_model in entries)
        for in_table, to_model in entries:
            if nullable[v] and not in_table:
                holes.append(False)  # known to be what the model takes for NaN
            elif choice == "all":
                holes.append(to_model)
            elif nullable[v] and not integrate[v] and all_nan:
                holes.append(False)  # "not recorded"
            else:
                holes.append(to_model)
    return holes


flags = st.lists(st.booleans(), min_size=4, max_size=4)


@settings(max_examples=100, deadline=None)
@given(flags, flags, st.lists(st.booleans(), min_size=5, max_size=5), st.integers(0, 2**31))
@pytest.mark.parametrize("choice", ["auto", "all"])
def test_every_entry_by_itself(choice, nullable, integrate, zero_is_nan, seed):
    rng = np.random.default_rng(seed)
    matrix = rng.choice([0.0, 1.0, NAN], (8, 5))
    matrix[:, 4] = np.where(matrix[:, 3] == 1, 0.0, matrix[:, 4])  # at most one dummy is 1
    columns = COLUMNS.with_nullable(by_variable(nullable))
    sentinel = np.where(np.array(zero_is_nan)[:, None], 0.0, NOTHING)
    values, holes = mark_holes(matrix, sentinel, columns, choice, by_variable(integrate))
    expected = [twin(row, nullable, integrate, zero_is_nan, choice) for row in matrix]
    found = np.isnan(values) if holes is None else holes
    np.testing.assert_array_equal(found, expected)
    # Nothing that was read says that a value is known which is not, or the other way round.
    points = columns.evidence(values, holes).points
    assert np.isnan(points[:, :3]).tolist() == found[:, :3].tolist()


def test_every_nan_of_columns_that_are_not_nullable_is_a_hole():
    matrix = np.array([[1.0, NAN, 0.0, NAN, NAN]])
    for holes in ("auto", "all"):
        values, found = mark_holes(matrix, NOTHING, COLUMNS, holes)
        assert values is matrix
        assert found is None
    np.testing.assert_array_equal(holes_in(COLUMNS, matrix), np.isnan(matrix))


def test_columns_that_are_not_nullable_are_always_integrated_over():
    X = np.tile([[0.0, 1.0], [1.0, NAN], [2.0, 3.0]], (10, 1))
    model = HistGradientBoostingRegressor(max_iter=2).fit(X, X[:, 0])
    expectation = kh.wrap(model, X, density=kh.Factorized()).expectation_
    assert expectation.integrate.tolist() == [True, False]
    integrate = np.array([False, True])
    assert expectation.under(expectation.density, integrate).integrate.tolist() == [True, True]


def test_a_mask_is_taken_at_its_word():
    columns = COLUMNS.with_nullable(by_variable([True, True, False, True]))
    matrix = np.array([[NAN, NAN, 0.0, NAN, NAN]])
    mask = np.array([[True, False, False, True, False]])
    assert mark_holes(matrix, NOTHING, columns, mask)[1] is mask
    mask[0, 2] = True  # one of them is known
    with pytest.raises(InvalidInput, match="an entry that is not NaN was marked"):
        mark_holes(matrix, NOTHING, columns, mask)


@pytest.mark.parametrize(
    ("holes", "message"),
    [
        ("none", "holes must be 'auto', 'all' or a mask; got 'none'"),
        (np.zeros((1, 4), dtype=bool), r"booleans of shape \(1, 5\); got bool of shape \(1, 4\)"),
        (np.zeros((1, 5)), r"booleans of shape \(1, 5\); got float64"),
        (np.ones((1, 5), dtype=bool), "an entry that is not NaN was marked"),
    ],
)
def test_what_is_no_choice_of_holes_is_refused(holes, message):
    with pytest.raises(InvalidInput, match=message):
        mark_holes(np.zeros((1, 5)), NOTHING, COLUMNS, holes)


def test_what_the_model_takes_for_nan_may_be_a_range_and_never_is_a_dummy():
    sentinel = np.tile([-1.0, 1.0], (5, 1))
    matrix = np.array([[-1.0, 1.5, 1.0, 0.0, 1.0]])
    np.testing.assert_array_equal(with_nan(matrix, sentinel, COLUMNS), [[NAN, 1.5, NAN, 0.0, 1.0]])
    assert with_nan(matrix, NOTHING, COLUMNS) is matrix


def test_training_says_which_columns_are_nullable():
    """Of a block only a row without any dummy does; what was nullable stays so."""
    matrix = np.array([[1.0, 2.0, 0.0, NAN, 0.0], [3.0, NAN, 1.0, 0.0, NAN]])
    columns = COLUMNS.with_nullable(by_variable([True, False, False, False]))
    met = nullable_as_met(columns, matrix)
    assert [column.nullable for column in met] == by_variable([True, True, False, False]).tolist()
    matrix[0, 4] = NAN
    assert [variable.nullable for variable in nullable_as_met(columns, matrix).variables][3]
    assert nowhere(columns.variables[3], matrix).tolist() == [True, False]
    assert not any(column.nullable for column in without_nullable(met))


def test_a_column_that_is_absent_is_a_hole_where_nan_is_a_value():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=300), "b": rng.normal(size=300)})
    table.loc[rng.random(300) < 0.4, "b"] = NAN
    y = table["a"] + np.where(table["b"].isna(), 9.0, table["b"])
    model = HistGradientBoostingRegressor(max_iter=20).fit(table, y)
    robust = kh.wrap(model, table, density=kh.Factorized())
    asked, own = table[["a"]].head(5), table.head(5).assign(b=NAN)
    expected = robust.predict(own, holes="all")
    assert_array_equal(robust.predict(asked, absent="hole"), expected)
    assert np.abs(robust.predict(own) - expected).min() > 1.0  # there NaN is a value
    rows = [{"a": value} for value in asked["a"]]
    assert_array_equal(robust.predict(rows, absent="hole"), expected)
    assert robust.explain(asked, absent="hole").values[:, 1].tolist() == [0.0] * 5
    estimator = kh.ExpectedRegressor(model, prefit=True, density=kh.Factorized()).fit(table, y)
    assert_array_equal(
        estimator.predict(rows, absent="hole"), estimator.predict(asked, absent="hole")
    )
