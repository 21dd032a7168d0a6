"""A run whose result is kept; not in ``__main__``, which spawned processes do not import."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import NamedTuple

from benchmarks.intervals.run import run
from knothole.files import whole_file


class Job(NamedTuple):
    """One run, and where its result is kept."""

    table: str
    missing: str
    seed: int
    model: str
    folder: Path

    @property
    def path(self) -> Path:
        """Where the result is."""
        return self.folder / f"{self.table}_{self.missing}_{self.model}_{self.seed}.csv"

    def done(self) -> Path:
        """Run, unless that has been done."""
        if not self.path.exists():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # imputers say that they stopped early
                found = run(self.table, self.missing, self.seed, self.model)
            with whole_file(self.path) as place:
                found.to_csv(place, index=False)
            seconds = found.groupby("method")["seconds"].first().sum()
            print(*self[:4], f"{seconds:.0f} s", flush=True)
        return self.path
