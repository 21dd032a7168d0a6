"""``python -m tools.wheel``: build sdist and wheel, see that they are whole, and that it works.

The wheel is built from the sdist, and installed without extras.
"""

import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

import lightgbm
import numpy as np
import xgboost
from packaging.metadata import Metadata

ROOT = Path(__file__).parent.parent


def main():
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        sdist, wheel = build(place / "dist")
        check_sdist(sdist)
        check_content(wheel)
        check_metadata(wheel)
        python = install(wheel, place / "fresh")
        work = place / "work"
        work.mkdir()
        save_models(work)
        # -I: neither the checkout nor PYTHONPATH can stand in for what is not in the wheel.
        run(python, "-I", ROOT / "tests" / "wheel" / "installed.py", cwd=work)
    print(f"{sdist.name} makes {wheel.name}, which works without extras")


def build(folder):
    """The sdist, and the wheel that it makes."""
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, stdout=subprocess.DEVNULL)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def check_sdist(sdist):
    """All that the wheel is made of and tested with, and no results or pictures of the site."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"}
    assert wanted <= names, wanted - names
    assert {"src/knothole/py.typed", "tests/wheel/installed.py", "core/CMakeLists.txt"} <= names
    tops = {name.partition("/")[0] for name in names}
    assert not tops & {"docs", "benchmarks", "out", ".venv"}, tops


def check_metadata(wheel):
    """What an index checks, and that it is what pyproject.toml says."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        found = Metadata.from_email(archive.read(name))  # raises for whatever is not valid
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert found.name == project["name"] and str(found.version) == project["version"]
    assert str(found.requires_python) == project["requires-python"]
    assert found.license_expression == project["license"]
    assert found.description_content_type == "text/markdown"
    assert found.description == (ROOT / "README.md").read_text()
    required = {str(one) for one in found.requires_dist if one.marker is None}
    assert len(required) == len(project["dependencies"]), required
    assert set(found.provides_extra) == set(project["optional-dependencies"])


def check_content(wheel):
    """Nothing but the package: no benchmarks, no tests; but the core, the page and the types."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert len(tops) == 2 and "knothole" in tops, tops
    assert {"knothole/py.typed", "knothole/report/page.html"} <= set(names)
    builds = {name.split("/")[-1].split(".")[0] for name in names if name.endswith((".so", ".pyd"))}
    assert "baseline" in builds and builds <= {"baseline", "v3"}, builds
    assert not [name for name in names if "__pycache__" in name or name.endswith((".cpp", ".hpp"))]


def install(wheel, folder):
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-compile", wheel)
    return python


def save_models(folder):
    """Files of libraries that are not there where the wheel is."""
    X = np.random.default_rng(0).normal(size=(200, 3))
    y = X.sum(axis=1)
    xgboost.XGBRegressor(n_estimators=2, max_depth=2).fit(X, y).save_model(folder / "xgboost.json")
    model = lightgbm.LGBMRegressor(n_estimators=2, verbose=-1).fit(X, y)
    model.booster_.save_model(folder / "lightgbm.txt")


def run(*command, **options):
    subprocess.run([str(part) for part in command], check=True, **options)


if __name__ == "__main__":
    main()
