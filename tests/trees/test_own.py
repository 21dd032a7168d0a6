"""Trees of one's own: the paper's definitions to the letter, read, checked and refitted."""

import copy
import itertools
import json

import numpy as np
import pandas as pd
import pytest

import knothole as kh
from knothole.errors import DamagedFile
from knothole.trees.read import read, reading_of
from knothole.trees.readers import own

CITIES = ["Graz", "Linz", "Wien", "Rust"]


def leaf(value):
    return {"value": value}


def hand_made():
    """Three and four branches, on intervals and on levels, and trees of different weight."""
    by_age = {
        "column": "age",
        "below": [18, 40.5, 65],
        "branches": [leaf(1), leaf(2.5), leaf(-3), leaf(7)],
        "missing": 2,
    }
    by_city = {
        "column": "city",
        "levels": [["Linz"], ["Graz", "Rust"], ["Wien"]],
        "branches": [by_age, leaf(0.25), leaf(11)],
        "missing": 1,
        "unseen": 2,
    }
    rooms = {"column": "rooms", "below": [3], "branches": [by_city, leaf(5)], "missing": 0}
    return {
        "format": "knothole trees",
        "version": 1,
        "columns": ["age", {"name": "city", "levels": CITIES}, "rooms"],
        "base": 0.5,
        "trees": [
            {"weight": 0.3, "root": by_city},
            {"weight": -2.0, "root": rooms},
            {"root": leaf(4)},
        ],
    }


def table(n=400, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.normal(40, 20, n).round(),
            "city": rng.choice(CITIES, n),
            "rooms": rng.integers(1, 6, n),
        }
    )


def paths(node, tests=()):
    """Every leaf with the tests on its way: which column must be in what."""
    if "column" not in node:
        yield node, tests
        return
    if "below" in node:
        ends = [-np.inf, *node["below"], np.inf]
        sets = [lambda x, a=a, b=b: a <= x < b for a, b in itertools.pairwise(ends)]
    else:
        sets = [lambda x, own=own: x in own for own in node["levels"]]
    for branch, inside in zip(node["branches"], sets, strict=True):
        yield from paths(branch, (*tests, (node["column"], inside)))


def equation_1(tree, row):
    """The sum over leaves of their values times the product of the tests on their ways."""
    return sum(
        np.prod([inside(row[column]) for column, inside in tests]) * np.asarray(own["value"])
        for own, tests in paths(tree["root"])
    )


def equation_2(document, row):
    """The weighted sum over trees."""
    return document["base"] + sum(
        tree.get("weight", 1.0) * equation_1(tree, row) for tree in document["trees"]
    )


def test_equations_1_and_2_to_the_letter():
    document, rows = hand_made(), table()
    ensemble = read(document)
    expected = [equation_2(document, row) for _, row in rows.iterrows()]
    found = ensemble.predict(ensemble.columns.matrix(rows))[:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_the_edges_of_intervals_belong_to_the_upper_one():
    ensemble = read(hand_made())
    for age in (18.0, 40.5, 65.0):
        for near in (np.nextafter(age, -np.inf), age):
            row = pd.DataFrame({"age": [near], "city": ["Linz"], "rooms": [4.0]})
            expected = equation_2(hand_made(), row.iloc[0])
            assert ensemble.predict(ensemble.columns.matrix(row))[0, 0] == pytest.approx(expected)


def test_missing_values_are_integrated_over_by_enumeration():
    rows = table(300)
    robust = kh.wrap(hand_made(), rows, density=kh.Mixture(3, random_state=0))
    asked = pd.DataFrame({"age": [70.0, 20.0], "city": [None, None], "rooms": [2, 4]}, dtype=object)
    asked = asked.astype({"age": float, "rooms": float})
    for i, found in enumerate(robust.predict(asked)):
        every = pd.concat([asked.iloc[[i]]] * 4).assign(city=CITIES)
        weight = np.exp(robust.density_.score_samples(every))
        values = np.array([equation_2(hand_made(), row) for _, row in every.iterrows()])
        assert found == pytest.approx(weight @ values / weight.sum(), rel=1e-9)


def test_nan_and_levels_never_seen_go_where_the_document_sends_them():
    ensemble = read(hand_made())
    matrix = np.array([[np.nan, 1.0, 4.0], [30.0, np.nan, 4.0], [30.0, 4.0, 4.0]])
    one, two, three = ensemble.predict(matrix)[:, 0]
    rest = 0.5 - 2.0 * 5 + 4
    assert one == pytest.approx(0.3 * -3 + rest)
    assert two == pytest.approx(0.3 * 0.25 + rest)
    assert three == pytest.approx(0.3 * 11 + rest)


def test_without_missing_every_nan_is_missing():
    document = hand_made()
    assert reading_of(document).takes_nan
    del document["trees"][0]["root"]["missing"]
    assert not reading_of(document).takes_nan
    read(document)


def classifier():
    soft = {
        "column": "age",
        "below": [40],
        "branches": [leaf([0.2, 0.5, 0.3]), leaf([0.0, 0.1, 0.9])],
    }
    hard = {
        "column": "city",
        "levels": [["Graz", "Linz"], ["Wien", "Rust"]],
        "branches": [{"label": "low"}, {"label": "high"}],
    }
    return {
        "format": "knothole trees",
        "columns": hand_made()["columns"],
        "classes": ["low", "middle", "high"],
        "trees": [{"weight": 0.5, "root": soft}, {"weight": 0.5, "root": hard}],
    }


def test_hard_and_soft_leaves():
    rows = table()
    robust = kh.wrap(classifier(), rows, density=kh.Factorized())
    row = pd.DataFrame({"age": [50.0], "city": ["Graz"], "rooms": [1]})
    np.testing.assert_allclose(robust.predict_proba(row), [[0.5, 0.05, 0.45]])
    assert robust.predict(row).tolist() == ["low"]
    shares = rows["city"].isin(["Graz", "Linz"]).mean()
    nothing = robust.predict_proba(row.assign(city=None))
    expected = [0.5 * shares, 0.05, 0.45 + 0.5 * (1 - shares)]
    np.testing.assert_allclose(nothing, [expected], atol=0.01)


@pytest.mark.parametrize(
    ("link", "classes", "value", "predicted"),
    [
        ("exp", None, 1.0, np.e),
        ("sigmoid", ["no", "yes"], 0.0, 0.5),
        ("softmax", ["a", "b"], [0.0, np.log(3)], 0.25),
    ],
)
def test_links(link, classes, value, predicted):
    document = {
        "format": "knothole trees",
        "columns": ["x"],
        "link": link,
        "trees": [{"root": leaf(value)}],
    }
    if classes:
        document["classes"] = classes
    assert read(document).predict(np.zeros((1, 1)))[0, 0] == pytest.approx(predicted)


def test_trees_that_serve_one_output_each():
    document = {
        "format": "knothole trees",
        "columns": ["x"],
        "base": [1.0, 2.0],
        "trees": [{"root": leaf(10), "output": 1}, {"root": leaf(3)}],
    }
    assert read(document).predict(np.zeros((1, 1))).tolist() == [[4.0, 12.0]]


def test_they_are_refitted_and_written_back():
    rng = np.random.default_rng(1)
    rows = table()
    y = np.array([equation_2(hand_made(), row) for _, row in rows.iterrows()]) + 3.0
    missing_mask = rows.astype({"rooms": float}).mask(rng.random(rows.shape) < 0.2)
    document = hand_made()
    robust = kh.wrap(document, rows, density=kh.Mixture(3, random_state=0), nan_policy="lost")
    refitted = robust.refit_leaves(missing_mask, y)
    assert refitted.refit_.after < refitted.refit_.before
    written = refitted.to_native()
    assert document == hand_made()
    found = [equation_2(written, row) for _, row in rows.iterrows()]
    np.testing.assert_allclose(refitted.predict(rows), found, rtol=1e-9)


def test_files(tmp_path):
    path = tmp_path / "trees.json"
    own.save({**hand_made(), "base": np.float32(0.5)}, path)
    assert json.loads(path.read_text()) == hand_made()
    rows = table(300)
    from_file = kh.wrap(path, rows, density=kh.Factorized(random_state=0))
    from_dict = kh.wrap(hand_made(), rows, density=kh.Factorized(random_state=0))
    asked = rows.assign(city=None)
    np.testing.assert_array_equal(from_file.predict(asked), from_dict.predict(asked))
    assert from_file.to_native() == hand_made()
    from_file.save(tmp_path / "model.knothole")
    again = kh.load(tmp_path / "model.knothole")
    np.testing.assert_array_equal(again.predict(asked), from_dict.predict(asked))


def changed(change):
    document = copy.deepcopy(hand_made())
    change(document, document["trees"][0]["root"])
    return document


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d, n: d.update(format="trees"), "'format' must be 'knothole trees'"),
        (lambda d, n: d.update(version=2), "'version' must be 1"),
        (lambda d, n: d.update(tree=[]), r"a model has .*; found \['tree'\]"),
        (lambda d, n: d.update(trees=[]), "'trees' must not be empty"),
        (lambda d, n: d.update(columns=["age", "age"]), "different names"),
        (lambda d, n: d.update(link="logit"), "'link' must be one of"),
        (lambda d, n: d.update(base=[0.0, "a"]), "base must hold numbers"),
        (lambda d, n: d.update(link=["exp"]), "'link' must be one of"),
        (lambda d, n: d.update(classes=[["a"], "b"]), "'classes' must be text or numbers"),
        (lambda d, n: d["columns"][1].update(levels=[{}, "b"]), "'levels' must be text or numbers"),
        (lambda d, n: d["trees"][0].update(weight=[]), "weight must hold numbers"),
        (lambda d, n: d.pop("base") and d["trees"][0].update(output=2**40), "more outputs"),
        (lambda d, n: d["trees"][0].update(output=1.5), "expected int, found float"),
        (lambda d, n: n["branches"].__setitem__(1, leaf([1, []])), "value must hold numbers"),
        (lambda d, n: n.update(column="height"), "there is no column 'height'"),
        (lambda d, n: n["levels"].pop(), "each of its levels once"),
        (lambda d, n: n["levels"][0].append("Wien"), "each of its levels once"),
        (lambda d, n: n["branches"].pop(), "2 branches of 'city', not 3"),
        (lambda d, n: n.update(missing=3), "must be places of branches"),
        (lambda d, n: n["branches"][0].update(below=[40, 18, 65]), "ascending numbers"),
        (lambda d, n: n["branches"][0].pop("below"), "no field 'below'"),
        (lambda d, n: n["branches"][1].update(label="a"), "either a 'value' or a 'label'"),
        (lambda d, n: n["branches"].__setitem__(1, {"label": "a"}), "one of the classes"),
        (lambda d, n: n["branches"].__setitem__(1, leaf([1, 2])), "2 values of a leaf, not 1"),
        (lambda d, n: n["branches"].__setitem__(1, leaf(np.inf)), "not finite"),
    ],
)  # fmt: skip
def test_what_is_not_of_the_form_is_refused(change, message):
    with pytest.raises(DamagedFile, match=message):
        read(changed(change))


def test_a_tree_that_is_too_deep():
    root = leaf(1)
    for _ in range(5000):
        root = {"column": "x", "below": [0], "branches": [leaf(0), root]}
    document = {"format": "knothole trees", "columns": ["x"], "trees": [{"root": root}]}
    with pytest.raises(DamagedFile, match="too deep"):
        read(document)


def test_a_damaged_file(tmp_path):
    path = tmp_path / "trees.json"
    path.write_text('{"format": "knothole trees", "columns": ["a"], "trees": [}')
    with pytest.raises(DamagedFile, match="the file is damaged"):
        read(path)
