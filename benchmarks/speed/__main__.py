"""``python -m benchmarks.speed``: ratios of our times to those of the libraries themselves."""

import json
import platform
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import click

from benchmarks.speed.setting import Ratio

SECTIONS = (
    "trees",
    "densities",
    "wrap",
    "cold",
    "expectation",
    "learning",
    "scale",
    "parts",
    "serve",
)
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
RESULTS = PAGE.with_suffix(".json")
LIBRARIES = ("numpy", "scikit-learn", "xgboost-cpu", "lightgbm", "catboost")


@click.command()
@click.argument("sections", nargs=-1, type=click.Choice(SECTIONS))
def speed(sections):
    """Measure SECTIONS (by default all), print the ratios and write docs/benchmarks.md.

    The page keeps the lines of sections that were not run.
    """
    kept = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    rows = [Ratio(**row) for row in kept if row["section"] not in (sections or SECTIONS)]
    for name in sections or SECTIONS:
        for row in import_module(f"benchmarks.speed.{name}").run():
            print(f"{row.ratio:9.3g}x  {row.verdict:10}  {row.what}  [{row.against}] {row.note}")
            rows.append(row)
    rows.sort(key=lambda row: SECTIONS.index(row.section))
    save(rows)


def save(rows):
    versions = {name: version(name) for name in LIBRARIES}
    versions["python"] = platform.python_version()
    RESULTS.write_text(
        json.dumps({"versions": versions, "rows": [asdict(r) for r in rows]}, indent=1)
    )
    PAGE.write_text(page(rows, versions))
    print(f"written: {PAGE.relative_to(Path.cwd())}")


def page(rows, versions):
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench`. Every line is a ratio of two times measured in one run, because",
        "absolute times mean nothing on shared machines; single-threaded work is timed by the",
        "thread's CPU clock.",
        "",
        "Versions: " + ", ".join(f"{name} {number}" for name, number in versions.items()) + ".",
    ]
    for section in SECTIONS:
        part = [row for row in rows if row.section == section]
        if not part:
            continue
        lines += ["", f"## {section.capitalize()}", ""]
        lines += ["| what | ratio | target | | against | note |", "|---|---|---|---|---|---|"]
        for row in part:
            target = "" if row.target is None else f"{row.target:.3g}x"
            lines.append(
                f"| {row.what} | {row.ratio:.3g}x | {target} | {row.verdict} | {row.against} "
                f"| {row.note} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    speed()
