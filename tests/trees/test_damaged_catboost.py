"""Hundreds of damaged CatBoost files: a knothole exception or a right reading, never a crash."""

import json
import re
import struct

import catboost as cb
import numpy as np
import pandas as pd
import pytest
from damage import bit_flipped, confused_json, read_all, shuffled, truncated

from knothole.errors import DamagedFile, KnotholeError
from knothole.trees import quarantine, read
from knothole.trees.readers import cbm as cbm_format

COUNT = 50  # damaged files of a kind, for each intact one


pytestmark = pytest.mark.usefixtures("little_patience")


@pytest.fixture(scope="module", params=["SymmetricTree", "Lossguide"])
def contents(request, tmp_path_factory):
    """An intact model with every kind of split, in both formats."""
    rng = np.random.default_rng(3)
    table = pd.DataFrame(rng.normal(size=(150, 2)), columns=["a", "b"])
    table["one_hot"] = rng.choice(["x", "y", "z"], 150)
    table["ctr"] = rng.integers(0, 20, 150)
    table.loc[::7, "a"] = np.nan
    target = np.digitize(np.nan_to_num(table.a) + (table.one_hot == "x") + table.ctr % 3, [1, 2])
    model = cb.CatBoostClassifier(
        iterations=4,
        depth=3,
        one_hot_max_size=5,
        max_ctr_complexity=1,
        grow_policy=request.param,
        thread_count=1,
        verbose=False,
        allow_writing_files=False,
    ).fit(table, target, cat_features=["one_hot", "ctr"])
    folder = tmp_path_factory.mktemp("intact")
    for form in ("cbm", "json"):
        model.save_model(str(folder / form), format=form)
    return {form: (folder / form).read_bytes() for form in ("cbm", "json")}


@pytest.mark.parametrize("form", ["cbm", "json"])
@pytest.mark.parametrize("damage", [truncated, bit_flipped, shuffled])
def test_damaged_bytes(contents, form, damage, tmp_path):
    outcomes = read_all(damage(contents[form], COUNT, np.random.default_rng(5)), tmp_path)
    assert outcomes.total() == COUNT
    assert outcomes["read"] < COUNT  # something was damaged
    if damage is truncated:
        assert outcomes["read"] == 0


def without_metadata(cbm):
    """The bytes of a cbm file that hold trees, features and tables: most of it is metadata."""
    core = cbm_format._core(cbm)[0]
    texts = [entry.span(1) for entry in core.tables(2)]
    hidden = np.zeros(len(cbm), dtype=bool)
    for start, count in texts:
        hidden[8 + start : 8 + start + count] = True
    return np.flatnonzero(~hidden)


def test_damage_where_it_matters(contents, tmp_path):
    """Words of the binary format replaced, everywhere but in the metadata's text."""
    content = contents["cbm"]
    places = without_metadata(content)
    rng = np.random.default_rng(7)
    words = [0, 1, 2, 3, 255, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32 - 4]

    def files():
        for place in rng.choice(places, 4 * COUNT):
            place -= place % 4
            word = int(rng.choice(words))
            yield content[:place] + struct.pack("<I", word) + content[place + 4 :]

    outcomes = read_all(files(), tmp_path)
    assert outcomes["DamagedFile"] > COUNT


def test_confused_types(contents, tmp_path):
    document = json.loads(contents["json"])
    document["model_info"] = {
        key: document["model_info"][key] for key in ("class_params", "params")
    }
    files = confused_json(json.dumps(document).encode(), 4 * COUNT, np.random.default_rng(5))
    outcomes = read_all(files, tmp_path)
    assert outcomes["DamagedFile"] > COUNT


def changed(contents, change):
    document = json.loads(contents["json"])
    change(document)
    return json.dumps(document).encode()


def first_split(document):
    tree = (document.get("oblivious_trees") or document["trees"])[0]
    return tree["splits"][0] if "splits" in tree else tree["split"]


@pytest.mark.parametrize(
    "change",
    [
        lambda d: first_split(d).update(split_index=10**6),
        lambda d: first_split(d).update(split_index=-1),
        lambda d: d.update(scale_and_bias=[1, [0.0]]),
        lambda d: d.update(scale_and_bias=[1e400, [0.0, 0.0, 0.0]]),
        lambda d: d["features_info"]["float_features"][0].update(flat_feature_index=1),
        lambda d: d["features_info"]["categorical_features"][0].update(feature_index=1),
        lambda d: d["features_info"]["float_features"][0].update(nan_value_treatment="AsZero"),
        lambda d: d["features_info"].pop("ctrs"),
        lambda d: d.pop("ctr_data"),
        lambda d: d["model_info"]["class_params"].update(class_names=["only one"]),
    ],
)
def test_contradictions_are_refused(contents, change, tmp_path):
    path = tmp_path / "model.json"
    path.write_bytes(changed(contents, change))
    with pytest.raises(KnotholeError, match="catboost"):
        read.read(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: first_split(d).update(border=123.0, value=123.0),
        lambda d: d["features_info"]["float_features"][0].update(flat_feature_index=2**40),
    ],
)
def test_what_catboost_does_not_look_at_in_json_changes_nothing(contents, change, tmp_path):
    path = tmp_path / "model.json"
    path.write_bytes(changed(contents, change))
    found = read.read(path)
    path.write_bytes(contents["json"])
    np.testing.assert_array_equal(found.threshold, read.read(path).threshold)


def test_json_of_which_whole_trees_are_missing_is_refused(contents, tmp_path):
    """CatBoost itself takes it for a model of fewer trees."""
    path = tmp_path / "model.json"
    last = contents["json"].rindex(b"split_index")
    path.write_bytes(contents["json"][: contents["json"].rindex(b"}", 0, last)])
    assert cb.CatBoost().load_model(str(path), format="json").tree_count_ > 0
    with pytest.raises(DamagedFile, match="JSONDecodeError"):
        read.read(path)


def test_trees_of_impossible_depth_are_refused(tmp_path):
    X = np.random.default_rng(0).normal(size=(100, 2))
    model = cb.CatBoostRegressor(iterations=10, depth=3, verbose=False, allow_writing_files=False)
    path = tmp_path / "model.cbm"
    model.fit(X, X[:, 0]).save_model(str(path))
    data = bytearray(path.read_bytes())
    trees = cbm_format._core(bytes(data))[0].table(1)
    for slot, numbers in ((2, [30] + 9 * [0]), (3, [0] + 9 * [30])):  # sizes, and where they start
        start = 8 + trees.span(slot)[0]
        data[start : start + 40] = struct.pack("<10i", *numbers)
    path.write_bytes(data)
    with pytest.raises(DamagedFile, match="depth"):
        read.read(path)


def test_huge_claims_cost_nothing(contents, tmp_path):
    path = tmp_path / "model"
    split = {"split_index": 0, "border": 0.0}
    document = json.loads(contents["json"])
    document.pop("trees", None)
    document["oblivious_trees"] = [{"splits": [split] * 60, "leaf_values": [0.0]}]
    path.write_text(json.dumps(document))
    with pytest.raises(DamagedFile, match="catboost"):
        read.read(path)
    deep = '{"left":' * 100_000 + "{}" + "}" * 100_000
    path.write_text('{"features_info": {}, "trees": [' + deep + "]}")
    with pytest.raises(DamagedFile):
        read.read(path)
    path.write_bytes(b"CBM1" + struct.pack("<I", 2**32 - 1) + struct.pack("<Q", 2**62))
    with pytest.raises(DamagedFile, match="truncated"):
        read.read(path)


def test_vectors_that_share_their_bytes_are_refused():
    """A million features whose borders are the same bytes would be a million times the file."""
    from knothole.trees.readers.cbm import Buffer

    n = 20_000
    # Table 0 at 12 has one field: a vector of n tables, all of them the one that follows it, whose
    # only field is a vector of n numbers.
    head = struct.pack("<I", 12) + struct.pack("<HHHH", 6, 8, 4, 0)
    root = struct.pack("<iI", 8, 4)
    inner = 12 + 8 + 4 + 4 * n + 8
    offsets = b"".join(struct.pack("<I", inner - (24 + 4 * i)) for i in range(n))
    vtable = struct.pack("<HHHH", 6, 8, 4, 0)
    table = struct.pack("<iI", 8, 4)
    vector = struct.pack("<I", n) + bytes(4 * n)
    data = head + root + struct.pack("<I", n) + offsets + vtable + table + vector
    tables = Buffer(data).root().tables(0)
    assert len(tables) == n
    assert len(tables[0].vector(0, "<f4")) == n
    with pytest.raises(DamagedFile, match="truncated or corrupt"):
        [table.vector(0, "<f4") for table in tables]


def test_a_file_read_without_a_stand_in(contents, tmp_path):
    """The whole way once, with a process of its own."""
    path = tmp_path / "model.cbm"
    path.write_bytes(contents["cbm"])
    patch = pytest.MonkeyPatch()
    patch.setattr(quarantine, "ask", ASK)
    try:
        assert read.read(path).n_trees == 4
    finally:
        patch.undo()


ASK = quarantine.ask


@pytest.mark.parametrize("key", ["feature_index", "flat_feature_index"])
def test_numbers_that_are_infinite_are_refused(tmp_path, key):
    """1e400 for the index of a feature was an error of Python's own."""
    X = np.random.default_rng(0).normal(size=(50, 2))
    options = {"iterations": 2, "depth": 2, "verbose": False, "allow_writing_files": False}
    path = tmp_path / "model.json"
    cb.CatBoostRegressor(**options).fit(X, X[:, 0]).save_model(str(path), format="json")
    text, count = re.subn(rf'("{key}"\s*:\s*)\d+', r"\g<1>1e400", path.read_text())
    assert count
    path.write_text(text)
    with pytest.raises(DamagedFile):
        read.read(path)
