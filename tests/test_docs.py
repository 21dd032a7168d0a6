"""Every block of Python in the README and the documentation runs."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page):
    return BLOCK.findall((ROOT / page).read_text())


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_page_runs(page):
    names = {}
    for code in blocks(page):
        exec(compile(code, page, "exec"), names)


def test_readme_runs():
    """The README speaks of the reader's own model and data: here are some."""
    from sklearn.ensemble import RandomForestRegressor

    rng = np.random.default_rng(0)
    X_train = rng.normal(size=(400, 3))
    y_train = X_train.sum(axis=1)
    X = X_train[:5].copy()
    X[:, 1] = np.nan
    names = {
        "model": RandomForestRegressor(10, random_state=0).fit(X_train, y_train),
        "X_train": X_train,
        "y_train": y_train,
        "X": X,
    }
    (code,) = blocks("README.md")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(compile(code, "README.md", "exec"), names)
    assert np.isfinite(names["prediction"]).all() and (names["std"] >= 0).all()


def test_links_lead_somewhere():
    for page in ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", *PAGES]:
        for link in re.findall(r"\]\((?!https?://)([^)#]+)", (ROOT / page).read_text()):
            assert ((ROOT / page).parent / link).exists(), f"{page} links to {link}"


def test_every_public_name_has_its_page():
    """The site (``make docs``) writes a page for what ``docs/api.rst`` lists."""
    import knothole
    from knothole import missingness, report

    listed = re.findall(r"^   (\w+)$", (ROOT / "docs/api.rst").read_text(), re.MULTILINE)
    public = {
        name for name in knothole.__all__ if name not in ("__version__", "errors", "missingness")
    }
    public |= {
        *report.__all__,
        *(name for name in vars(missingness) if is_public(missingness, name)),
    }
    assert sorted(listed) == sorted(public)


def is_public(module, name):
    value = getattr(module, name)
    return (
        not name.startswith("_")
        and callable(value)
        and value.__module__.startswith(module.__name__)
    )
