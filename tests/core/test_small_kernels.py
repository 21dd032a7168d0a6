"""The bindings of the smaller kernels refuse arrays that do not fit, and name what is wrong."""

from types import SimpleNamespace

import numpy as np
import pytest

from knothole import _core


def record(**fields):
    return SimpleNamespace(**fields)


def integers(*shape):
    return np.zeros(shape, np.int64)


def small(*shape):
    return np.zeros(shape, np.int32)


def mask(*shape):
    return np.zeros(shape, np.bool_)


def words(*shape):
    return np.zeros(shape, np.uint64)


ROWS, COLUMNS, K = 3, 2, 4
VALUES = record(code=np.full((ROWS, COLUMNS), 4, np.int16), z=np.zeros((ROWS, 1)),
                base=np.zeros(ROWS), slot=np.array([0, -1]))  # fmt: skip

OTHER_SLOTS = record(**{**vars(VALUES), "slot": np.array([1, 0])})


def stacked():
    return record(table=np.zeros((5, K)), linear=np.zeros((1, K)), square=np.zeros((1, K)))


VARIABLES = record(start=np.arange(COLUMNS + 1), members=np.arange(COLUMNS),
                   n_levels=np.full(COLUMNS, 3), one_hot=mask(COLUMNS),
                   nullable=mask(COLUMNS))  # fmt: skip
# A split in the middle of two leaves, on a column of three categories.
TREE = record(parent=np.array([-1, 0, 0], np.int32), feature=np.array([0, -1, -1], np.int32),
              left=np.array([1, 0, 1], np.int32), edge_set=np.array([-1, 1, 2], np.int32),
              arriving_set=small(3), sets=words(3))  # fmt: skip
SPLITS = record(n_levels=np.array([3]), nullable=mask(1), dummy=small(1), dummy_left=mask(1, 2),
                missing_left=mask(1), own_levels=small(1), own_start=small(1),
                own_sets=words(1))  # fmt: skip
NODES = record(roots=small(1), feature=np.array([0, -1, -1], np.int32), threshold=np.zeros(3),
               left=np.array([1, 0, 1], np.int32), missing_left=mask(3),
               set_start=np.full(3, -1, np.int32), sets=words(0))  # fmt: skip
NUMBERS = np.zeros((2, ROWS), np.uint8)  # of the leaves of two trees


def small_tree():
    return record(feature=integers(31), code=integers(31), left=integers(31),
                  missing_left=mask(31), value=np.zeros(31))  # fmt: skip


# Of each kernel arguments that fit, by name.
FITTING = {
    ("mixture", "join"): lambda: {
        "values": VALUES, "form": stacked(), "log_weight": np.zeros(K), "out": np.zeros((ROWS, K)),
    },
    ("mixture", "gather"): lambda: {
        "values": VALUES, "share": np.zeros((ROWS, K)), "sums": stacked(),
    },
    ("mixture", "score"): lambda: {
        "values": VALUES, "form": stacked(), "log_weight": np.zeros(K), "weight": np.zeros(K),
        "share": np.zeros((ROWS, K)), "log_p": np.zeros(ROWS),
    },
    ("mixture", "expect"): lambda: {
        "values": VALUES, "weight": np.zeros(ROWS), "form": stacked(), "log_prior": np.zeros(K),
        "prior": np.zeros(K), "total": np.zeros(K), "sums": stacked(),
    },
    ("mixture", "pick"): lambda: {
        "share": np.zeros((ROWS, K)), "uniform": np.zeros((ROWS, 2)), "out": integers(ROWS, 2),
    },
    ("mixture", "nearer"): lambda: {
        "value": np.zeros((ROWS, COLUMNS)), "category": mask(COLUMNS), "seed": np.zeros(COLUMNS),
        "number": 1, "distance": np.zeros(ROWS), "nearest": integers(ROWS),
    },
    ("columns", "read_numbers"): lambda: {
        "X": np.zeros((ROWS, COLUMNS)), "missing": mask(ROWS, COLUMNS), "nullable": mask(COLUMNS),
        "points": np.zeros((ROWS, COLUMNS)),
    },
    ("columns", "read_categories"): lambda: {
        "X": np.zeros((ROWS, COLUMNS)), "missing": mask(ROWS, COLUMNS), "variables": VARIABLES,
        "categorical": np.array([0, 1]), "points": np.zeros((ROWS, COLUMNS)),
    },
    ("columns", "read_allowed"): lambda: {
        "missing": mask(ROWS, COLUMNS), "variables": VARIABLES, "categorical": np.array([0, 1]),
        "offsets": np.array([0, 1, 2]), "points": np.zeros((ROWS, COLUMNS)),
        "allowed": words(ROWS, 2),
    },
    ("regions", "split_sets"): lambda: {
        "tree": TREE, "splits": integers(1), "set_start": small(3), "left_sets": words(1),
        "full_start": small(1), "n_words": np.ones(1, np.int64),
    },
    ("regions", "variable_sets"): lambda: {
        "splits": SPLITS, "nodes": integers(1), "start": small(1), "sets": words(1),
    },
    ("circuit", "count_leaves"): lambda: {"points": np.zeros((ROWS, 1)), "nodes": NODES},
    ("circuit", "list_leaves"): lambda: {
        "points": np.zeros((ROWS, 1)), "nodes": NODES, "row": small(9), "leaf": small(9),
    },
    ("leaf_probabilities", "count_entries"): lambda: {
        "rows": np.arange(ROWS), "row": small(4), "leaf": small(4), "probability": np.ones(4),
        "first": integers(2), "count": integers(ROWS),
    },
    ("leaf_probabilities", "place_entries"): lambda: {
        "rows": np.arange(ROWS), "row": small(4), "leaf": small(4), "probability": np.ones(4),
        "first": integers(2), "next": np.array([0, 4, 4]), "out_leaf": small(4),
        "out_probability": np.zeros(4),
    },
    ("leaf_probabilities", "add_products"): lambda: {
        "first": np.arange(ROWS + 1), "leaf": small(ROWS), "probability": np.zeros(ROWS),
        "rest": np.zeros((ROWS, 2)), "row_weight": np.zeros(ROWS), "gram": np.zeros((K, K)),
        "target": np.zeros((K, 2)),
    },
    ("drawn_leaves", "place_leaves"): lambda: {
        "leaf": small(1), "mask": words(1), "ends": np.ones((1, 1), np.int64),
        "leaf_start": integers(2), "first": integers(1), "incomplete": np.ones(1, np.bool_),
        "out": np.zeros((1, 64), np.uint16),
    },
    ("drawn_leaves", "sum_by_leaf"): lambda: {
        "leaf": np.full(ROWS, K - 1, np.uint8), "weight": np.zeros(ROWS),
        "values": np.zeros((ROWS, 2)), "output": 1, "out": np.zeros((K, 1)),
    },
    ("drawn_leaves", "add_step"): lambda: {
        "leaf": np.zeros(ROWS, np.uint8), "step": np.zeros((K, 1)), "output": 1,
        "out": np.zeros((ROWS, 2)),
    },
    ("drawn_leaves", "add_pairs"): lambda: {
        "leaf": NUMBERS, "begin": 1, "weight": np.zeros(2), "trees": np.arange(2), "place": 1,
        "start": np.array([0, 2, 4]), "out": np.zeros((4, 4)),
    },
    ("chow_liu", "information"): lambda: {
        "codes": small(COLUMNS, ROWS), "weight": np.ones(ROWS), "start": 0, "stop": 2,
        "n_codes": 1, "out": np.zeros((COLUMNS, COLUMNS)),
    },
    ("boosting", "grow"): lambda: {
        "code": np.zeros((ROWS, COLUMNS), np.uint8), "width": np.ones(COLUMNS, np.int64),
        "slope": np.zeros(ROWS), "curvature": np.zeros(ROWS), "margin": np.zeros(ROWS),
        "tree": small_tree(),
    },
}  # fmt: skip


def changes(value):
    """Arrays that should not be accepted in the place of another, and why."""
    yield "dtype", value.astype(np.float32)
    yield "axes", value[None]
    yield "layout", np.repeat(value, 2, axis=-1)[..., ::2]


def call(kernel, arguments):
    submodule, name = kernel
    return getattr(getattr(_core, submodule), name)(**arguments)


@pytest.mark.parametrize("kernel", FITTING, ids=".".join)
def test_arrays_that_do_not_fit_are_refused(kernel):
    call(kernel, FITTING[kernel]())
    for name, given in FITTING[kernel]().items():
        arrays = {None: given} if isinstance(given, np.ndarray) else vars(given) if isinstance(
            given, SimpleNamespace) else {}  # fmt: skip
        for field, array in arrays.items():
            for why, other in changes(array):
                if why == "layout" and other.flags.c_contiguous:
                    continue
                wrong = other if field is None else record(**{**vars(given), field: other})
                with pytest.raises(TypeError, match=name if field is None else field):
                    call(kernel, {**FITTING[kernel](), name: wrong})


#: What each kernel writes to.
WRITTEN = {
    "join": ["out"], "gather": ["sums.table", "sums.linear", "sums.square"],
    "score": ["share", "log_p"], "expect": ["total", "sums.table"], "pick": ["out"],
    "nearer": ["distance", "nearest"], "read_numbers": ["points"], "read_categories": ["points"],
    "read_allowed": ["allowed"], "split_sets": ["tree.sets", "tree.arriving_set"],
    "variable_sets": ["sets"], "count_leaves": [], "list_leaves": ["row", "leaf"],
    "count_entries": ["count"], "place_entries": ["next", "out_leaf", "out_probability"],
    "add_products": ["gram", "target"], "place_leaves": ["out"], "sum_by_leaf": ["out"],
    "add_step": ["out"], "add_pairs": ["out"], "information": ["out"],
    "grow": ["margin", "tree.feature", "tree.code", "tree.left", "tree.missing_left", "tree.value"],
}  # fmt: skip


@pytest.mark.parametrize("kernel", FITTING, ids=".".join)
def test_what_is_written_must_be_writable_and_have_the_size(kernel):
    for path in WRITTEN[kernel[1]]:
        name, _, field = path.partition(".")
        arguments = FITTING[kernel]()
        given = getattr(arguments[name], field) if field else arguments[name]
        fixed = given.copy()
        fixed.flags.writeable = False
        for wrong, error in ((fixed, TypeError), (given[:-1].copy(), ValueError)):
            replaced = record(**{**vars(arguments[name]), field: wrong}) if field else wrong
            with pytest.raises(error):
                call(kernel, {**arguments, name: replaced})


@pytest.mark.parametrize(
    ("kernel", "name", "value", "message"),
    [
        (("mixture", "join"), "values", OTHER_SLOTS, "slot"),
        (("columns", "read_categories"), "categorical", np.array([2]), "categorical"),
        (("columns", "read_allowed"), "offsets", np.array([0, 1, 3]), "offsets"),
        (("regions", "split_sets"), "splits", np.array([1]), "inner nodes"),
        (("regions", "split_sets"), "n_words", np.array([2]), "room"),
        (("regions", "variable_sets"), "start", np.ones(1, np.int32), "room"),
        (("leaf_probabilities", "add_products"), "first", np.array([0, 2, 1, 9]), "ascend"),
        (("drawn_leaves", "place_leaves"), "first", np.array([1]), "room for all draws"),
        (("drawn_leaves", "sum_by_leaf"), "output", 2, "room"),
        (("drawn_leaves", "add_step"), "output", -1, "room"),
        (("drawn_leaves", "add_pairs"), "begin", 2, "draws"),
        (("drawn_leaves", "add_pairs"), "start", np.array([0, 2, 5]), "ascend"),
        (("chow_liu", "information"), "n_codes", 0, "n_codes"),
        (("boosting", "grow"), "width", np.array([1, 65]), "at most 64"),
    ],
    ids=str,
)
def test_places_that_are_not_there_are_refused(kernel, name, value, message):
    with pytest.raises(ValueError, match=message):
        call(kernel, {**FITTING[kernel](), name: value})
