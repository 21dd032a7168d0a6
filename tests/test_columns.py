"""Tables in, a matrix and typed columns out; variables and evidence."""

import datetime
import decimal
import fractions
import itertools
import sys
import time

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from sklearn.preprocessing import OneHotEncoder

from knothole.bits import word_offsets
from knothole.cli.files import match
from knothole.columns.columns import (
    BASELINE,
    NOT_RECORDED,
    Column,
    Columns,
    Kind,
    OneHotGroup,
    Variable,
)
from knothole.columns.read import missing_objects
from knothole.errors import ColumnMismatch, InvalidInput, UnseenCategory
from knothole.out_of_core.files import open_table

NAN = np.nan
NUMBERS = [1.5, None, 3.0]
WHOLE = [1, None, 3]
TEXT = ["red", None, "blue"]
FLAGS = [True, None, False]

PANDAS = pd.DataFrame(
    {
        "number": NUMBERS,
        "whole": pd.array(WHOLE, dtype="Int64"),
        "text": pd.array(TEXT, dtype="string"),
        "flag": pd.array(FLAGS, dtype="boolean"),
    }
)
POLARS = pl.DataFrame({"number": NUMBERS, "whole": WHOLE, "text": TEXT, "flag": FLAGS})
ARROW = pa.table({"number": NUMBERS, "whole": WHOLE, "text": TEXT, "flag": FLAGS})
OBJECTS = np.array([NUMBERS, WHOLE, TEXT, FLAGS], dtype=object).T
EXPECTED = np.array([[1.5, 1, 1, 1], [NAN, NAN, NAN, NAN], [3, 3, 0, 0]])

same_everywhere = pytest.mark.parametrize(
    "table",
    [PANDAS, POLARS, ARROW, ARROW.to_batches()[0], OBJECTS, OBJECTS.tolist()],
    ids=["pandas", "polars", "arrow", "batch", "numpy", "list"],
)


@same_everywhere
def test_every_library_gives_the_same_columns_and_matrix(table):
    columns = Columns.infer(table)
    kinds = [Kind.CONTINUOUS, Kind.INTEGER, Kind.CATEGORICAL, Kind.INTEGER]
    assert [column.kind for column in columns] == kinds
    assert columns[2].levels == ("blue", "red")
    assert columns.named == (table is not OBJECTS and not isinstance(table, list))
    assert columns.names == (
        ("number", "whole", "text", "flag") if columns.named else ("x0", "x1", "x2", "x3")
    )
    X = columns.matrix(table)
    assert X.dtype == np.float64 and X.flags.c_contiguous
    np.testing.assert_array_equal(X, EXPECTED)


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        (pd.Series([1, 2], dtype="int8"), [1, 2]),
        (pd.Series([1, None], dtype="UInt16"), [1, NAN]),
        (pd.Series([0.5, None], dtype="Float32"), [0.5, NAN]),
        (pd.Series([0.5, None], dtype="float64[pyarrow]"), [0.5, NAN]),
        (pd.Series([7, None], dtype="int64[pyarrow]"), [7, NAN]),
        (pd.Series([True, None], dtype="bool[pyarrow]"), [1, NAN]),
        (pd.Series([True, False]), [1, 0]),
        (pd.Series([2, pd.NA], dtype=object), [2, NAN]),
        (pd.Series([None, None], dtype=object), [NAN, NAN]),
        (pd.Series([True, np.nan], dtype=object), [1, NAN]),
        (pd.Series([0.0, 2.0], dtype="Sparse[float]"), [0, 2]),
        (pd.Series([1.0, 2.0]).to_numpy(dtype=np.float16), [1, 2]),
    ],
    ids=lambda value: str(getattr(value, "dtype", "")),
)
def test_pandas_numbers_of_every_dtype(series, expected):
    table = pd.DataFrame({"a": series})
    columns = Columns.infer(table)
    assert columns[0].kind is not Kind.CATEGORICAL
    np.testing.assert_array_equal(columns.matrix(table)[:, 0], expected)


@pytest.mark.parametrize(
    ("series", "levels", "codes"),
    [
        (pd.Series(["b", "a", None], dtype="str"), ("a", "b"), [1, 0, NAN]),
        (pd.Series(["b", "a", pd.NA], dtype="string[pyarrow]"), ("a", "b"), [1, 0, NAN]),
        (pd.Series(["b", "a", np.nan], dtype=object), ("a", "b"), [1, 0, NAN]),
        (pd.Series(["b", 1, None], dtype=object), ("b", 1), [0, 1, NAN]),
        (
            pd.Series(pd.Categorical(["b", "a", None], categories=["b", "z", "a"])),
            ("b", "z", "a"),
            [0, 2, NAN],
        ),
        (pd.Series(pd.Categorical([30, 10, None])), (10, 30), [1, 0, NAN]),
    ],
)
def test_pandas_categories_of_every_dtype(series, levels, codes):
    table = pd.DataFrame({"a": series})
    columns = Columns.infer(table)
    assert columns[0] == Column("a", Kind.CATEGORICAL, levels)
    np.testing.assert_array_equal(columns.matrix(table)[:, 0], codes)


def test_polars_and_arrow_categories():
    values = ["b", None, "a"]
    for dtype, levels in [
        (pl.Categorical, ("a", "b")),
        (pl.Enum(["b", "z", "a"]), ("b", "z", "a")),
    ]:
        table = pl.DataFrame({"a": pl.Series(values, dtype=dtype)})
        columns = Columns.infer(table)
        assert columns[0].levels == levels
        codes = [levels.index("b"), NAN, levels.index("a")]
        np.testing.assert_array_equal(columns.matrix(table)[:, 0], codes)
    chunks = pa.chunked_array(
        [pa.array(["b", None]).dictionary_encode(), pa.array(["a", "b"]).dictionary_encode()]
    )
    table = pa.table({"a": chunks, "n": pa.nulls(4)})
    columns = Columns.infer(table)
    assert columns[0].levels == ("b", "a")
    np.testing.assert_array_equal(columns.matrix(table)[:, 0], [0, NAN, 1, 0])
    assert np.isnan(columns.matrix(table)[:, 1]).all()


def test_numpy_masks_integers_and_text():
    masked = np.ma.masked_array([[1, 2], [3, 4]], mask=[[0, 1], [0, 0]])
    np.testing.assert_array_equal(Columns.infer(masked).matrix(masked), [[1, NAN], [3, 4]])
    small = np.array([[1, 0]], dtype=np.uint8)
    assert Columns.infer(small).matrix(small).tolist() == [[1, 0]]
    text = np.array([["a", "b"], ["b", "b"]])
    assert Columns.infer(text).matrix(text).tolist() == [[0, 0], [1, 0]]


def test_a_plain_matrix_passes_through_without_a_copy():
    X = np.random.default_rng(0).normal(size=(5, 3))
    X[0, 0] = NAN
    columns = Columns.infer(X)
    assert columns.matrix(X) is X
    by_columns = np.asfortranarray(X)
    np.testing.assert_array_equal(columns.matrix(by_columns), X)
    assert columns.matrix(by_columns).flags.c_contiguous


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1.0, 2.0, NAN], Kind.INTEGER),
        ([-3.0, 0.0], Kind.INTEGER),
        ([1.0, 2.5], Kind.CONTINUOUS),
        ([NAN, NAN], Kind.CONTINUOUS),
        ([1e300, 1.0], Kind.CONTINUOUS),
    ],
)
def test_numbers_are_integer_where_all_observed_are_whole(values, kind):
    assert Columns.infer(np.array(values)[:, None])[0].kind is kind


def test_categories_declared_by_name_or_position():
    table = pd.DataFrame({"a": [3.0, 1.0, None], "b": [1, 2, 3]})
    for categorical in (["a"], [0], [-2]):
        columns = Columns.infer(table, categorical=categorical)
        assert columns[0] == Column("a", Kind.CATEGORICAL, (1, 3))
        assert columns[1].kind is Kind.INTEGER
    np.testing.assert_array_equal(columns.matrix(table)[:, 0], [1, 0, NAN])
    for unknown in ("c", 2):
        with pytest.raises(ColumnMismatch, match=f"categorical names column {unknown!r}"):
            Columns.infer(table, categorical=[unknown])


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (np.zeros(3), "two dimensions.*reshape"),
        (np.zeros((2, 2, 2)), "two dimensions"),
        (np.empty((0, 2)), "at least one row"),
        (np.empty((2, 0)), "at least one row"),
        (pd.DataFrame(), "at least one row"),
        (pd.DataFrame({"a": []}), "no rows"),
        (pl.DataFrame({"a": []}), "no rows"),
        (pa.table({"a": pa.array([], pa.dictionary(pa.int32(), pa.string()))}), "no rows"),
        (pd.Series([1.0]), r"pandas.*Series.*to_frame"),
        ({"a": [1]}, "must be a table.*builtins.dict"),
        (np.array([[1 + 2j]]), "complex128"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "'a' occurs twice"),
        (pd.DataFrame({"a": pd.to_datetime(["2020-01-01"])}), "column 'a'.*datetime"),
        (pd.DataFrame({"a": pd.Series([1j])}), "column 'a'.*complex"),
        (pd.DataFrame({"a": pd.period_range("2020", periods=1)}), "column 'a'.*period"),
        (pl.DataFrame({"a": [[1]]}), "column 'a'.*List"),
        (pl.Series("a", [0]).cast(pl.Date).to_frame(), "column 'a'.*Date"),
        (pa.table({"a": pa.array([0], pa.date32())}), "column 'a'.*date32"),
        (pd.DataFrame({"a": [[1], [2]]}), "column 'a'.*list objects"),
        (pd.DataFrame({"b": [1.0, -np.inf]}), "column 'b' must hold finite.*-inf in row 1"),
        (pl.DataFrame({"b": [1.0, np.inf]}), "column 'b' must hold finite"),
        (np.array([[0.0, np.inf]]), "column 'x1' must hold finite"),
    ],
)
def test_what_is_no_table_of_numbers_and_categories_is_refused(table, message):
    with pytest.raises(InvalidInput, match=message):
        Columns.infer(table)


def test_sparse_matrices_are_refused_with_the_way_out():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(InvalidInput, match=r"toarray.*omits is a zero"):
        Columns.infer(scipy_sparse.eye(2))


def test_infinite_values_are_refused_on_the_fast_path_too():
    columns = Columns((Column("a"), Column("b")))
    with pytest.raises(InvalidInput, match="column 'b' must hold finite numbers; got inf in row 1"):
        columns.matrix(np.array([[0.0, 1.0], [0.0, np.inf]]))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "c"], "'b' missing"),
        (["a", "b", "x"], "'c' missing; 'x' not expected"),
    ],
)
def test_a_missing_column_is_named(names, message):
    columns = Columns(tuple(Column(name) for name in "abc"))
    table = pd.DataFrame([[1.0] * len(names)], columns=names)
    for use in (columns.matrix, columns.describe):
        with pytest.raises(ColumnMismatch, match=message):
            use(table)


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, pa.table, list])
def test_columns_are_matched_by_name_in_any_order_and_others_are_not_looked_at(kind):
    columns = Columns((Column("a"), Column("b", Kind.CATEGORICAL, ("x", "y"))))
    when = [datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)]
    data = {"when": when, "b": ["y", "x"], "a": [1.0, 2.0]}
    table = kind(data) if kind is not list else pd.DataFrame(data).to_dict("records")
    assert columns.matrix(table).tolist() == [[1, 1], [2, 0]]
    assert columns.describe(table).names == ("a", "b")


def test_an_absent_column_is_missing_on_request():
    columns = Columns((Column("a"), Column("b")))
    table = pd.DataFrame({"b": [1.0]})
    np.testing.assert_array_equal(columns.matrix(table, absent="missing"), [[NAN, 1.0]])
    with pytest.raises(ColumnMismatch, match=r"'a' missing.*absent='missing'"):
        columns.matrix(table, absent="error")
    # A way out that does not exist for the caller, or that was just refused, is not named.
    with pytest.raises(ColumnMismatch, match="'a' missing") as caught:
        columns.matrix(table)
    assert "absent" not in str(caught.value)
    with pytest.raises(ColumnMismatch, match="'a', 'b' missing; 'c' not expected") as caught:
        columns.matrix(pd.DataFrame({"c": [1.0]}), absent="missing")
    assert "absent=" not in str(caught.value)
    with pytest.raises(InvalidInput, match="absent must be"):
        columns.matrix(table, absent="nan")


def test_a_lazy_frame_is_collected_and_dictionaries_are_rows():
    columns = Columns((Column("a"), Column("b")))
    assert columns.matrix(pl.LazyFrame({"b": [2.0], "a": [1.0]})).tolist() == [[1, 2]]
    np.testing.assert_array_equal(
        columns.matrix([{"a": 1.0}, {"b": 2.0, "a": 3}]), [[1, NAN], [3, 2]]
    )
    with pytest.raises(InvalidInput, match=r"\[row\]"):
        columns.matrix({"a": 1.0, "b": 2.0})


def test_a_series_is_told_how_to_become_a_row():
    columns = Columns((Column("a"), Column("b")))
    row = pd.DataFrame({"b": [2.0], "a": [1.0]}).iloc[0]
    with pytest.raises(InvalidInput, match=r"One row is \.to_frame\(\)\.T of it"):
        columns.matrix(row)
    assert columns.matrix(row.to_frame().T).tolist() == [[1, 2]]


def test_no_rows_give_no_rows():
    columns = Columns((Column("a"), Column("b", Kind.CATEGORICAL, ("x",))))
    for table in (
        np.empty((0, 2)),
        pd.DataFrame({"a": [], "b": []}),
        pl.DataFrame({"a": [], "b": []}),
    ):
        assert columns.matrix(table).shape == (0, 2)


def test_without_names_on_either_side_only_the_number_counts():
    named = Columns((Column("a"), Column("b")))
    unnamed = Columns((Column("x0"), Column("x1")), named=False)
    assert named.matrix(np.ones((1, 2))).tolist() == [[1, 1]]
    assert named.matrix(pd.DataFrame(np.ones((1, 2)))).tolist() == [[1, 1]]
    assert unnamed.matrix(pd.DataFrame({"p": [1], "q": [2]})).tolist() == [[1, 2]]
    for columns, table in [
        (named, np.ones((1, 3))),
        (named, [[1]]),
        (unnamed, pd.DataFrame({"p": [1]})),
    ]:
        with pytest.raises(ColumnMismatch, match="must have 2 columns"):
            columns.matrix(table)


def test_unseen_categories_are_an_error_or_missing():
    columns = Columns((Column("city", Kind.CATEGORICAL, ("Graz", "Linz")),))
    table = pd.DataFrame({"city": ["Linz", "Wien", None]})
    with pytest.raises(UnseenCategory, match=r"'city' holds the category 'Wien'.*'Graz', 'Linz'"):
        columns.matrix(table)
    np.testing.assert_array_equal(
        columns.matrix(table, handle_unknown="missing")[:, 0], [1, NAN, NAN]
    )
    with pytest.raises(InvalidInput, match="handle_unknown must be"):
        columns.matrix(table, handle_unknown="ignore")
    declared = pd.DataFrame({"city": pd.Categorical(["Linz"], categories=["Wien", "Linz"])})
    assert columns.matrix(declared).tolist() == [[1]]  # declared, but it does not occur


def test_levels_are_compared_by_value():
    columns = Columns((Column("code", Kind.CATEGORICAL, (10, 2.5, "3")),))
    for table in ([[10]], [[10.0]], np.array([[10.0]]), pl.DataFrame({"code": [10]})):
        assert columns.matrix(table).tolist() == [[0]]
    assert columns.matrix([["3"]]).tolist() == [[2]]
    for table, level in [([[3]], "3"), ([["10"]], "'10'"), (np.array([[7.0]]), "7")]:
        with pytest.raises(UnseenCategory, match=f"the category {level},"):
            columns.matrix(table)


def test_text_where_numbers_were_is_an_error():
    columns = Columns((Column("age"),))
    with pytest.raises(InvalidInput, match=r"'age' must hold numbers, as in training.*'old'"):
        columns.matrix(pd.DataFrame({"age": ["old", "3"]}))
    categories_of_numbers = pd.DataFrame({"age": pd.Categorical([40, 30, None])})
    np.testing.assert_array_equal(columns.matrix(categories_of_numbers)[:, 0], [40, 30, NAN])


# --- describe ------------------------------------------------------------------------------------


def test_describe_completes_a_models_columns():
    model = Columns(
        (
            Column("size"),
            Column("rooms"),
            Column("city", Kind.CATEGORICAL, ("Wien", "Graz")),
            Column("zone", Kind.CATEGORICAL),
        )
    )
    table = pd.DataFrame(
        {"size": [1.5, 2], "rooms": [1, 2], "city": ["Graz", "Linz"], "zone": [7, 3]}
    )
    columns = model.describe(table)
    assert columns.columns == (
        Column("size"),
        Column("rooms", Kind.INTEGER),
        Column("city", Kind.CATEGORICAL, ("Wien", "Graz", "Linz")),
        Column("zone", Kind.CATEGORICAL, (3, 7)),
    )
    assert columns.matrix(table).tolist() == [[1.5, 1, 1, 1], [2, 2, 2, 0]]


@pytest.mark.parametrize(
    ("known", "values", "strange"),
    [
        ((0, 1, 2), ["red", "green", "red"], "'green'"),
        ((0, 1, 2), ["0", "1", "2"], "'0'"),
        ((0, 1), pd.Categorical(["a", None, "b"]), "'a'"),
        (("red", "green"), [0, 1, 0], "0"),
        (("red", "green"), pd.Categorical([0, 1, 1]), "0"),
        (("red", "green"), ["0", "1", "0"], "'0'"),
    ],
)
def test_text_for_a_models_codes_is_refused_and_codes_for_its_text(known, values, strange):
    """Added as further levels, they would be categories that the model has never seen."""
    model = Columns((Column("hue", Kind.CATEGORICAL, known),))
    with pytest.raises(InvalidInput, match=f"column 'hue' holds the category {strange}, but"):
        model.describe(pd.DataFrame({"hue": values}))


def test_describe_takes_the_tables_names_where_the_model_has_none():
    model = Columns((Column("f0"), Column("f1")), named=False)
    columns = model.describe(pd.DataFrame({"a": [1], "b": [0.5]}))
    assert columns.named and columns.names == ("a", "b")
    assert not model.describe(np.ones((1, 2))).named


# --- one-hot groups ------------------------------------------------------------------------------

HOMES = pd.DataFrame(
    {
        "size": [50.0, 70, 80, 90],
        "city": ["Graz", "Linz", "St_Pölten", "Graz"],
        "home_type": ["flat", "house", "flat", "flat"],
        "home_floor": ["top", "low", "top", "low"],
    }
)


def test_one_hot_groups_are_found_by_the_naming_of_get_dummies():
    dummies = pd.get_dummies(HOMES)
    columns = Columns.infer(dummies, one_hot="auto")
    assert columns.one_hot == (
        OneHotGroup("city", (1, 2, 3)),
        OneHotGroup("home_type", (4, 5)),
        OneHotGroup("home_floor", (6, 7)),
    )
    assert Columns.infer(dummies).one_hot == ()
    assert Columns(columns.columns).describe(dummies, one_hot="auto").one_hot == columns.one_hot
    assert columns.describe(dummies).one_hot == columns.one_hot


def test_one_hot_groups_are_found_by_the_naming_of_one_hot_encoder():
    encoder = OneHotEncoder(sparse_output=False).set_output(transform="pandas")
    table = encoder.fit_transform(HOMES[["city", "home_type"]])
    one_hot = Columns.infer(table, one_hot="auto").one_hot
    assert one_hot == (OneHotGroup("city", (0, 1, 2)), OneHotGroup("home_type", (3, 4)))


def test_a_dropped_first_level_is_the_baseline():
    dummies = pd.get_dummies(HOMES[["city"]], drop_first=True)
    assert Columns.infer(dummies, one_hot="auto").one_hot == (
        OneHotGroup("city", (0, 1), baseline=True),
    )
    assert Columns.infer(dummies.iloc[1:3], one_hot="auto").one_hot == (
        OneHotGroup("city", (0, 1)),
    )


def test_names_alone_make_no_one_hot_group():
    table = pd.DataFrame({"is_old": [1, 1, 0], "is_big": [1, 0, 0], "n_a": [0, 2, 1]})
    assert Columns.infer(table, one_hot="auto").one_hot == ()
    apart = pd.DataFrame({"c_a": [1, 0], "x": [3, 4], "c_b": [0, 1]})
    assert Columns.infer(apart, one_hot="auto").one_hot == ()
    assert Columns.infer(apart, one_hot={"c": ["c_a", "c_b"]}).one_hot == (
        OneHotGroup("c", (0, 2)),
    )


def test_a_prefix_that_is_a_column_itself_is_no_one_hot_group():
    table = pd.DataFrame({"c": [7, 8], "c_a": [1, 0], "c_b": [0, 1]})
    assert Columns.infer(table, one_hot="auto").one_hot == ()
    one_hot = Columns.infer(table, one_hot={"c dummies": ["c_a", "c_b"]}).one_hot
    assert one_hot == (OneHotGroup("c dummies", (1, 2)),)


def test_missing_values_do_not_hide_a_one_hot_group():
    dummies = pd.get_dummies(HOMES[["city"]]).astype(float)
    dummies.iloc[0, 0] = None
    assert Columns.infer(dummies, one_hot="auto").one_hot == (OneHotGroup("city", (0, 1, 2)),)


@pytest.mark.parametrize(
    ("one_hot", "error", "message"),
    [
        ({"b": ["a", "z"]}, ColumnMismatch, r"one_hot\['b'\] names column 'z'"),
        ({"b": ["a", "b"]}, InvalidInput, "one-hot group 'b' do not.*at most one dummy.*row 1"),
        ({"b": ["a", "n"]}, InvalidInput, "one-hot group 'b' do not.*0 or 1.*row 2"),
        ({"b": ["a"], "c": ["a"]}, InvalidInput, "'a' must be in one one-hot group only"),
        ({"n": ["a"]}, InvalidInput, "one-hot group 'n' must have a name of its own"),
        ({"b": []}, InvalidInput, "'b' must have at least one column"),
        ("find", InvalidInput, "one_hot must be None, 'auto' or a mapping"),
    ],
)
def test_declared_one_hot_groups_must_fit_the_data(one_hot, error, message):
    table = pd.DataFrame({"a": [1, 1, 0], "b": [0, 1, 0], "n": [0, 0, 2]})
    with pytest.raises(error, match=message):
        Columns.infer(table, one_hot=one_hot)


# --- variables and evidence ----------------------------------------------------------------------

MIXED = Columns(
    (
        Column("hue_b"),
        Column("age", nullable=True),
        Column("hue_a"),
        Column("city", Kind.CATEGORICAL, ("Graz", "Linz"), nullable=True),
        Column("hue_c"),
    ),
    (OneHotGroup("hue", (2, 0, 4), baseline=True),),
)


def test_a_one_hot_group_is_one_variable_in_the_place_of_its_first_dummy():
    assert MIXED.variables == (
        Variable("hue", Kind.CATEGORICAL, ("hue_a", "hue_b", "hue_c", BASELINE), (2, 0, 4)),
        Variable("age", Kind.CONTINUOUS, (), (1,), nullable=True),
        Variable("city", Kind.CATEGORICAL, ("Graz", "Linz", None), (3,), nullable=True),
    )
    n_levels = np.array([len(variable.levels) for variable in MIXED.variables])
    assert word_offsets(n_levels).tolist() == [0, 1, 1, 2]
    over_variables = MIXED.as_variables()
    assert over_variables.names == ("hue", "age", "city")
    again = tuple((v.name, v.kind, v.levels, v.nullable) for v in over_variables.variables)
    assert again == tuple((v.name, v.kind, v.levels, v.nullable) for v in MIXED.variables)


def test_a_nullable_nan_is_a_state_unless_it_is_called_missing():
    X = np.array([[0, NAN, 1, NAN, 0], [0, 30.0, 0, 1, 0]])
    known = MIXED.evidence(X)
    assert known.points.tolist() == [[0, NOT_RECORDED, 2], [3, 30, 1]]
    assert known.allowed is None
    everything = MIXED.evidence(X, np.isnan(X))
    np.testing.assert_array_equal(everything.points, [[0, NAN, NAN], [3, 30, 1]])
    missing_mask = np.zeros(X.shape, dtype=bool)
    missing_mask[1, 1] = True  # a mask's word counts more than the entry
    np.testing.assert_array_equal(
        MIXED.evidence(X, missing_mask).points, [[0, np.inf, 2], [3, NAN, 1]]
    )


def test_evidence_of_numbers_is_the_matrix_itself():
    X = np.array([[1.0, NAN]])
    assert Columns((Column("a"), Column("b"))).evidence(X).points is X


@pytest.mark.parametrize(
    ("row", "missing_mask", "message"),
    [
        ([1, 0, 1, 0, 0], None, r"row 1, one-hot group 'hue'.*at most one.*\[1.0, 1.0, 0.0\]"),
        ([2, 0, 0, 0, 0], None, "row 1, one-hot group 'hue'.*0 or 1"),
        ([0, 0, 0, 2, 0], None, "row 1, column 'city' must hold codes.*0 to 1; got 2"),
        ([0, 0, 0, 0.5, 0], None, "'city' must hold codes"),
        ([0, 0, 0, -1, 0], None, "'city' must hold codes"),
        ([NAN, 0, 0, 0, 0], [0, 0, 0, 0, 0], "row 1, variable 'hue' is said.*not one of"),
    ],
)
def test_contradictions_name_the_row_and_the_variable(row, missing_mask, message):
    X = np.array([[0, 0, 0, 0, 0], row], dtype=float)
    mask = None if missing_mask is None else np.array([[0] * 5, missing_mask], dtype=bool)
    with pytest.raises(InvalidInput, match=message):
        MIXED.evidence(X, mask)


def test_what_is_not_recorded_needs_a_nullable_variable():
    columns = Columns((Column("a"), Column("b")))
    X = np.array([[1.0, NAN]])
    with pytest.raises(InvalidInput, match="row 0, variable 'b' is said to be not recorded"):
        columns.evidence(X, np.zeros((1, 2), dtype=bool))
    assert columns.with_nullable([False, True]).evidence(X).points.tolist() == [[1, np.inf]]


def test_all_zeros_need_a_baseline():
    columns = Columns((Column("a"), Column("b")), (OneHotGroup("c", (0, 1)),))
    with pytest.raises(InvalidInput, match="'c' contradicts itself: all dummies are 0"):
        columns.evidence(np.zeros((1, 2)))


@pytest.mark.parametrize("missing_mask", [np.zeros((1, 1), dtype=bool), np.zeros((1, 2)), [[0, 1]]])
def test_the_mask_must_be_booleans_of_the_shape_of_the_rows(missing_mask):
    with pytest.raises(InvalidInput, match=r"missing_mask must be booleans of shape \(1, 2\)"):
        Columns((Column("a"), Column("b"))).evidence(np.zeros((1, 2)), missing_mask)


def test_rows_must_have_the_right_width():
    with pytest.raises(InvalidInput, match=r"shape \(rows, 5\); got \(1, 4\)"):
        MIXED.evidence(np.zeros((1, 4)))


def test_a_one_hot_group_is_nullable_as_a_whole():
    columns = Columns((Column("a"), Column("b"), Column("x")), (OneHotGroup("c", (0, 1)),))
    with pytest.raises(InvalidInput, match="one-hot group 'c' must all be nullable"):
        columns.with_nullable([True, False, False])
    with pytest.raises(InvalidInput, match="3 booleans"):
        columns.with_nullable([True, False])
    nullable = columns.with_nullable([True, True, False])
    assert nullable.variables[0].levels == ("a", "b", None)
    X = np.array([[NAN, NAN, 0], [NAN, 0, 0], [NAN, 1, 0]])
    assert nullable.evidence(X).points[:, 0].tolist() == [2, 0, 1]
    some = np.array([[True, False, False]])
    assert nullable.evidence(X[:1], some).points[0, 0] == 2
    with pytest.raises(InvalidInput, match="some dummies are observed, others"):
        nullable.evidence(X[1:2], np.zeros((1, 3), dtype=bool))


@st.composite
def one_hot_rows(draw):
    """A one-hot group, incomplete rows of its dummies, and the category each row came from."""
    n = draw(st.sampled_from([1, 2, 3, 5, 64, 65]))
    baseline = n == 1 or draw(st.booleans())
    nullable = draw(st.booleans())
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    columns = Columns(
        tuple(Column(f"d{i}") for i in range(n)), (OneHotGroup("hue", tuple(range(n)), baseline),)
    ).with_nullable(np.full(n, nullable))
    category = rng.integers(0, n + baseline, 12)
    X = (category[:, None] == np.arange(n)).astype(float)
    missing_mask = rng.random(X.shape) < rng.choice([0, 0.3, 0.9, 1.0], (12, 1))
    X[missing_mask] = NAN
    return columns, X, missing_mask, n + baseline


@settings(max_examples=60, deadline=None)
@given(one_hot_rows())
def test_partly_observed_dummies_leave_the_categories_that_agree_with_them(case):
    """The slow twin: try every category, keep those whose dummies equal what was observed."""
    columns, X, missing_mask, n_categories = case
    n = X.shape[1]
    n_levels = len(columns.variables[0].levels)
    known = columns.evidence(X, missing_mask)
    for i in range(len(X)):
        agree = [
            c
            for c in range(n_categories)
            if all(missing_mask[i, d] or X[i, d] == (c == d) for d in range(n))
        ]
        if missing_mask[i].all():
            agree = list(range(n_levels))  # nothing is known, not even that it was recorded
        point = known.points[i, 0]
        if len(agree) == 1 and n_levels > 1:
            assert point == agree[0]
        elif n_levels > 1:
            assert np.isnan(point)
        if known.allowed is not None:
            words = known.allowed[i].tolist()
            bits = {c for c in range(64 * len(words)) if words[c // 64] >> (c % 64) & 1}
            assert bits == set(agree)
        else:
            assert len(agree) in (1, n_levels)


@settings(max_examples=30, deadline=None)
@given(one_hot_rows())
def test_restricted_lists_what_allowed_holds(case):
    columns, X, missing_mask, _ = case
    known = columns.evidence(X, missing_mask)
    listed = {}
    for variable, rows, allowed in known[3:9].restricted():
        assert variable == 0
        listed |= {3 + int(row): allowed[k] for k, row in enumerate(rows)}
    for i in range(3, 9):
        partly = not missing_mask[i].all() and np.isnan(known.points[i, 0])
        assert (i in listed) == partly
        if partly:
            words = known.allowed[i].tolist()
            bits = [bool(words[c // 64] >> (c % 64) & 1) for c in range(len(listed[i]))]
            assert listed[i].tolist() == bits


def test_restricted_is_about_the_right_variable():
    columns = Columns(
        (
            Column("n"),
            Column("c", Kind.CATEGORICAL, tuple(range(70))),
            *(Column(name) for name in "abc"),
        ),
        (OneHotGroup("hue", (2, 3, 4)),),
    )
    X = np.array([[0.5, 69, NAN, 0, NAN], [NAN, NAN, NAN, NAN, NAN]])
    known = columns.evidence(X)
    assert word_offsets(known.n_levels).tolist() == [0, 0, 2, 3]
    assert known.allowed.tolist() == [[0, 1 << 5, 0b101], [2**64 - 1, 2**6 - 1, 0b111]]
    ((variable, rows, allowed),) = known.restricted()
    assert (variable, rows.tolist(), allowed.tolist()) == (2, [0], [[True, False, True]])


def test_decode_undoes_evidence():
    rows = [
        [hue == 1, age, hue == 0, city, hue == 2]
        for hue, age, city in itertools.product(range(4), [NAN, 30.0], [NAN, 0, 1])
    ]
    X = np.array(rows, dtype=float)
    np.testing.assert_array_equal(MIXED.decode(MIXED.evidence(X).points), X)
    assert np.isnan(MIXED.decode(np.full((2, 3), NAN))).all()


@pytest.mark.parametrize(
    ("codes", "levels", "expected"),
    [
        ([0, 1, 0], ["x", None], [0.0, np.nan, 0.0]),
        ([0, 1, 2], ["x", "x", "y"], [0.0, 0.0, 1.0]),
        ([0, 1, None], [2**60, 2**60 + 1], [0.0, 1.0, np.nan]),
        ([0, 1, 2], [2**60, None, 2**60 + 1], [2.0**60, np.nan, 2.0**60]),
    ],
    ids=["null", "twice", "integers", "integers and null"],
)
def test_dictionaries_of_arrow_are_read_whatever_their_values(codes, levels, expected):
    array = pa.DictionaryArray.from_arrays(pa.array(codes, pa.uint8()), pa.array(levels))
    for table in (pa.table({"a": array}), pa.record_batch({"a": array})):
        matrix = Columns.infer(table).matrix(table)
        np.testing.assert_array_equal(matrix.ravel(), expected)


def test_integers_of_dictionaries_that_float64_takes_for_one_are_two_categories():
    rows = [{"a": 2**60}, {"a": 2**60 + 1}, {"a": None}]
    columns = Columns.infer(rows, categorical=["a"])
    assert columns[0].levels == (2**60, 2**60 + 1)
    np.testing.assert_array_equal(columns.matrix(rows).ravel(), [0.0, 1.0, np.nan])


def test_a_long_category_is_shortened_in_a_message():
    """One of 2 MB made a message of 2 MB."""
    columns = Columns((Column("c", Kind.CATEGORICAL, ("a", "b" * 2_000_000)),))
    for value in ("q" * 2_000_000, ("q",) * 500_000):
        table = pd.DataFrame({"c": pd.Series([value], dtype=object)})
        with pytest.raises(UnseenCategory, match=r"holds the category .*qqq|'q', 'q'") as caught:
            columns.matrix(table)
        assert len(str(caught.value)) < 500
    with pytest.raises(InvalidInput) as caught:
        Columns((Column("c"),)).matrix(pd.DataFrame({"c": ["q" * 2_000_000]}))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("number", "wrong"),
    [("-1.5", "0x1F"), (" .5e1", "１２"), ("7.", "1_000"), ("+3E-2", "1e5x"), ("1", "9" * 5000)],
)
def test_the_entry_that_is_no_number_is_named(tmp_path, number, wrong):
    """Beside a hexadecimal number all others are text, and the first of them was blamed."""
    path = tmp_path / "table.csv"
    path.write_text(f"a,b\n{number},2\n{wrong},3\n{number},4\n", encoding="utf-8")
    table = next(chunk for chunk, _ in open_table(path).chunks(["a"], [Column("a")], 10))
    with pytest.raises(InvalidInput, match=f"got '{wrong[:50]}"):
        Columns((Column("a"),)).matrix(table)


@pytest.mark.parametrize("dtype", ["Int128", "UInt128"])
def test_large_integers_of_polars_are_numbers(dtype):
    if not hasattr(pl, dtype):
        pytest.skip(f"this polars has no {dtype}")
    table = pl.DataFrame({"a": [2**100, None, 3]}, schema={"a": getattr(pl, dtype)})
    found = Columns((Column("a"),)).matrix(table)
    np.testing.assert_array_equal(found[:, 0], [2.0**100, np.nan, 3.0])
    described = Columns.infer(table)
    assert described[0].kind is Kind.CONTINUOUS


def test_names_that_are_wrong_are_refused_in_linear_time():
    """A frame of 8,000 took 11 s, a CSV file of 100,000 did not end."""
    n = 40_000
    columns = Columns(tuple(Column(f"column_{i}") for i in range(n)))
    table = pd.DataFrame(np.zeros((2, n)), columns=[f"wrong {i}" for i in range(n)])
    began = time.process_time()
    with pytest.raises(ColumnMismatch):
        columns.matrix(table)
    assert columns.called_as_in(table).names == columns.names
    assert columns.absent(table) == list(range(n))
    with pytest.raises(InvalidInput, match="different names"):
        columns.matrix(table.set_axis([*columns.names[1:], "column_1"], axis=1))
    assert time.process_time() - began < 10  # 0.5; with the square, minutes


def test_files_with_many_columns_open_in_linear_time(tmp_path):
    n = 40_000
    names = ",".join(f"wrong {i}" for i in range(n))
    path = tmp_path / "wide.csv"
    path.write_text(f"{names}\n{','.join(['1'] * n)}\n")
    began = time.process_time()
    with pytest.raises(ColumnMismatch):
        match(Columns((Column("a"),)), open_table(path))
    assert time.process_time() - began < 15  # 2; with the square, a minute


def test_missing_objects_without_pandas_are_those_that_pandas_finds(monkeypatch):
    values = [
        None, float("nan"), np.float32("nan"), np.float64("nan"), decimal.Decimal("nan"),
        np.datetime64("NaT"), np.timedelta64("NaT"), complex("nan"), np.complex128("nan"),
        0, 1.5, True, "", "nan", "None", b"", decimal.Decimal(1), fractions.Fraction(1, 2),
        np.int64(3), np.inf, (1, 2), object(),
    ]  # fmt: skip
    objects = np.empty(len(values), dtype=object)
    objects[:] = values
    expected = pd.isna(objects)
    assert_array_equal(missing_objects(objects), expected)
    monkeypatch.delitem(sys.modules, "pandas")
    assert_array_equal(missing_objects(objects), expected)
    assert missing_objects(objects[:0]).shape == (0,)
    signalling = np.array([decimal.Decimal("sNaN")], dtype=object)
    with pytest.raises(decimal.InvalidOperation):
        missing_objects(signalling)
