"""``python -m tools.requirements EXTRA``: what knothole with an extra needs, a line each."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))


def requirements(extra: str) -> list[str]:
    """What an extra and the extras that it names need, and the package itself, without the package.

    Examples
    --------
    >>> "numpy>=2.0" in requirements("xgboost"), "xgboost>=3.0" in requirements("xgboost")
    (True, True)
    """
    extras = PROJECT["project"]["optional-dependencies"]
    found, left = list(PROJECT["project"]["dependencies"]), [extra]
    while left:
        for line in extras[left.pop()]:
            own = re.fullmatch(r"knothole\[(.*)\]", line)
            if own:
                left += own[1].split(",")
            else:
                found.append(line)
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    print(*requirements(sys.argv[1]), sep="\n")
