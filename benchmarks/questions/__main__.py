"""``python -m benchmarks.questions``: explanations and acquisitions, and a page in docs/.

Sections that were measured before stay in docs/results/questions.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.questions import page
from benchmarks.questions.acquiring import spam, tables
from benchmarks.questions.explaining import bike, speed

SECTIONS = {"bike": bike, "speed": speed, "spam": spam, "tables": tables}


def main() -> None:
    """Run the sections that are asked for, and write docs/questions.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.questions", description=__doc__)
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; by default all")
    parser.add_argument("-o", "--output", type=Path, default=Path("docs"))
    asked = parser.parse_args()
    kept = asked.output / "results" / "questions.json"
    found = json.loads(kept.read_text()) if kept.exists() else {}
    for name in asked.sections or SECTIONS:
        found[name] = SECTIONS[name]()
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(found, indent=1) + "\n")
    page.write(asked.output, json.loads(json.dumps(found)))


if __name__ == "__main__":
    main()
