"""Tables of plain numbers are read in one go: as column by column, errors included."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from knothole.columns.columns import Column, Columns
from knothole.columns.read import plain_floats
from knothole.errors import InvalidInput, KnotholeError

NAMES = ("a", "1", "c")
NAMED, UNNAMED = (Columns(tuple(map(Column, NAMES)), named=named) for named in (True, False))
NUMBERS = st.sampled_from([0.0, -1.5, 3.0, 1e30, np.nan, None])
WHOLE = st.sampled_from([0, 1, 2**53 + 1, 127, None])
STRANGE = st.sampled_from([np.inf, "red", True, 10**400, np.float32(0.1), 2**64 - 1, b"x"])
DTYPES = ["f8", "f4", "i8", "i1", "u8", "?", "O", "Int64", "Float64", "boolean", "category", "g"]
LABELS = ["a", "1", "c", 1, 0, 2, "d", ("a", "b")]


def slowly(columns, table, absent):
    """Column by column: the twin."""
    return columns._encoded(columns.read(table, absent), "error")


def outcome(read, *arguments):
    try:
        return read(*arguments)
    except Exception as error:  # any: both ways are to fail alike
        return type(error), str(error)


def assert_same(columns, table, absent="error"):
    found = outcome(columns.matrix, table, "error", absent)
    expected = outcome(slowly, columns, table, absent)
    if isinstance(found, tuple):
        assert found == expected
        return
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.float64 and found.flags.c_contiguous and found.flags.writeable


@st.composite
def frames(draw):
    rows = draw(st.integers(0, 3))
    labels = draw(st.permutations(LABELS)) if draw(st.booleans()) else draw(
        st.sampled_from([[0, 1, 2], ["a", "1", "c"], ["c", "a", "d", "1"], ["a", "1", "c", "a"]])
    )  # fmt: skip
    labels = labels[: draw(st.integers(2, len(labels)))] if draw(st.booleans()) else labels
    columns = []
    for _ in labels:
        dtype, values = draw(st.sampled_from(DTYPES)), []
        for _ in range(rows):
            values.append(draw(WHOLE if dtype in ("i8", "u8", "Int64", "i1") else NUMBERS))
        try:
            columns.append(pd.Series(values, dtype=object).astype(dtype))
        except (TypeError, ValueError, OverflowError):
            columns.append(pd.Series([0.0 if v is None else v for v in values], dtype="f8"))
    frame = pd.concat(columns, axis=1)
    frame.columns = pd.Index(labels, tupleize_cols=False)
    return frame


@example(pd.DataFrame({"c": [1], "a": [2.5], "d": ["x"], "1": [3]}), NAMED, "error")
@given(frame=frames(), columns=st.sampled_from([NAMED, UNNAMED]), absent=st.sampled_from(
    ["error", "missing", "nothing"]))  # fmt: skip
def test_frames_are_read_as_column_by_column(frame, columns, absent):
    if absent == "nothing":
        with pytest.raises(InvalidInput, match="absent must be 'error' or 'missing'"):
            columns.matrix(frame, absent=absent)
        return
    assert_same(columns, frame, absent)


ENTRY = st.one_of(NUMBERS, WHOLE, STRANGE)


@given(
    st.lists(
        st.one_of(
            st.lists(ENTRY, min_size=2, max_size=3),
            st.tuples(NUMBERS, WHOLE, NUMBERS),
            st.dictionaries(st.sampled_from([*NAMES, "d", 1]), ENTRY, min_size=2),
            st.fixed_dictionaries(dict.fromkeys(NAMES, NUMBERS)),
        ),
        max_size=3,
    ),
    st.sampled_from([NAMED, UNNAMED]),
)
def test_lists_are_read_as_column_by_column(table, columns):
    assert_same(columns, table)


@given(
    st.sampled_from(["f8", "f4", "f2", "i8", "u8", "?", "c8", "O", "M8[s]"]),
    st.tuples(st.integers(0, 2), st.integers(2, 4)),
    st.sampled_from("CF"),
)
def test_arrays_are_read_as_column_by_column(dtype, shape, order):
    table = np.arange(np.prod(shape)).reshape(shape).astype(dtype, order=order)
    assert_same(NAMED, table)


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame({"c": [1], "a": [2.5], "1": [True], "text": ["red"]}),
        [{"a": 2.5, "1": 1, "c": None}],
        [[2.5, 1, np.nan]],
        np.array([[2.5, 1, 0]], dtype=np.float32),
    ],
    ids=["frame", "dictionary", "list", "float32"],
)
def test_plain_numbers_take_the_short_way(table):
    assert plain_floats(NAMED.read(table))[0, :2].tolist() == [2.5, 1.0]


def test_a_frame_keeps_its_own_numbers():
    frame = pd.DataFrame(np.ones((1, 3)), columns=NAMES)
    NAMED.matrix(frame)[:] = 0.0
    assert (frame == 1.0).all().all()


def test_infinite_numbers_are_named():
    with pytest.raises(KnotholeError, match="column 'c' must hold finite numbers; got -inf"):
        NAMED.matrix(pd.DataFrame([[1.0, 2.0, -np.inf]], columns=NAMES))
