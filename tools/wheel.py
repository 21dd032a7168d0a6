"""``python -m tools.wheel``: build the wheel, install it without extras, see that it works."""

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

import lightgbm
import numpy as np
import xgboost

ROOT = Path(__file__).parent.parent


def main():
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        wheel = build(place / "dist")
        check_content(wheel)
        python = install(wheel, place / "fresh")
        work = place / "work"
        work.mkdir()
        save_models(work)
        # -I: neither the checkout nor PYTHONPATH can stand in for what is not in the wheel.
        run(python, "-I", ROOT / "tests" / "wheel" / "installed.py", cwd=work)
    print(f"{wheel.name} works without extras")


def build(folder):
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def check_content(wheel):
    """Nothing but the package: no benchmarks, no tests; but the page's template and the types."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert len(tops) == 2 and "knothole" in tops, tops
    assert {"knothole/py.typed", "knothole/report/page.html"} <= set(names)


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
