"""What a release says of itself is said once: the other places agree with pyproject.toml."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version
from tools.requirements import requirements

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {
    extra: list(map(Requirement, listed))
    for extra, listed in PROJECT["optional-dependencies"].items()
}
FOR_USERS = (
    *("xgboost", "lightgbm", "catboost", "quantile-forest", "interpret"),
    *("plot", "polars", "dask", "report", "cli"),
)


def lowest(requirement):
    (bound,) = [one.version for one in requirement.specifier if one.operator == ">="]
    return Version(bound)


def bounds():
    """The lowest version of everything that users may install with us."""
    needed = [*map(Requirement, PROJECT["dependencies"])]
    needed += [one for extra in FOR_USERS for one in EXTRAS[extra] if one.name != "knothole"]
    return {one.name: lowest(one) for one in needed}


def test_the_oldest_set_is_the_lowest_bounds():
    """``make oldest`` tests what pyproject.toml promises: no more, no less."""
    lines = (ROOT / "tools" / "oldest.txt").read_text().splitlines()
    pins = dict(re.fullmatch(r"([\w-]+)==([\d.]+?)(?:\.\*)?", line).groups() for line in lines)
    pins["xgboost"] = pins.pop("xgboost-cpu")  # the same module without what GPUs need
    assert {name: Version(pin) for name, pin in pins.items()} == bounds()


def test_the_conda_recipe_agrees():
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    assert recipe["context"]["version"] == PROJECT["version"]
    (entry,) = recipe["build"]["python"]["entry_points"]
    assert entry == f"knothole = {PROJECT['scripts']['knothole']}"
    run = {Requirement(line) for line in recipe["requirements"]["run"]}
    python = Requirement(f"python{PROJECT['requires-python']}")
    assert run == {python, *map(Requirement, PROJECT["dependencies"])}
    constrained = {}
    for line in recipe["requirements"]["run_constraints"]:
        one = Requirement(line.replace("matplotlib-base", "matplotlib"))
        constrained[one.name] = lowest(one)
    assert constrained == {name: bounds()[name] for name in constrained}


def test_the_citation_names_the_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]


@pytest.mark.parametrize("path", sorted(ROOT.glob(".github/ISSUE_TEMPLATE/[!c]*.yml")))
def test_issue_templates_are_forms(path):
    form = yaml.safe_load(path.read_text())
    assert form["name"] and form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert all(field["attributes"]["label"] for field in fields)
    assert len({field["id"] for field in fields}) == len(fields) > 0


def test_all_leaves_the_choice_between_the_packages_of_xgboost_to_the_user():
    """``xgboost`` and ``xgboost-cpu`` install the same module over each other."""
    assert not [line for line in requirements("all") if line.startswith("xgboost")]
    assert [line for line in requirements("xgboost") if line.startswith("xgboost")] == [
        "xgboost>=3.0"
    ]
    assert "xgboost-cpu>=3.0" in requirements("demo")
    assert set(requirements("cli")) <= set(requirements("all"))


def test_make_demo_names_nothing_that_is_gone():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert "knothole.warm" not in makefile and "import warm" not in makefile
    assert "installed what the demo needs in" in makefile and "built knothole in" in makefile
