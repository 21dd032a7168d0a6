"""``python -m benchmarks.speed [section ...]``: measure, print, and write docs/benchmarks.md.

Sections: trees, densities, reach, learning. All of them by default; the page keeps the lines of
sections that were not run.
"""

import json
import platform
import sys
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from benchmarks.speed.setting import Ratio

SECTIONS = ("trees", "densities", "reach", "learning")
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
RESULTS = PAGE.with_suffix(".json")
LIBRARIES = ("numpy", "numba", "scikit-learn", "xgboost-cpu", "lightgbm", "catboost")


def main(names):
    unknown = set(names) - set(SECTIONS)
    if unknown:
        sys.exit(f"no such section: {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    kept = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    rows = [Ratio(**row) for row in kept if row["section"] not in (names or SECTIONS)]
    for name in names or SECTIONS:
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
    main(sys.argv[1:])
