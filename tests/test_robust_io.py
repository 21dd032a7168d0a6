"""One file for a robust model: what comes back, what is refused, and a file that is kept."""

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import catboost
import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost
from numpy.testing import assert_allclose, assert_array_equal
from pandas.testing import assert_frame_equal
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import RandomForestClassifier, VotingRegressor
from sklearn.tree import DecisionTreeRegressor

import knothole as kh
from knothole.errors import DamagedFile, InvalidInput

GOLDEN = Path(__file__).parent / "golden"
QUIET = {"n_estimators": 5, "max_depth": 3, "n_jobs": 1}


def table():
    """Numbers, some of them not recorded, and categories."""
    rng = np.random.default_rng(0)
    size = rng.normal(size=400)
    frame = pd.DataFrame(
        {
            "size": size,
            "age": np.where(rng.random(400) < 0.1, np.nan, np.round(5 * size + 40)),
            "city": pd.Categorical(np.where(size + rng.normal(size=400) > 0, "Graz", "Linz")),
        }
    )
    return frame, size + 0.1 * (frame["age"].fillna(60) - 40)


def with_missing(frame):
    """The first rows, each with a missing value."""
    rows = frame.head(30).copy()
    for place, name in enumerate(rows.columns):
        rows.iloc[place::3, place] = None
        assert rows[name].isna().any()
    return rows


def golden_model():
    """What the golden file was made of."""
    frame, y = table()
    model = lightgbm.LGBMRegressor(**QUIET, min_child_samples=5, verbose=-1).fit(frame, y)
    density = kh.Mixture(3, random_state=0)
    return kh.wrap(model, frame, y, {"plain": kh.Factorized(random_state=0), "mixed": density})


@pytest.fixture(scope="module")
def robust():
    return golden_model()


@pytest.fixture
def path(robust, tmp_path):
    robust.save(tmp_path / "model.knothole")
    return tmp_path / "model.knothole"


def test_everything_comes_back(robust, path):
    again = kh.load(path)
    rows = with_missing(table()[0])
    assert_array_equal(again.predict(rows), robust.predict(rows))
    for ours, theirs in zip(
        again.predict(rows, return_std=True), robust.predict(rows, return_std=True), strict=True
    ):
        assert_array_equal(ours, theirs)
    assert (again.leaf_probabilities(rows) != robust.leaf_probabilities(rows)).nnz == 0
    assert_frame_equal(again.selection_, robust.selection_)
    assert (again.nan_policy_, again.loss_prior_) == (robust.nan_policy_, robust.loss_prior_)
    assert repr(again) == repr(robust) and again.columns_ == robust.columns_


def models():
    frame, y = table()
    numbers = frame[["size", "age"]].fillna(40.0)
    labels = np.where(y > 0, "up", "down")
    both = np.column_stack([y > 0, y > 1])
    tree = DecisionTreeRegressor(max_depth=4, random_state=0)
    sinh = TransformedTargetRegressor(tree, func=np.arcsinh, inverse_func=np.sinh)
    votes = VotingRegressor([("sinh", sinh), ("plain", clone(tree))], weights=[2, 1])
    return {
        "xgboost classes": (xgboost.XGBClassifier(**QUIET).fit(numbers, y > 0), numbers),
        "catboost categories": (
            catboost.CatBoostRegressor(
                iterations=5, depth=3, verbose=0, cat_features=["city"], allow_writing_files=False
            ).fit(frame, y),
            frame,
        ),
        "labels": (RandomForestClassifier(3, max_depth=3).fit(numbers, labels), numbers),
        "two targets": (RandomForestClassifier(3, max_depth=3).fit(numbers, both), numbers),
        "blend": (votes.fit(numbers, y), numbers),
        "refitted": (DecisionTreeRegressor(max_depth=3).fit(numbers, y), numbers),
    }


@pytest.mark.parametrize("name", models())
def test_models_of_all_kinds_come_back(name, tmp_path):
    model, frame = models()[name]
    # Half of the table does not have all of the model's categories: some have a hash, no name.
    seen = frame[frame["city"] == "Graz"] if "city" in frame else frame
    robust = kh.wrap(model, seen, density=kh.Mixture(2, random_state=0))
    if name == "refitted":
        robust = robust.refit_leaves(frame, table()[1])
    robust.save(tmp_path / "model.knothole")
    again = kh.load(tmp_path / "model.knothole")
    rows = seen.head(9).copy()
    rows.iloc[::2, 0] = np.nan
    assert_array_equal(again.predict(rows), robust.predict(rows))
    assert again.ensemble_.classes == robust.ensemble_.classes
    assert again.nan_policy_ == robust.nan_policy_ and again.columns_ == robust.columns_
    if name == "refitted":
        assert again.refit_.after == robust.refit_.after
    with pytest.raises(InvalidInput, match=r"pass the model that was wrapped, to_native\(model\)"):
        again.to_native()
    if name != "blend":  # its leaves are those of models inside it
        assert type(again.to_native(model)) is type(model)


def test_the_golden_file_loads():
    again = kh.load(GOLDEN / "model.knothole")
    expected = json.loads((GOLDEN / "model.json").read_text())
    rows = with_missing(table()[0])
    assert_allclose(again.predict(rows), expected["predict"], rtol=1e-9)
    assert_allclose(again.predict(rows, return_std=True)[1], expected["std"], rtol=1e-6, atol=1e-6)
    assert_allclose(again.predict_interval(rows, 0.8), expected["predict_interval"], rtol=1e-6)
    assert repr(again).startswith("Robust(LGBMRegressor")
    assert again.nan_policy_ == "infer" and again.columns_.nullable.any()


def test_a_loaded_model_needs_no_tree_library(path):
    """Neither to load nor to predict, where the library is not installed."""
    code = (
        "import sys; sys.modules['lightgbm'] = None\n"
        "import knothole as kh, pandas as pd\n"
        f"robust = kh.load({str(path)!r})\n"
        "rows = pd.DataFrame({'size': [0.1], 'age': [None], 'city': ['Graz']})\n"
        "print(robust.predict(rows).shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(1,)"


def test_a_missing_library_is_named(tmp_path):
    frame, y = table()
    booster = lightgbm.LGBMRegressor(**QUIET, verbose=-1).fit(frame[["size"]], y).booster_
    booster.save_model(tmp_path / "model.txt")
    (tmp_path / "lightgbm.py").write_text("raise ImportError('not installed')")
    code = (
        "import knothole as kh\n"
        f"kh.wrap({str(tmp_path / 'model.txt')!r}, [[0.0], [1.0]] * 10, density=kh.Factorized())"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode != 0 and "pip install 'knothole[lightgbm]'" in done.stderr


@pytest.mark.parametrize("tol", [0.07, None])
def test_how_answers_are_drawn_comes_back(tol, tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 3))
    model = DecisionTreeRegressor(max_depth=3).fit(X, X.sum(axis=1))
    density = kh.GaussianMixture(1, random_state=0)
    robust = kh.wrap(model, X, density=density, tol=tol, random_state=5)
    robust.save(tmp_path / "model.knothole")
    again = kh.load(tmp_path / "model.knothole").expectation_
    assert (again.tol, again.seed) == (tol, robust.expectation_.seed)
    assert again.seed != 0
    assert_array_equal(again.spread.margin, robust.expectation_.spread.margin)
    assert_array_equal(again.spread.prediction, robust.expectation_.spread.prediction)


# ---- damage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [0.0, 0.3, 0.99])
def test_half_a_file_is_refused(path, part):
    data = path.read_bytes()
    path.write_bytes(data[: int(part * len(data))])
    with pytest.raises(DamagedFile, match=r"model\.knothole: truncated, damaged, or not a file"):
        kh.load(path)


def test_flipped_bytes_never_pass_unnoticed(robust, path):
    """A zip has a checksum for every part; what it does not cover is refused or harmless."""
    rng = np.random.default_rng(0)
    data = path.read_bytes()
    rows = with_missing(table()[0])
    expected = robust.predict(rows)
    for place in rng.integers(len(data), size=60):
        damaged = bytearray(data)
        damaged[place] ^= 1 << rng.integers(8)
        path.write_bytes(bytes(damaged))
        try:
            again = kh.load(path)
        except DamagedFile:
            continue
        assert_array_equal(again.predict(rows), expected)


def rewritten(path, change):
    """The file with its parts changed by ``change(parts)``, each a name and its bytes."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    change(parts)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)


def edited(field, value):
    """A change of one field of the header, which is JSON in an array of bytes."""

    def change(parts):
        name = next(name for name in parts if name.startswith("header"))
        header = json.loads(np.load(io.BytesIO(parts[name])).tobytes())
        header[field] = value
        data = io.BytesIO()
        np.save(data, np.frombuffer(json.dumps(header).encode(), dtype=np.uint8))
        parts[name] = data.getvalue()

    return change


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("format", "a poem", "not a knothole model, but a a poem"),
        ("version", 99, "written by a newer knothole .*Update knothole"),
        ("reading", {"policy": "some", "prior": None, "rates": None}, "policy 'some'"),
        ("reading", {"policy": "infer", "prior": {"nothing": 2.0}, "rates": None}, "LossPrior"),
        ("density", {"class": "Robust"}, "holds a 'Robust', which is no density"),
        ("trees", {}, "its parts do not fit together"),
        ("selection", 3, "its parts do not fit together"),
    ],
)
def test_headers_that_do_not_fit_are_refused(path, field, value, message):
    rewritten(path, edited(field, value))
    with pytest.raises(DamagedFile, match=message):
        kh.load(path)


@pytest.mark.parametrize("name", ["trees.left.npy", "trees.value.npy", "density.weights.npy"])
def test_files_without_a_part_are_refused(path, name):
    rewritten(path, lambda parts: parts.pop(name))
    with pytest.raises(DamagedFile, match="its parts do not fit together"):
        kh.load(path)


def test_other_files_are_refused(robust, tmp_path):
    robust.density_.save(tmp_path / "density.knothole")
    with pytest.raises(DamagedFile, match="not a knothole model, but a knothole density"):
        kh.load(tmp_path / "density.knothole")
    (tmp_path / "text").write_text("not a file of ours")
    with pytest.raises(DamagedFile, match="not a file of knothole"):
        kh.load(tmp_path / "text")
    with pytest.raises(DamagedFile, match=r"a directory. Pass the file in it that save\(\) wrote"):
        kh.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        kh.load(tmp_path / "nothing")


# ---- writing ------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_written_to(robust, tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="save to a folder that exists"):
        robust.save(tmp_path / "nowhere" / "model.knothole")

    def refuse(*_args, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(PermissionError, match="that you may write to"):
        robust.save(tmp_path / "model.knothole")


def test_a_save_that_fails_leaves_the_old_file(robust, path, monkeypatch):
    before = path.read_bytes()

    def fail(*_args, **_arrays):
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(KeyboardInterrupt):
        robust.save(path)
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


def test_a_density_of_ones_own_cannot_be_saved(tmp_path):
    class Zeros:
        def complete(self, X, draws):
            return np.repeat(np.nan_to_num(X)[:, None], draws, axis=1)

    X = np.arange(20.0).reshape(10, 2)
    robust = kh.wrap(DecisionTreeRegressor().fit(X, X[:, 0]), X, density=Zeros())
    with pytest.raises(InvalidInput, match=r"density of your own .* cannot be saved"):
        robust.save(tmp_path / "model.knothole")


if __name__ == "__main__":  # makes the golden file of the present format
    frame, y = table()
    made = golden_model().conformalize(frame, y)
    rows = with_missing(frame)
    prediction, std = made.predict(rows, return_std=True)
    interval = made.predict_interval(rows, 0.8).to_numpy()
    GOLDEN.mkdir(exist_ok=True)
    made.save(GOLDEN / "model.knothole")
    answers = {"predict": prediction, "std": std, "predict_interval": interval}
    answers = {name: values.tolist() for name, values in answers.items()}
    (GOLDEN / "model.json").write_text(json.dumps(answers, indent=1) + "\n")
