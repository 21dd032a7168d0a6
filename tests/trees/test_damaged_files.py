"""Hundreds of damaged XGBoost files: a knothole exception or a right reading, never a crash."""

import json

import numpy as np
import pytest
import xgboost as xgb
from damage import bit_flipped, confused_json, read_all, shuffled, truncated

from knothole.errors import DamagedFile
from knothole.trees import quarantine, read
from knothole.trees.readers import xgboost as reader

COUNT = 60  # damaged files of a kind, for each intact one


pytestmark = pytest.mark.usefixtures("little_patience")


def train(kind):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(200, 4))
    X[:, 3] = rng.integers(0, 70, 200)
    X[rng.random(X.shape) < 0.1] = np.nan
    label = np.nan_to_num(X[:, 0]) + np.nan_to_num(X[:, 3]) % 3
    params = {"max_depth": 3, "nthread": 1, "max_cat_to_onehot": 1}
    if kind == "dart":
        params |= {"booster": "dart", "rate_drop": 0.5, "objective": "reg:logistic"}
        label = (label > 1).astype(float)
    if kind == "vector":
        params |= {"multi_strategy": "multi_output_tree"}
        label = np.column_stack([label, -label])
    types = ["q", "q", "q", "q" if kind == "vector" else "c"]
    data = xgb.DMatrix(X, label=label, feature_types=types, enable_categorical=True)
    return xgb.train(params, data, 4)


@pytest.fixture(scope="module", params=["dart", "vector"])
def model(request):
    return train(request.param)


@pytest.mark.parametrize("form", ["json", "ubj"])
@pytest.mark.parametrize("damage", [truncated, bit_flipped, shuffled])
def test_damaged_bytes(model, form, damage, tmp_path):
    content = bytes(model.save_raw(form))
    rng = np.random.default_rng(5)
    outcomes = read_all(damage(content, COUNT, rng), tmp_path)
    assert outcomes.total() == COUNT
    assert outcomes["read"] < COUNT  # something was damaged
    if damage is truncated:
        assert outcomes["read"] == 0


def test_confused_types(model, tmp_path):
    files = confused_json(bytes(model.save_raw("json")), 4 * COUNT, np.random.default_rng(5))
    outcomes = read_all(files, tmp_path)
    assert outcomes["DamagedFile"] > 2 * COUNT


def in_ubj(path, value):
    """A UBJ document that holds ``value`` (already encoded) under these keys."""
    for key in reversed(path):
        value = b"{i" + bytes([len(key)]) + key.encode() + value + b"}"
    return value


HUGE = (2**62).to_bytes(8, "big")
HANDMADE = {
    "nothing": b"",
    "one byte": b"{",
    "no object": b"[]",
    "empty object": b"{}",
    "deep JSON lists": b'{"learner":' + b"[" * 200_000,
    "deep JSON objects": b'{"learner":' * 100_000,
    "deep JSON, closed": b'{"learner":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "deep UBJ lists": b"{i\x07learner" + b"[" * 200_000,
    "deep UBJ objects": b"{i\x07learner" * 100_000,
    "huge UBJ string": in_ubj(["learner"], b"SL" + HUGE),
    "huge UBJ key": b"{i\x07learner{L" + HUGE,
    "huge UBJ array": in_ubj(["learner"], b"[$dL#L" + HUGE),
    "huge UBJ doubles": in_ubj(["learner"], b"[$D#L" + HUGE),
    "huge UBJ list": in_ubj(["learner"], b"[#L" + HUGE),
    "many UBJ lists in a list": in_ubj(["learner"], b"[#l\x7f\xff\xff\xff" + b"Z" * 1000),
    "negative UBJ length": in_ubj(["learner"], b"[$d#i\xff"),
    "UBJ array of nothing": in_ubj(["learner"], b"[$Z#L" + HUGE),
    "number of a thousand digits": b'{"learner":' + b"9" * 10_000 + b"}",
    "number of many digits as a count": b'{"learner":{"gradient_booster":{"name":"gbtree"}}}',
    "text that is no UTF-8": b'{"learner":"\xff\xfe"}',
    "something after the end": b'{"learner":{}} {}',
}


@pytest.mark.parametrize("content", HANDMADE.values(), ids=HANDMADE)
def test_handmade(content, tmp_path):
    path = tmp_path / "model"
    path.write_bytes(content)
    with pytest.raises(DamagedFile):
        read.read(path)


def test_counts_that_nothing_bears_out(model, tmp_path):
    """A count alone must not make anyone allocate memory for it."""
    path = tmp_path / "model.json"
    for key in ("num_feature", "num_class", "num_target", "num_trees", "num_nodes", "best"):
        document = json.loads(bytes(model.save_raw("json")))
        learner = document["learner"]
        booster = learner["gradient_booster"]
        trees = booster.get("gbtree", booster)["model"]
        if key == "num_trees":
            trees["gbtree_model_param"][key] = "2000000000"
        elif key == "num_nodes":
            trees["trees"][0]["tree_param"][key] = "2000000000"
        elif key == "best":
            wrapper = json.dumps({"_estimator_type": "regressor"})
            learner["attributes"] = {"scikit_learn": wrapper, "best_iteration": "2000000000"}
        else:
            learner["learner_model_param"][key] = "2000000000"
        path.write_text(json.dumps(document))
        with pytest.raises(DamagedFile):
            reader.read_file(path)


def test_intact_files_are_read(model, tmp_path):
    """What the damage is done to can be read, so that a refusal says something."""
    contents = [bytes(model.save_raw(form)) for form in ("json", "ubj")]
    assert read_all(iter(contents), tmp_path) == {"read": 2}


def test_a_file_that_crashes_the_library(tmp_path):
    """XGBoost 3.2 ends the process on a tree of vector leaves without statistics."""
    document = json.loads(bytes(train("vector").save_raw("json")))
    del document["learner"]["gradient_booster"]["model"]["trees"][0]["sum_hessian"]
    path = tmp_path / "model.json"
    path.write_text(json.dumps(document))
    with pytest.raises(DamagedFile, match=r"xgboost crashed|xgboost itself refuses"):
        read.read(path)


def test_a_hang_ends(tmp_path, monkeypatch):
    path = tmp_path / "model.ubj"
    path.write_bytes(bytes(train("dart").save_raw("ubj")))
    monkeypatch.setattr(quarantine, "TIMEOUT", 0.0)
    with (
        quarantine.LibraryProcess("xgboost") as child,
        pytest.raises(DamagedFile, match="longer than"),
    ):
        child.ask(path, np.zeros((1, 4)))


def test_one_child_answers_for_one_file(tmp_path, monkeypatch):
    """As ``read`` does it outside of these tests."""
    path = tmp_path / "model.ubj"
    path.write_bytes(bytes(train("dart").save_raw("ubj")))
    with quarantine.LibraryProcess("xgboost") as child:
        answer = child.ask(path, np.zeros((2, 4)))
        assert answer["margin"].shape == (2, 1) and answer["leaves"].shape == (2, 4)
        assert child.alive
    assert not child.alive
