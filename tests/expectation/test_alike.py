"""Many levels: those that no split tells apart are one, and memory grows with their number."""

import subprocess
import sys

import lightgbm
import numpy as np
import pandas as pd
import pytest

import knothole as kh
from knothole.trees import in_variables
from knothole.trees.read import read


def table(n_rows, n_levels):
    rng = np.random.default_rng(0)
    often = rng.integers(0, 12, n_rows) * (n_levels // 12)
    code = np.where(rng.random(n_rows) < 0.7, often, rng.integers(0, n_levels, n_rows))
    frame = pd.DataFrame({"a": rng.normal(size=n_rows)})
    frame["b"] = frame["a"] + rng.normal(size=n_rows)
    names = [f"level {i}" for i in range(n_levels)]
    frame["city"] = pd.Categorical.from_codes(code, names)
    for number, one in enumerate(("red", "green", "blue")):
        frame[one] = (code % 3 == number) * 1.0
    y = frame["a"] + np.sin(often) + frame["red"] * frame["b"]
    model = lightgbm.LGBMRegressor(
        n_estimators=12, num_leaves=12, min_child_samples=5, cat_smooth=1, verbose=-1, n_jobs=1
    ).fit(frame, y)
    incomplete = frame.head(60).copy()
    incomplete.loc[::2, "city"] = None
    incomplete.loc[::3, ["a", "b"]] = np.nan
    incomplete.loc[1::5, ["red", "green"]] = np.nan
    return frame, model, incomplete


DENSITIES = {
    "mixture": lambda: kh.Mixture(3, random_state=0, max_iter=5),
    "tree": lambda: kh.LatentTree(3, random_state=0, max_iter=5),
    "gaussian": lambda: kh.GaussianMixture(2, random_state=0, max_iter=5),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("which", DENSITIES)
def test_answers_are_those_of_all_levels(which, monkeypatch):
    frame, model, incomplete = table(600, 150)
    one_hot = {"hue": ["red", "green", "blue"]}
    found = []
    for least in (10**6, 4):
        monkeypatch.setattr(in_variables, "MANY", least)
        robust = kh.wrap(model, frame, density=DENSITIES[which](), one_hot=one_hot)
        answer = robust.predict(incomplete, return_std=True)
        found.append(
            [*answer, robust.predict(incomplete, quantiles=[0.3])[0.3], robust.margin(incomplete)]
        )
    merged = in_variables.Merged.of(read(model))
    assert merged.ensemble.n_levels[2] < 100
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9, atol=1e-9)


WITHIN = """
import re, resource, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
from tests.expectation.test_alike import table
import knothole as kh

def all_of_it(frame, model, rows):
    quick = {"random_state": 0, "max_iter": 2, "n_init": 1}
    for density in (kh.Mixture(**quick), kh.LatentTree(random_state=0, max_iter=2),
                    kh.GaussianMixture(**quick), kh.Factorized()):
        robust = kh.wrap(model, frame, density=density)
        robust.predict(rows, return_std=True)
        robust.save(sys.argv[1])
        kh.load(sys.argv[1]).predict(rows)

all_of_it(*table(800, 40))
given = table(3000, 100_000)
used = int(re.search(r"VmSize:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (used + 3 * 2**27, used + 3 * 2**27))
all_of_it(*given)
"""


def test_a_hundred_thousand_levels_take_little_memory(tmp_path):
    """A table of sets by levels was 1 GB; tables of 128 components were 1.7 GB."""
    command = [sys.executable, "-c", WITHIN, tmp_path / "model.knothole"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
