"""Missing values that others determine: rules are those of a slow twin; such rows are complete."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.tree import DecisionTreeRegressor

import knothole as kh
from knothole.columns.columns import (
    NOT_RECORDED,
    Column,
    Columns,
    Evidence,
    Kind,
    OneHotGroup,
    Variable,
)
from knothole.errors import DamagedFile
from knothole.files import read_container, write_container
from knothole.inspection import dependencies as module
from knothole.inspection.correction import Copies, CorrectionLearner, HeldOutPredictions
from knothole.inspection.dependencies import FAILURES, OFTEN, FunctionalDependencies
from knothole.robust import Robust

MISSING = np.nan


def slow_rules(variables, points, used):
    """Pairs that no two rows contradict, value by value."""
    rules = []
    for s, source in enumerate(variables):
        for t, target in enumerate(variables):
            pairs = [
                (x[s], x[t])
                for x in points.tolist()
                if x[s] == x[s] and x[t] == x[t] and x[s] != unrecorded(source)
            ]
            images = {}
            for value, image in pairs:
                images.setdefault(value, []).append(image)
            if s == t or t not in used or any(len(set(own)) > 1 for own in images.values()):
                continue
            differ = [np.mean([image != other for _, other in pairs]) for _, image in pairs]
            if (len(pairs) - len(images)) * np.mean(differ or [0.0]) < FAILURES:
                continue
            often = sorted(value for value, own in images.items() if len(own) >= OFTEN)
            known = [value for value in often if images[value][0] != unrecorded(target)]
            rules += [[s, t, value, images[value][0]] for value in known]
    return rules


def unrecorded(variable):
    """The point of what is not recorded, None where that is no state."""
    state = len(variable.levels) - 1 if variable.levels else NOT_RECORDED
    return state if variable.nullable else None


def shapes(n=400, seed=0):
    """A shape tells size and height, size tells the shape, height neither."""
    rng = np.random.default_rng(seed)
    shape = rng.integers(6, size=n)
    size = np.array([5.5, 1.0, 7.0, 3.0, 2.0, 9.0])[shape]
    height = np.array([0, 0, 0, 1, 1, 1])[shape]
    points = np.column_stack([size, height, shape, rng.normal(size=n), rng.integers(3, size=n)])
    return points.astype(np.float64)


def pairs(dependencies):
    return set(map(tuple, dependencies.table[:, :2].tolist()))


def plain(n):
    return [Variable(f"x{v}") for v in range(n)]


@pytest.mark.parametrize("seed", range(6))
def test_rules_are_those_of_a_slow_twin(seed):
    rng = np.random.default_rng(seed)
    points = shapes(seed=seed)
    levels = (*"abcdef", None)
    variables = plain(5)
    variables[2] = Variable("shape", Kind.CATEGORICAL, levels, nullable=True)
    variables[0] = Variable("size", nullable=True)
    points[points[:, 2] == 5, 0] = NOT_RECORDED  # as the shape has it: no contradiction
    points[rng.random(len(points)) < 0.1, 2] = 6.0  # whatever the size is: one
    points[rng.random(points.shape) < 0.05] = MISSING
    if seed % 2:
        points[np.flatnonzero(points[:, 2] < 6)[0], 1] = 2.0  # one row that contradicts
    used = np.array([0, 1, 2, 4])
    dependencies = FunctionalDependencies.learned(variables, points, used)
    assert dependencies.table.tolist() == slow_rules(variables, points, used)
    assert (2, 0) in pairs(dependencies)
    assert (0, 2) not in pairs(dependencies)
    assert np.isfinite(dependencies.table).all()
    assert ((2, 1) in pairs(dependencies)) == (seed % 2 == 0)


def test_what_says_nothing_is_no_rule():
    rng = np.random.default_rng(0)
    unique = rng.normal(size=5000)
    seldom = np.zeros(5000)
    seldom[np.argsort(unique)[:40]] = 1.0  # of one sign of the other, but hardly ever
    rounded = np.where(seldom == 1, unique, unique.round(2))
    points = np.column_stack([unique, seldom, rounded])
    assert slow_rules(plain(3), points[:300], np.arange(3)) == []
    assert FunctionalDependencies.learned(plain(3), points, np.arange(3)).table.shape == (0, 4)


def slow_complete(table, points, used):
    out = points.copy()
    for row, x in enumerate(points):
        filled = x.copy()
        for v in used:
            said = {row[3] for row in table if row[1] == v and x[int(row[0])] == row[2]}
            if np.isnan(x[v]) and len(said) == 1:
                filled[v] = said.pop()
        if not np.isnan(filled[used]).any():
            out[row] = filled
    return out


def test_rows_are_completed_as_by_a_slow_twin():
    used = np.array([0, 1, 2, 3])
    dependencies = FunctionalDependencies.learned(plain(5), shapes(), used)
    points = shapes(200, 1)
    points[np.random.default_rng(2).random(points.shape) < 0.3] = MISSING
    points[:20, 0] = 5.5  # may contradict the shape: then nothing is said of the height
    points[20:25, 0] = -1.0  # never seen
    found = dependencies.complete(Evidence(points), used).points
    assert_array_equal(found, slow_complete(dependencies.table, points, used))
    completed = np.isnan(points[:, used]).any(axis=1) & ~np.isnan(found[:, used]).any(axis=1)
    assert completed.sum() > 20
    nothing = Evidence(points[:0])
    assert dependencies.complete(nothing, used).points.shape == (0, 5)


def test_one_hot_groups_are_determined_as_a_whole_and_not_where_they_are_known_in_part():
    columns = Columns(
        (Column("code"), Column("a"), Column("b"), Column("c")), (OneHotGroup("hue", (1, 2, 3)),)
    )
    codes = np.random.default_rng(0).integers(3, size=300)
    rows = np.column_stack([codes * 1.5, np.eye(3)[codes]])
    used = np.arange(2)
    dependencies = FunctionalDependencies.learned(
        columns.variables, columns.evidence(rows).points, used
    )
    assert pairs(dependencies) == {(0, 1), (1, 0)}
    asked = np.array(
        [[1.5, MISSING, MISSING, MISSING], [1.5, 0, MISSING, MISSING], [MISSING, 0, 0, 1]]
    )
    found = dependencies.complete(columns.evidence(asked), used)
    assert_array_equal(found.points, [[1.5, 1], [1.5, MISSING], [3, 2]])
    assert found.partly_observed().tolist() == [False, True, False]


def test_rules_are_looked_for_in_rows_drawn_at_random(monkeypatch):
    """Every other row contradicts what the rows between them say."""
    monkeypatch.setattr(module, "ROWS", 1000)
    rng = np.random.default_rng(0)
    code = rng.integers(0, 5, 4000).astype(float)
    value = np.where(np.arange(4000) % 2 == 0, code**2, rng.integers(0, 5, 4000))
    found = FunctionalDependencies.learned(
        [Variable("a"), Variable("b")], np.column_stack([code, value]), np.arange(2)
    )
    assert not found.targets


# ---- in answers ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wrapped():
    X = shapes(600)[:, :4]
    y = X[:, 0] + 3 * X[:, 1] * X[:, 3] + 0.1 * np.random.default_rng(1).normal(size=600)
    model = DecisionTreeRegressor(max_depth=6, random_state=0).fit(X, y)
    return kh.wrap(model, X, y, [kh.Factorized()]), model


def test_a_row_whose_missing_values_are_determined_has_the_models_own_answer(wrapped):
    robust, model = wrapped
    table = robust.correction_.set_index("missing")
    assert table.loc["determined by others", "kept"] and table.loc["determined by others", "gain"]
    whole = shapes(50, 3)[:, :4]
    for gone in ([0], [2], [1], [0, 1], [1, 2]):
        rows = whole.copy()
        rows[:, gone] = MISSING
        found, std = robust.predict(rows, return_std=True)
        assert_array_equal(found, model.predict(whole))
        assert not std.any()
        assert_array_equal(robust.predict(rows, quantiles=[0.1, 0.9])[:, 1], found)


def test_the_papers_quantities_and_all_other_rows_are_asked_of_p(wrapped):
    robust, model = wrapped
    rows = shapes(50, 3)[:, :4]
    rows[:, 0] = MISSING
    own = model.predict(shapes(50, 3)[:, :4])
    under = kh.wrap(model, shapes(600)[:, :4], density=robust.density_)
    assert_array_equal(robust.margin(rows), under.margin(rows))
    assert_array_equal(robust.predict(rows, corrected=False), under.predict(rows))
    assert np.abs(robust.margin(rows) - own).max() > 0.5
    assert (robust.leaf_probabilities(rows) != under.leaf_probabilities(rows)).nnz == 0
    rows[:, 3] = MISSING  # nothing tells of it
    parts = replace(robust.learned_correction, dependencies=FunctionalDependencies.none())
    without = Robust(robust.expectation_, correction=parts)
    assert_array_equal(robust.predict(rows), without.predict(rows))
    assert (robust.predict(rows) != under.predict(rows)).any()


def test_rules_are_left_out_where_y_speaks_against_them(wrapped, monkeypatch):
    robust, _ = wrapped
    used = robust.expectation_.used
    dependencies = FunctionalDependencies.learned(plain(4), shapes(600)[:, :4], used)
    points = shapes(400, 5)[:, :4]
    points[:, 0] = MISSING
    held_out = [
        HeldOutPredictions(robust.expectation_, points, shapes(400, 5)[:, :4], np.zeros((400, 1)))
    ]
    learner = CorrectionLearner(robust.expectation_, held_out, None, 0)
    rng = np.random.default_rng(0)
    rows, f, y = np.arange(400), held_out[0].output, np.zeros((400, 1))
    for mean, kept in ((0.5 * f, False), (2.0 * f, True), (f, True)):
        copies = Copies(0 * rows, rows, points, mean, f, y)
        monkeypatch.setattr(learner, "copies", lambda count, hide, copies=copies: copies)
        gain, _, why = learner.judged(dependencies)
        assert (why == "") == kept
        assert gain == pytest.approx(0.0 if mean is f else 1.0)
    unknown = np.full_like(y, np.nan)
    shuffled = rng.permutation(f)  # what rows have is not what the rules say
    contradicted = Copies(0 * rows, rows, points, np.full_like(f, f.mean()), shuffled, unknown)
    monkeypatch.setattr(learner, "copies", lambda count, hide: contradicted)
    assert "rows held out contradict it" in learner.judged(dependencies)[2]
    copies = Copies(0 * rows, rows, points, 0.5 * f, f, unknown)
    monkeypatch.setattr(learner, "copies", lambda count, hide: copies)
    assert learner.judged(dependencies)[2] == ""  # y is not known
    few = Copies(*(array[:50] for array in copies))
    monkeypatch.setattr(learner, "copies", lambda count, hide: few)
    assert "50 rows to judge it by" in learner.judged(dependencies)[2]


def test_rules_are_kept_in_files_with_other_parts_and_without(wrapped, tmp_path):
    robust, _ = wrapped
    rows = shapes(80, 4)[:, :4]
    rows[np.random.default_rng(0).random(rows.shape) < 0.3] = MISSING
    path = tmp_path / "model.knothole"
    for parts in (robust.learned_correction.parts, ()):
        learned = replace(robust.learned_correction, parts=parts)
        one = Robust(robust.expectation_, correction=learned)
        one.save(path)
        again = kh.load(path)
        assert_array_equal(again.predict(rows), one.predict(rows))
        assert_array_equal(again.learned_correction.dependencies.table, learned.dependencies.table)
    header, _ = read_container(path, "knothole model", 1)
    assert header["parts"] == []


@pytest.mark.parametrize("damage", ["variable", "order", "shape", "nothing"])
def test_damaged_rules_are_refused(wrapped, tmp_path, damage):
    path = tmp_path / "model.knothole"
    wrapped[0].save(path)
    header, arrays = read_container(path, "knothole model", 1)
    table = arrays["correction.determined"]
    header["parts"] = []
    arrays["correction.determined"] = {
        "variable": table + np.array([0, 4, 0, 0]),
        "order": table[::-1].copy(),
        "shape": table[:, :3].copy(),
        "nothing": table[:0],
    }[damage]
    write_container(path, header, arrays)
    with pytest.raises(DamagedFile):
        kh.load(path)


@pytest.mark.parametrize("image", [3.0, 0.5, -1.0])
def test_codes_of_no_level_are_refused(image):
    dependencies = FunctionalDependencies(np.array([[0.0, 1.0, 7.5, image]]))
    dependencies.check([0, 0])
    with pytest.raises(DamagedFile, match="level"):
        dependencies.check([0, 3])
