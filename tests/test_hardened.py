"""Files of ours that say what cannot be: every restored class refuses them before a kernel runs."""

import json
import subprocess
import sys
import tracemalloc

import lightgbm
import numpy as np
import pandas as pd
import pytest
from sklearn.compose import TransformedTargetRegressor
from sklearn.tree import DecisionTreeRegressor

import knothole as kh
from knothole.columns.columns import Columns
from knothole.densities import storage
from knothole.errors import DamagedFile, InvalidInput
from knothole.files import read_container, write_container


def table():
    """A number, a count with a family of its own, one not always recorded, and a category."""
    rng = np.random.default_rng(0)
    size = rng.normal(size=200)
    return pd.DataFrame(
        {
            "size": size,
            "count": rng.poisson(3.0, 200),
            "width": rng.normal(size=200),
            "city": pd.Categorical(np.where(size > 0, "Graz", "Linz"), ["Graz", "Linz", "Wien"]),
        }
    )


def fitted():
    frame = table()
    columns = Columns.infer(frame)
    columns = columns.with_nullable([False, False, True, False])
    matrix = columns.matrix(frame)
    missing_mask = np.zeros(matrix.shape, dtype=bool)
    matrix[:20, 2] = np.nan
    families = {"size": "histogram", "count": "negative_binomial", "width": "atoms+gaussian"}
    seeded = {"random_state": 0, "max_iter": 3, "tol": 1e9}
    mixture = kh.Mixture(4, families=families, **seeded).fit_matrix(
        matrix, columns, missing_mask=missing_mask
    )
    return {
        "mixture": mixture,
        "tree": kh.LatentTree(2, **(seeded | {"max_iter": 20})).fit_matrix(
            matrix, columns, missing_mask=missing_mask
        ),
        "gaussian": kh.GaussianMixture(2, normal_scores=True, **seeded).fit_matrix(
            matrix, columns, missing_mask=missing_mask
        ),
        "circuit": mixture.to_circuit(),
    }


@pytest.fixture(scope="module")
def densities():
    return fitted()


def longer(n):
    return lambda a: np.resize(a, (n, *a.shape[1:]))


def put(value, *place):
    def change(array):
        array = array.copy()
        array[place or ...] = value
        return array

    return change


def wider(array):
    return np.repeat(array, 2, axis=1)


BROKEN_ARRAYS = [
    # A thousand weights for four components was a segmentation fault; three, a corrupt heap;
    # five, 1e274 for an answer.
    *(("mixture", "weights", longer(n)) for n in (1000, 5, 3, 1, 0)),
    ("mixture", "weights", put(-0.5, 0)),
    ("mixture", "weights", put(np.nan, 0)),
    ("mixture", "weights", lambda a: a / 2),
    ("mixture", "weights", lambda a: a.astype(np.float32)),
    ("mixture", "weights", lambda a: a.astype(">f8")[::-1].astype("U5")),
    ("mixture", "objective", put(np.nan)),
    ("mixture", "leaf0.table", longer(3)),
    ("mixture", "leaf0.table", wider),
    ("mixture", "leaf0.table", put(np.nan, 0, 0)),
    ("mixture", "leaf0.table", put(5.0, 0, 0)),
    ("mixture", "leaf0.marginal", longer(2)),
    ("mixture", "leaf0.edges", lambda a: a[::-1]),
    ("mixture", "leaf0.edges", put(np.nan, 0)),
    ("mixture", "leaf1.mean", put(-1.0, 0)),
    ("mixture", "leaf1.mean", longer(9)),
    ("mixture", "leaf1.mean", put(1e300, 0)),
    ("mixture", "leaf1.size", lambda a: np.array(0.0)),
    ("mixture", "leaf1.centre", lambda a: np.array(np.nan)),
    ("mixture", "leaf2.points", lambda a: -a),
    ("mixture", "leaf2.points", longer(3)),
    ("mixture", "leaf2.family", lambda a: np.array("categorical")),
    ("mixture", "leaf2.rest.variance", put(0.0, 0)),
    ("mixture", "leaf2.rest.variance", put(1e-320, 0)),
    ("mixture", "leaf2.rest.mean", longer(1)),
    ("mixture", "leaf2.rest.column", lambda a: np.array([0.0, np.inf])),
    ("mixture", "leaf3.table", longer(9)),  # more codes than levels
    ("mixture", "leaf3.table", longer(2)),
    ("tree", "parent", lambda a: a.astype(np.float64)),
    ("tree", "parent", put(99, -1)),
    ("tree", "order", longer(2)),
    ("tree", "prior", longer(1)),
    ("tree", "transition", lambda a: a[:, :1]),
    ("tree", "transition", put(np.nan, 0, 0, 0)),
    ("gaussian", "weights", longer(3)),
    ("gaussian", "means", wider),
    ("gaussian", "means", put(np.inf, 0, 0)),
    ("gaussian", "means", put(-1e308, 0, 0)),
    ("gaussian", "covariances", longer(1)),
    ("gaussian", "covariances", put(-1.0, 0, 0, 0)),
    ("gaussian", "covariances", put(0.7, 0, 0, 1)),
    ("gaussian", "scores.values", lambda a: a[:, :100]),
    ("gaussian", "scores.values", lambda a: a[:, ::-1]),
    ("gaussian", "scores.tail", put(0.0, 0, 0)),
    ("gaussian", "scores.limits", lambda a: a[:, ::-1]),
    ("gaussian", "scores.whole", lambda a: a[:1]),
    ("gaussian", "scores.flat", longer(1)),
    ("gaussian", "scores.flat", put(1.0, 0, 0, 1)),
    ("gaussian", "leaf0.table", longer(7)),
    ("gaussian", "leaf1.table", longer(1)),
    ("circuit", "weights", longer(9)),
    ("circuit", "weights", put(-1.0, 0)),
    ("circuit", "leaf0.table", wider),
]


@pytest.mark.parametrize(("which", "name", "change"), BROKEN_ARRAYS)
def test_arrays_of_densities_that_do_not_fit_are_refused(densities, tmp_path, which, name, change):
    path = tmp_path / "density"
    densities[which].save(path)
    header, arrays = read_container(path, storage.FORMAT, storage.VERSION)
    storage.load(path)
    arrays[name] = change(arrays[name])
    write_container(path, header, arrays)
    with pytest.raises(DamagedFile):
        storage.load(path)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_values_far_out_have_no_density_and_no_nan(densities, tmp_path):
    """A scale of 1e-307 is one that columns may have: what is far from it is just impossible."""
    path = tmp_path / "density"
    kh.Factorized(families={"x0": "gaussian"}).fit([[0.0], [1e-307], [3e-307]]).save(path)
    density = storage.load(path)
    assert (density.score_samples([[0.1], [-1e308]]) < -1e100).all()


def in_parameters(**changes):
    return lambda header: header["parameters"].update(changes)


def in_state(**changes):
    return lambda header: header["state"].update(changes)


def in_column(position, **changes):
    return lambda header: header["state"]["columns"]["columns"][position].update(changes)


BROKEN_HEADERS = [
    lambda header: header.update({"class": {}}),
    in_parameters(n_components=-3),
    in_parameters(tol="small"),
    in_parameters(random_state=-1),
    in_parameters(random_state="seed"),
    in_parameters(families={"nothing": "gaussian"}),
    in_parameters(families=3),
    in_state(target=True),
    in_state(converged="yes"),
    in_state(strength=None),
    in_state(extra=[{"name": "more", "kind": "continuous", "levels": [], "nullable": False}]),
    in_state(families=["histogram", "negative_binomial", "atoms", "histogram"]),
    in_column(0, name=3),
    in_column(0, nullable=1),
    in_column(0, levels=[["str", "a"]]),
    in_column(3, kind="integer"),
    in_column(3, levels=[["str", "Graz"], ["str", "Graz"], ["str", "Wien"]]),
    in_column(3, levels=[["str", "Graz"], ["str", "Linz"]]),
    lambda header: header["state"]["columns"].update(one_hot=[["b", [0.0, 1], False]]),
    lambda header: header["state"]["columns"].update(one_hot=[["b", [-1, 1], False]]),
    lambda header: header["state"]["columns"].update(one_hot=[["b", [3], False]]),
    lambda header: header["state"]["columns"].update(named="no"),
]


@pytest.mark.parametrize("change", BROKEN_HEADERS)
def test_headers_of_densities_that_do_not_fit_are_refused(densities, tmp_path, change):
    path = tmp_path / "density"
    densities["mixture"].save(path)
    header, arrays = read_container(path, storage.FORMAT, storage.VERSION)
    change(header)
    write_container(path, header, arrays)
    with pytest.raises(DamagedFile):
        storage.load(path)


def in_variable(**changes):
    def change(document):
        document["variables"][0].update(changes)

    return change


@pytest.mark.parametrize(
    "change",
    [
        in_variable(name={}),
        in_variable(family=[]),
        lambda document: document["variables"][2]["arrays"]["rest.variance"].__setitem__(0, 0.0),
        lambda document: document["variables"][0]["arrays"]["edges"].reverse(),
        lambda document: document["variables"][1]["arrays"].update(size=-1.0),
    ],
)
def test_circuits_that_do_not_fit_are_refused(densities, change):
    document = json.loads(densities["circuit"].to_json())
    change(document)
    with pytest.raises(InvalidInput):
        kh.Circuit.from_json(json.dumps(document))


def test_circuits_nested_too_deep_are_refused():
    with pytest.raises(InvalidInput, match="must be JSON"):
        kh.Circuit.from_json("[" * 100_000)


# ---- models -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The header and the arrays of a file."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 2))
    tree = DecisionTreeRegressor(max_depth=3).fit(X, 9 * X[:, 0] * X[:, 1])
    path = tmp_path_factory.mktemp("model") / "model.knothole"
    kh.wrap(tree, X, density=kh.Factorized()).save(path)
    return read_container(path, "knothole model", 1)


def with_sets(arrays):
    """A set of categories at a numeric split: a row with 1e12 was read out of bounds."""
    arrays["trees.set_start"] = np.where(arrays["trees.feature"] >= 0, 0, -1).astype(np.int32)
    arrays["trees.sets"] = np.zeros(1, dtype=np.uint64)


def of_trees(name, change):
    def changed(arrays):
        arrays[f"trees.{name}"] = change(arrays[f"trees.{name}"])

    return changed


@pytest.mark.parametrize(
    "change",
    [
        with_sets,
        of_trees("tree_output", put(2**31 - 1)),
        of_trees("tree_output", put(-1)),
        of_trees("tree_output", lambda a: np.array([np.nan])),
        of_trees("feature", put(9, 0)),
        of_trees("feature", lambda a: a + 0.5),
        of_trees("left", put(0, 0)),
        of_trees("left", put(-1, -1)),
        of_trees("left", put(2**31 - 1, 0)),
        of_trees("roots", put(50)),
        of_trees("tree_weight", put(1.7e308)),
        of_trees("value", put(np.nan, 0, 0)),
        of_trees("value", lambda a: a[:, :0]),
        of_trees("value", lambda a: np.repeat(a, 3, axis=1)),
        of_trees("value", longer(3)),
        of_trees("native_leaf", longer(3)),
        of_trees("native_leaf", lambda a: a.astype(np.int64) + 2**40),
        of_trees("threshold", put(np.nan, 0)),
        of_trees("threshold", lambda a: a[:-1]),
        of_trees("base", put(np.inf)),
        of_trees("sentinel", longer(1)),
        of_trees("missing_left", lambda a: a.astype(np.int8)),
    ],
)
def test_trees_that_do_not_fit_are_refused(model, tmp_path, change):
    header, arrays = model[0], dict(model[1])
    change(arrays)
    write_container(tmp_path / "x", header, arrays)
    with pytest.raises(DamagedFile):
        kh.load(tmp_path / "x")


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("draws.tol", "small"),
        ("draws.tol", float("nan")),
        ("reading", {"policy": "infer", "prior": None, "rates": ["no", "no"]}),
        ("model", 3),
        ("trees.link", ["identity", float("nan")]),
        ("trees.precision", "float8"),
        ("trees.classes", [["int", 0], ["int", 1], ["int", 2]]),
        ("selection", {"columns": ["a"], "data": [["b"]], "dtypes": ["S1000000000"]}),
    ],
)
def test_headers_of_models_that_do_not_fit_are_refused(model, tmp_path, entry, value):
    header = {**model[0], **{part: dict(model[0][part]) for part in ("trees", "draws")}}
    of, _, name = entry.rpartition(".")
    (header[of] if of else header)[name] = value
    write_container(tmp_path / "x", header, model[1])
    with pytest.raises(DamagedFile):
        kh.load(tmp_path / "x")


# ---- the current directory ----------------------------------------------------------------------

CHILDREN = {
    "quarantine": (
        "from knothole.trees.read import read\n"
        "try:\n"
        "    read('model.txt')\n"
        "except Exception as error:\n"
        "    print(error)\n"
    ),
}


@pytest.mark.parametrize("which", CHILDREN)
def test_nothing_of_the_current_directory_is_run(tmp_path, which):
    """A ``numpy.py`` beside the data was run by the process that answers for a library."""
    X = np.random.default_rng(0).normal(size=(50, 2))
    booster = lightgbm.LGBMRegressor(n_estimators=2, verbose=-1, n_jobs=1).fit(X, X[:, 0]).booster_
    booster.save_model(tmp_path / "model.txt")
    for name in ("numpy", "lightgbm", "knothole"):
        code = f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\nraise SystemExit"
        (tmp_path / f"{name}.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-P", "-c", CHILDREN[which]],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not (tmp_path / "ran").exists()


# ---- parts that do not fit together, answers that are no numbers --------------------------------


def saved_model(tmp_path, density, model=None):
    """A file, with its header and arrays, and rows to ask it."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(200, 2)), columns=["a", "b"])
    if model is None:
        model = DecisionTreeRegressor(max_depth=3, random_state=0)
    path = tmp_path / "model.knothole"
    kh.wrap(model.fit(frame, frame["a"]), frame, density=density).save(path)
    return path, *read_container(path, "knothole model", 1)


ROWS = pd.DataFrame({"a": [np.nan, 0.5, np.nan], "b": [np.nan, np.nan, 0.5]})


def refused(path, header, arrays, match):
    write_container(path, header, arrays)
    with pytest.raises(DamagedFile, match=match):
        kh.load(path)


@pytest.mark.parametrize("density", [kh.Factorized(), kh.GaussianMixture(1, random_state=0)])
def test_columns_of_trees_and_density_have_the_same_names(tmp_path, density):
    """With two names exchanged, a missing value was taken for one of the other column."""
    path, header, arrays = saved_model(tmp_path, density)
    first, second = header["density"]["state"]["columns"]["columns"]
    first["name"], second["name"] = second["name"], first["name"]
    refused(path, header, arrays, "column 'b' stands where the model has 'a'")


def test_answers_that_could_not_be_numbers_are_refused(tmp_path):
    path, header, arrays = saved_model(tmp_path, kh.Factorized())
    value = arrays["trees.value"].copy()
    value[0] = 1e200  # its square, and with it the standard deviation, is infinite
    refused(path, header, arrays | {"trees.value": value}, "squares of margins .* are not finite")
    sinh = TransformedTargetRegressor(
        DecisionTreeRegressor(max_depth=3), func=np.arcsinh, inverse_func=np.sinh
    )
    path, header, arrays = saved_model(tmp_path, kh.Factorized(), sinh)
    for shift in (800.0, -800.0):
        shifted = arrays | {"trees.base": arrays["trees.base"] + shift}
        refused(path, header, shifted, "squares of predictions .* are not finite")


@pytest.mark.parametrize("largest", [1e100, 1e150, 1.2e154])
def test_spreads_of_large_answers_are_finite(tmp_path, largest):
    """Their standard errors take fourth powers, which were infinite from 1e77 on."""
    density = kh.GaussianMixture(1, random_state=0)
    path, header, arrays = saved_model(tmp_path, density)
    value, answers = arrays["trees.value"], []
    for factor in (1.0, largest / np.abs(value).max()):
        spread = {name: [factor] for name in ("margin", "prediction")}  # what errors are held to
        header["draws"]["spread"] = spread
        write_container(path, header, arrays | {"trees.value": factor * value})
        answers.append(kh.load(path).predict(ROWS, return_std=True, return_error=True))
    for part, large in zip(*answers, strict=True):
        assert np.isfinite(large).all() and (part > 0).any()
        np.testing.assert_allclose(large / factor, part, rtol=1e-9)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_would_be_refused_is_not_saved(tmp_path):
    X = np.arange(40.0).reshape(20, 2)
    robust = kh.wrap(DecisionTreeRegressor().fit(X, 1e160 * X[:, 0]), X, density=kh.Factorized())
    with pytest.raises(InvalidInput, match=r"cannot be saved\. Train it on a smaller scale"):
        robust.save(tmp_path / "model.knothole")


def test_a_seed_of_draws_is_no_negative_number(tmp_path):
    path, header, arrays = saved_model(tmp_path, kh.Factorized())
    header["draws"]["seed"] = -1
    refused(path, header, arrays, "seed -1")


@pytest.mark.parametrize(
    "density",
    [kh.Factorized(), kh.Mixture(2), kh.LatentTree(2), kh.GaussianMixture(2)],
    ids=lambda density: type(density).__name__,
)
def test_columns_that_differ_by_less_than_can_be_computed_with_are_refused(density):
    """Weights were NaN, and the file could not be read back."""
    X = np.random.default_rng(0).normal(size=(100, 2))
    X[:, 1] = np.where(X[:, 0] > 0, 0.0, 5e-324)
    with pytest.raises(InvalidInput, match="column 'x1' has values that differ by 5e-324 at most"):
        density.fit(X)


@pytest.mark.parametrize("spread", [2**40, 2**20, 1])
def test_integers_near_the_largest_reload_to_the_last_bit(tmp_path, spread):
    rng = np.random.default_rng(0)
    z = rng.normal(size=200)
    whole = 2**62 + (1e6 * z).astype(np.int64) * spread
    frame = pd.DataFrame({"a": z + rng.normal(size=200), "i": whole, "b": rng.normal(size=200)})
    model = DecisionTreeRegressor(max_depth=4, random_state=0).fit(frame, z)
    density = kh.LatentTree(3, random_state=0, max_iter=20, tol=1e-2)
    robust = kh.wrap(model, frame, density=density)
    robust.save(tmp_path / "model.knothole")
    again = kh.load(tmp_path / "model.knothole")
    rows = frame.astype({"i": "Int64"})
    rows.loc[::2, "a"] = np.nan
    rows.loc[1::2, "i"] = pd.NA
    np.testing.assert_array_equal(again.predict(rows), robust.predict(rows))
    np.testing.assert_array_equal(
        again.density_.score_samples(rows), robust.density_.score_samples(rows)
    )


# ---- many levels --------------------------------------------------------------------------------


def test_memory_grows_with_levels_not_with_their_square():
    rng = np.random.default_rng(0)
    levels = [f"level {i}" for i in range(6000)]
    table = pd.DataFrame(
        {"a": rng.normal(size=300), "c": pd.Categorical.from_codes(np.arange(300) % 9, levels)}
    )
    y = table["a"] + (np.arange(300) % 9 > 4)
    model = lightgbm.LGBMRegressor(n_estimators=2, verbose=-1, n_jobs=1).fit(table, y)
    robust = kh.wrap(model, table, density=kh.Factorized())
    rows = table.head(4).copy()
    rows.loc[::2, "c"] = None
    robust.predict(rows.iloc[:0:-1])
    again = kh.wrap(model, table, density=kh.Factorized())
    tracemalloc.start()
    answer = again.predict(rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.isfinite(answer).all() and peak < 5e7
