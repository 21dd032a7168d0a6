"""docs/format.md says exactly what saved files hold: no member more, none less."""

import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestRegressor
from sklearn.tree import DecisionTreeRegressor

import knothole as kh
from knothole import storage as models
from knothole.densities import storage as densities
from knothole.densities.circuit import nodes
from knothole.densities.univariate.families import FAMILIES
from knothole.files import HEADER

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "format.md").read_text()
NODES = [{"leaf": "size"}, {"leaf": "city"}, {"product": [0, 1]}]
# One variable of each family; the column of atoms has a value that repeats.
FAMILY = {
    "city": "categorical", "size": "gaussian", "length": "histogram", "rooms": "integer",
    "calls": "poisson", "visits": "negative_binomial", "rain": "atoms+histogram",
}  # fmt: skip


def documented(heading: str, table: int = 0) -> dict[str, set[str]]:
    """Names in the first column of a section's table, and what the second says they are in."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [part for part in section.strip().split("\n\n") if part.startswith("|")][table]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in rows.splitlines()]
    return {name.strip("`"): set(second.split(", ")) for name, second, *_ in cells[2:]}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = 300
    rain = np.where(rng.random(rows) < 0.4, 0.0, rng.gamma(2.0, size=rows))
    return pd.DataFrame(
        {
            "city": rng.choice(["Graz", "Linz"], rows), "size": rng.normal(size=rows),
            "length": rng.gamma(2.0, size=rows), "rooms": rng.integers(1, 9, rows),
            "calls": rng.poisson(3.0, rows), "visits": rng.negative_binomial(2, 0.3, rows),
            "rain": rain,
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def fitted(table) -> dict[str, kh.Mixture]:
    made = {
        "Factorized": kh.Factorized(families=FAMILY),
        "Mixture": kh.Mixture(2, families=FAMILY, random_state=0),
        "LatentTree": kh.LatentTree(2, families=FAMILY, random_state=0),
        "GaussianMixture": kh.GaussianMixture(2, random_state=0),
        "Circuit": kh.Circuit(NODES, families={"size": "gaussian"}, random_state=0),
    }
    assert set(made) == set(densities.CLASSES)
    assert {name.partition("+")[0] for name in FAMILY.values()} == set(FAMILIES)
    return {
        name: density.fit(table[["size", "city"]] if name == "Circuit" else table)
        for name, density in made.items()
    }


def opened(path: Path) -> tuple[dict, set[str]]:
    """The header, and the names of the other members; every array opens without pickle."""
    with zipfile.ZipFile(path) as archive:
        names = {name.removesuffix(".npy") for name in archive.namelist()}
    with np.load(path, allow_pickle=False) as arrays:
        assert set(arrays.files) == names
        assert all(arrays[name].dtype != object for name in names)
        header = json.loads(arrays[HEADER].tobytes())
    return header, names - {HEADER}


def in_words(names: set[str]) -> set[str]:
    """Names of members as the page has them."""
    numbered = {re.sub(r"^leaf\d+\.", "leafN.", name) for name in names}
    return {re.sub(r"^leafN\.rest\..*", "leafN.rest.*", name) for name in numbered}


def test_density_files(fitted, tmp_path):
    everything = set()
    entries = documented("Header of a density file")
    states = documented("Header of a density file", 1)
    members = documented("Arrays of the densities")
    for name, density in fitted.items():
        density.save(tmp_path / name)
        header, found = opened(tmp_path / name)
        assert set(header) == set(entries)
        assert (header["format"], header["class"]) == (densities.FORMAT, name)
        assert set(header["state"]) == {key for key, of in states.items() if of & {"all", name}}
        own = {part for part in found if not part.startswith("leaf")}
        assert own == {key for key, of in members.items() if of & {"all", name}}
        everything |= in_words(found - own)
    assert everything == set(documented("Arrays of the densities", 1))


def test_distributions_have_the_arrays_of_their_family(fitted):
    members = documented("Arrays of the densities", 1)
    for name, distribution in zip(FAMILY, fitted["Mixture"].distributions_, strict=True):
        found = in_words({f"leaf0.{part}" for part in distribution.arrays()})
        gaussian = distribution.family == "gaussian"
        assert found == {
            member
            for member, families in members.items()
            if distribution.family in families
            or (families == {"all but gaussian"} and not gaussian)
        }, name


def test_curves_in_model_files(table, tmp_path):
    forests = pytest.importorskip("quantile_forest")
    X = table[["size", "length"]]
    model = forests.RandomForestQuantileRegressor(2, random_state=0).fit(X, X["size"])
    plain = kh.wrap(RandomForestRegressor(2).fit(X, X["size"]), X, density=kh.Factorized())
    plain.save(tmp_path / "plain.knothole")
    _, usual = opened(tmp_path / "plain.knothole")
    kh.wrap(model, X, density=kh.Factorized()).save(tmp_path / "model.knothole")
    header, found = opened(tmp_path / "model.knothole")
    assert header["trees"]["curves"] == [["samples 0", 0.0]]
    more = {name.replace("curves.0.", "curves.I.") for name in found - usual}
    assert more == set(documented("Arrays of curves"))


def test_model_files(table, tmp_path):
    X = table[["size", "length"]]
    model = DecisionTreeRegressor(max_depth=3).fit(X, X.sum(axis=1))
    robust = kh.wrap(model, X, density=kh.Factorized())
    robust.save(tmp_path / "model.knothole")
    header, found = opened(tmp_path / "model.knothole")
    assert set(header) == set(documented("Header of a model file"))
    assert (header["format"], header["version"]) == (models.FORMAT, models.VERSION)
    trees = {name for name in found if name.startswith("trees.")}
    assert trees == set(documented("Arrays of the trees"))
    assert all(name.startswith("density.") for name in found - trees)
    robust.conformalize(X, X.sum(axis=1)).save(tmp_path / "conformalized.knothole")
    _, more = opened(tmp_path / "conformalized.knothole")
    assert more - found == set(documented("Arrays of conformal prediction"))
    twice = X.assign(length=X["size"])  # independence is far from true
    model = DecisionTreeRegressor(max_depth=3).fit(twice, twice.sum(axis=1))
    corrected = kh.wrap(model, twice, twice.sum(axis=1), density=kh.Factorized(), correction=True)
    corrected.save(tmp_path / "corrected.knothole")
    corrected_header, more = opened(tmp_path / "corrected.knothole")
    assert {"variable", "trees"} == set(corrected_header["parts"][0])
    numbered = {re.sub(r"^correction\.\d+\.", "correction.N.", name) for name in more}
    numbered = {name for name in numbered if name.startswith("correction.")}
    of_trees = {"correction.N." + name.removeprefix("trees.") for name in trees}
    assert of_trees <= numbered
    page = set(documented("Arrays of a correction")) - {"correction.N.*"}
    assert numbered - of_trees == page
    described = set(re.findall(r"`(\w+)`", PAGE.partition("The entry `trees` has")[2][:250]))
    assert set(header["trees"]) <= described


def test_circuits_as_json(fitted):
    found = json.loads(fitted["Circuit"].to_json())
    assert set(found) == set(documented("Circuits as JSON"))
    assert (found["format"], found["version"]) == (nodes.FORMAT, nodes.VERSION)


def test_versions_are_those_of_the_page():
    page = " ".join(PAGE.split())
    assert f"Density files are at version {densities.VERSION}," in page
    assert f"model files at version {models.VERSION}." in page
