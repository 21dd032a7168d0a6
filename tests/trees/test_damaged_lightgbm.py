"""Damaged LightGBM files: an exception of ours, or what LightGBM itself reads from the same file.

Hundreds of files are made from three models. Our parser sees each of them here; those it accepts
are loaded by LightGBM, all in one process of its own, since LightGBM itself may crash on them. (A
user's read does the same for every file; see ``quarantine``.)
"""

import re
import subprocess
import sys
from pathlib import Path

import lightgbm as lgb
import numpy as np
import pandas as pd
import pytest

from knothole.errors import DamagedFile, KnotholeError, NotFitted, UnsupportedModel
from knothole.trees.read import read, reading_of
from knothole.trees.readers import lightgbm as reader

PARAMS = {"verbose": -1, "num_threads": 1, "num_leaves": 6, "min_data_in_leaf": 3, "seed": 0}
PARAMS |= {"min_data_per_group": 3, "cat_smooth": 1, "cat_l2": 1}


def make_texts():
    """Three models between them have every part that a model text can have."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 3))
    y = X[:, 0] + np.isnan(X[:, 1]) + (X[:, 2] > 0)
    X[rng.random(150) < 0.2, 1] = np.nan
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(
        d=pd.Categorical(rng.choice(["u", "v", "w", "x", "y"], 150)), e=rng.integers(0, 40, 150)
    )
    label = np.digitize(y + frame["d"].isin(["u", "x"]) + frame["e"] % 2, [0, 1])
    forest = {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5}
    multiclass = {"objective": "multiclass", "num_class": 3}
    models = {
        "numbers": lgb.train({**PARAMS, "objective": "binary"}, lgb.Dataset(X, y > 0), 3),
        "forest": lgb.train({**PARAMS, **forest}, lgb.Dataset(X, y), 3),
        "categories": lgb.train(
            {**PARAMS, **multiclass}, lgb.Dataset(frame, label, categorical_feature=["d", "e"]), 2
        ),
    }
    return {name: model.model_to_string().encode() for name, model in models.items()}


TEXTS = make_texts()


def truncated(text, rng):
    """Cut off anywhere, and at the ends of lines."""
    places = rng.integers(0, len(text), 40).tolist()
    ends = [place.start() for place in re.finditer(b"\n", text[: text.index(b"parameters:")])]
    return [text[:place] for place in places + ends[:: max(1, len(ends) // 30)]]


def flipped(text, rng):
    """One bit the other way: anywhere, and more often where it matters."""
    important = text.index(b"end of trees")
    places = [*rng.integers(0, important, 120), *rng.integers(0, len(text), 30)]
    bits = rng.integers(0, 8, len(places))
    damaged = []
    for place, bit in zip(places, bits, strict=True):
        changed = bytearray(text)
        changed[place] ^= 1 << bit
        damaged.append(bytes(changed))
    return damaged


TOKENS = [b"", b"nan", b"-inf", b"1e999", b"-1", b"0.5", b"abc", b"true", b"[1]", b"0x10", b"1,2"]
HUGE = [b"2147483647", b"2147483648", b"99999999999999999999", b"-2147483649", b"1000000"]


def replaced(text, rng):
    """A number somewhere becomes something of another type, or a huge one."""
    numbers = list(
        re.finditer(rb"(?<=[= :])-?[0-9][^ \n:\]]*", text[: text.index(b"end of trees")])
    )
    damaged = []
    for new in TOKENS + HUGE:
        for place in rng.choice(len(numbers), 8, replace=False):
            start, stop = numbers[place].span()
            damaged.append(text[:start] + new + text[stop:])
    return damaged


def retold(text, rng):
    """As ``replaced``, but every tree is as long as tree_sizes says: one lie at a time."""
    return [fix_sizes(other) for other in replaced(text, rng)]


def without_or_twice(text, rng):
    """A line is missing, there twice, or in another line's place."""
    lines = text.split(b"\n")
    n = next(i for i, line in enumerate(lines) if line == b"end of trees")
    damaged = []
    for i in rng.choice(n, min(n, 40), replace=False).tolist():
        j = int(rng.integers(n))
        swapped = list(lines)
        swapped[i], swapped[j] = lines[j], lines[i]
        for other in (lines[:i] + lines[i + 1 :], lines[: i + 1] + lines[i:], swapped):
            damaged += [b"\n".join(other), fix_sizes(b"\n".join(other))]
    return damaged


def fix_sizes(text):
    """Tell the true sizes of the trees, where they can still be found."""
    starts = [place.start() for place in re.finditer(rb"^Tree=", text, re.MULTILINE)]
    end = text.find(b"end of trees")
    sizes = b" ".join(b"%d" % size for size in np.diff([*starts, end]))
    return re.sub(rb"tree_sizes=.*", b"tree_sizes=" + sizes, text)


class Library:
    """LightGBM in a process of its own, which is started again when a file ends it."""

    def __init__(self):
        self.process = None

    def verdict(self, path):
        """What LightGBM makes of a file that we accept: the same, something else, or nothing."""
        if self.process is None:
            command = [sys.executable, "-W", "ignore", __file__]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self.process = subprocess.Popen(
                command, text=True, bufsize=1, stderr=subprocess.DEVNULL, **pipes
            )
        self.process.stdin.write(f"{path}\n")
        for line in self.process.stdout:
            if line.startswith("verdict "):  # LightGBM talks on the same pipe
                return line.removeprefix("verdict ").strip()
        self.close()
        return "refused"

    def close(self):
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


@pytest.fixture(scope="module")
def library():
    library = Library()
    yield library
    library.close()


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("damage", [truncated, flipped, replaced, retold, without_or_twice])
def test_damaged_file(damage, name, library, tmp_path):
    rng = np.random.default_rng([len(name), len(damage.__name__)])
    path = tmp_path / "model.txt"
    for text in damage(TEXTS[name], rng):
        path.write_bytes(text)
        try:
            reading_of(path)
        except KnotholeError:
            continue
        assert library.verdict(path) in ("same", "refused"), text


def library_verdict(path):
    try:
        native = reader.read(reader.load(path)).ensemble
    except Exception:
        return "refused"
    ours = reader.read_file(path)
    for name, item in vars(native).items():
        if name == "classes":  # a Booster has none; of a file, they are told by the objective
            continue
        other = getattr(ours, name)
        if isinstance(item, np.ndarray):
            if not np.array_equal(item, other, equal_nan=item.dtype.kind == "f"):
                return f"{name} differs"
        elif item != other:
            return f"{name} differs: {item} {other}"
    return "same"


@pytest.mark.parametrize("name", TEXTS)
def test_the_models_themselves_are_read(name, library, tmp_path):
    path = tmp_path / "model.txt"
    path.write_bytes(TEXTS[name])
    assert fix_sizes(TEXTS[name]) == TEXTS[name]
    assert library.verdict(path) == "same"


def edited(name, pattern, new):
    text, count = re.subn(pattern, new, TEXTS[name], count=1, flags=re.MULTILINE)
    assert count == 1
    return fix_sizes(text)


@pytest.mark.parametrize(
    ("name", "pattern", "new", "error", "message"),
    [
        ("numbers", rb"^version=v4", b"version=v9", DamagedFile, "version 'v9'"),
        ("numbers", rb"^num_class=1", b"num_class=7", DamagedFile, "num_class"),
        ("numbers", rb"^objective=\w+", b"objective=magic", UnsupportedModel, "magic"),
        ("numbers", rb"sigmoid:1", b"sigmoid:-1", DamagedFile, "sigmoid:-1"),
        ("numbers", rb"^is_linear=0", b"is_linear=1", UnsupportedModel, "linear_tree=False"),
        ("numbers", rb"^num_leaves=6", b"num_leaves=2000000000", DamagedFile, "has 5 entries"),
        ("numbers", rb"^max_feature_idx=2", b"max_feature_idx=2000000000", DamagedFile, "length"),
        ("numbers", rb"^split_feature=\d", b"split_feature=3", DamagedFile, "column"),
        ("numbers", rb"^left_child=-?\d", b"left_child=0", DamagedFile, "two parents"),
        ("numbers", rb"^left_child=-?\d", b"left_child=5", DamagedFile, "not a node"),
        ("numbers", rb"^right_child=-?\d", b"right_child=-7", DamagedFile, "not a node"),
        ("numbers", rb"^threshold=\S+", b"threshold=nan", DamagedFile, "threshold"),
        ("numbers", rb"^leaf_value=\S+", b"leaf_value=inf", DamagedFile, "not finite"),
        ("numbers", rb"^decision_type=\d+", b"decision_type=12", DamagedFile, "decision_type"),
        ("numbers", rb"^decision_type=\d+", b"decision_type=1", DamagedFile, "one to one"),
        ("categories", rb"^cat_threshold=\d+", b"cat_threshold=4294967296", DamagedFile, "range"),
        ("categories", rb"^cat_boundaries=0", b"cat_boundaries=1", DamagedFile, "ascend"),
        ("categories", rb'"u", "v"', b'"u", "u"', DamagedFile, "twice"),
        ("categories", rb'"u", "v", ', b"", UnsupportedModel, "categories"),
        ("categories", rb'"u"', b"{}", DamagedFile, "pandas_categorical"),
        ("categories", rb"^tree_sizes=.*", b"tree_sizes=", DamagedFile, "tree"),
    ],
)
def test_damage_is_named(name, pattern, new, error, message, tmp_path):
    path = tmp_path / "model.txt"
    path.write_bytes(edited(name, pattern, new))
    if pattern.startswith(b"^tree_sizes"):
        path.write_bytes(re.sub(rb"tree_sizes=.*", b"tree_sizes=1 2 3 4 5 6", path.read_bytes()))
    with pytest.raises(error, match=message):
        read(path)


def test_file_without_trees(tmp_path):
    path = tmp_path / "model.txt"
    path.write_bytes(re.sub(rb"(?s)Tree=.*(?=end of trees)", b"", TEXTS["numbers"]))
    path.write_bytes(re.sub(rb"tree_sizes=.*", b"tree_sizes=", path.read_bytes()))
    with pytest.raises(NotFitted, match="no trees"):
        read(path)


def test_windows_line_ends_are_refused(tmp_path):
    path = tmp_path / "model.txt"
    path.write_bytes(TEXTS["numbers"].replace(b"\n", b"\r\n"))
    with pytest.raises(DamagedFile):
        read(path)


if __name__ == "__main__":
    for line in sys.stdin:
        print("verdict", library_verdict(Path(line.strip())), flush=True)
