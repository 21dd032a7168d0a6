"""Where datasets can be downloaded, each from one commit of a public repository.

The files there are not in the suite's form, so every source comes with the few lines that bring
it there. What comes out is checked against the content's checksum in
:data:`knothole.benchmark.datasets.REGISTRY`: a source that changed is refused, never used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from knothole.errors import InvalidInput, MissingExtra


@dataclass(frozen=True)
class Source:
    """Files of one commit of a repository, and how they become a table."""

    repository: str
    commit: str
    files: tuple[str, ...]
    prepare: Callable[[list[Path]], pd.DataFrame]

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses of the files."""
        base = f"https://raw.githubusercontent.com/{self.repository}/{self.commit}"
        return tuple(f"{base}/{quote(file)}" for file in self.files)


def download(name: str) -> pd.DataFrame:
    """Download a dataset (once: files are kept in the user's cache) and bring it to form."""
    if name not in SOURCES:
        raise InvalidInput(
            f"dataset {name!r} has no public source in the suite's form. Set KNOTHOLE_DATA to the "
            f"folder that has its file, or pass path=."
        )
    try:
        import pooch
    except ImportError as error:
        raise MissingExtra(
            "downloads need pooch: pip install 'knothole[benchmark]', or set KNOTHOLE_DATA to a "
            "folder with the files."
        ) from error
    source = SOURCES[name]
    # No checksum of the raw file: the prepared table has one, which says more.
    paths = [Path(pooch.retrieve(url, known_hash=None)) for url in source.urls]
    return source.prepare(paths)


def _insurance(paths: list[Path]) -> pd.DataFrame:
    return pd.read_csv(paths[0])


def _concrete(paths: list[Path]) -> pd.DataFrame:
    return pd.read_csv(paths[0]).rename(columns={"strength": "target"})


_LANTZ = "stedy/Machine-Learning-with-R-datasets"

SOURCES: Mapping[str, Source] = {
    "insurance": Source(
        _LANTZ, "9a8371e95098f3048c5540646b9fb96c7571b110", ("insurance.csv",), _insurance
    ),
    "concrete": Source(
        _LANTZ, "72e6b6cc91bc2bb08eb6f99f52c033677cb70c1a", ("concrete.csv",), _concrete
    ),
}
