"""``python -m tools.doc_pictures``: run the pages of docs/ that draw, and keep their pictures.

Code of a page saves a picture by its name (``figure.savefig("outage.png")``). Pages show the copy
in ``docs/pictures``, which this command writes; tests see that code and pictures belong together.
"""

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(?P<language>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def draw(page, output):
    """Run a page's blocks of Python in a folder of their own; names of the pictures kept."""
    codes = [
        found["text"]
        for found in BLOCK.finditer(page.read_text(encoding="utf-8"))
        if found["language"] == "python"
    ]
    names = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        with contextlib.redirect_stdout(io.StringIO()):
            for code in codes:
                exec(compile(code, str(page), "exec"), names)
        drawn = sorted(Path(folder).glob("*.png"))
        output.mkdir(parents=True, exist_ok=True)
        for picture in drawn:
            shutil.copy(picture, output / picture.name)
    return [picture.name for picture in drawn]


def main():
    os.environ.setdefault("MPLBACKEND", "agg")
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        if ".savefig(" in page.read_text(encoding="utf-8"):
            for name in draw(page, ROOT / "docs" / "pictures"):
                print(f"docs/pictures/{name}, from {page.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main())
