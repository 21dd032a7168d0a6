"""Runs the benchmark: datasets x scenarios x peers x repeats, in parallel, and resumable.

Every finished cell (one peer on one split of one dataset, in all scenarios) is one small JSON
file, written beside its place and renamed. A run that was killed continues with the cells that
are not there, and with those in which a peer failed; a folder never mixes results of different
settings or versions.

::

    FOLDER/settings.json                      what all cells have in common
    FOLDER/skipped.json                       peers that could not be run, and why
    FOLDER/cells/DATASET/REPEAT/PEER.json     finished cells
    FOLDER/results.parquet                    all of them, one row a scenario
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import parquet as parquet_files

from benchmarks.suite import datasets
from benchmarks.suite.cells import Result, Stage, run_cell
from benchmarks.suite.models import HYPERPARAMETERS
from benchmarks.suite.peers.base import Peer
from benchmarks.suite.scenarios import DEPLOYMENT, Scenario
from benchmarks.versions import versions
from benchmarks.workers import spawned
from knothole.errors import DamagedFile, InvalidInput, KnotholeError
from knothole.files import whole_file
from knothole.progress import bar


@dataclass(frozen=True)
class Plan:
    """What to run.

    Parameters
    ----------
    peers : sequence of Peer
        Those whose libraries are absent are skipped.
    datasets : sequence of str, optional
        Names; the whole suite by default.
    scenarios : sequence of Scenario
        How values go missing.
    repeats : int
        Splits of each dataset; repeat ``r`` has the seed ``r`` for everything.
    first : int
        The first repeat: what was designed on some can be judged by others.
    max_rows : int, optional
        Rows of a dataset that are used at most.
    data : path, optional
        Folder with the data; see :func:`benchmarks.suite.datasets.load`.
    """

    peers: Sequence[Peer]
    datasets: Sequence[str] = ()
    scenarios: Sequence[Scenario] = DEPLOYMENT
    repeats: int = 5
    first: int = 0
    max_rows: int | None = 10_000
    data: str | None = None

    def __post_init__(self) -> None:
        unknown = [name for name in self.datasets if name not in datasets.REGISTRY]
        if unknown:
            known = ", ".join(datasets.REGISTRY)
            raise InvalidInput(f"datasets must be among {known}; got {unknown[0]!r}.")
        if self.repeats < 1:
            raise InvalidInput(f"repeats must be at least 1; got {self.repeats}.")
        if self.first < 0:
            raise InvalidInput(f"first must not be negative; got {self.first}.")
        if not self.peers or not self.scenarios:
            raise InvalidInput("a plan must have at least one peer and one scenario.")
        idle = [peer.name for peer in self.peers if peer.needs_missing_in_training]
        complete = [each.name for each in self.scenarios if each.training is None]
        if idle and complete:
            raise InvalidInput(
                f"peers must not include {idle[0]!r}, which learns from missing values in "
                f"training: the scenario {complete[0]!r} has missing at deployment only."
            )

    def settings(self) -> dict[str, Any]:
        """What must be the same for results to stand in one table."""
        return {
            "scenarios": [asdict(scenario) for scenario in self.scenarios],
            "max_rows": self.max_rows,
            "model": HYPERPARAMETERS,
            "versions": versions(),
            "python": platform.python_version(),
        }


@dataclass(frozen=True)
class Cell:
    """One peer on one split of one dataset."""

    dataset: str
    repeat: int
    peer: Peer

    def file(self, folder: Path) -> Path:
        """Where its results are kept."""
        name = re.sub(r"[^a-z0-9.]+", "-", self.peer.name.lower()).strip("-")
        return folder / "cells" / self.dataset / str(self.repeat) / f"{name}.json"

    def keep(self, folder: Path, results: Sequence[Mapping[str, Any]]) -> None:
        """Write its results, one a scenario."""
        _replace(self.file(folder), json.dumps(list(results), indent=1).encode())

    def done(self, folder: Path) -> bool:
        """Whether its results are there, without a failure."""
        file = self.file(folder)
        return file.exists() and not any(result["failure"] for result in _results(file))


def run(
    plan: Plan, folder: str | os.PathLike[str], workers: int = 2, show: bool = True
) -> pd.DataFrame:
    """Run what is not done yet, and return all results.

    Parameters
    ----------
    plan : Plan
        What to run. A folder can be continued with more peers, datasets or repeats.
    folder : path
        Where results are kept.
    workers : int
        Processes; 1 runs in this one.
    show : bool
        Whether to show progress, and which peers are skipped.

    Returns
    -------
    DataFrame
        One row for each dataset, repeat, scenario and peer, also in ``results.parquet``.
    """
    place = Path(folder)
    _claim(place, plan)
    present = [peer for peer in plan.peers if not peer.missing()]
    _note_skipped(place, plan.peers, show)
    names = plan.datasets or datasets.names()
    repeats = range(plan.first, plan.first + plan.repeats)
    cells = [Cell(*one) for one in itertools.product(names, repeats, present)]
    waiting = [cell for cell in cells if not cell.done(place)]
    with bar("cells", len(waiting), verbose=show) as advance:
        for cell in _finished(plan, waiting, place, workers):
            advance(f"{cell.dataset}, {cell.peer.name}")
    results = collect(place)
    _replace(place / "results.parquet", parquet(results))
    return results


def _finished(plan: Plan, cells: list[Cell], folder: Path, workers: int) -> Iterator[Cell]:
    """Run cells, in this process or in several, and hand out each when it is done."""
    if workers == 1:
        for cell in cells:
            _work(plan, cell, folder)
            yield cell
        return
    with spawned(workers) as pool:
        futures = {pool.submit(_work, plan, cell, folder): cell for cell in cells}
        try:
            for future in as_completed(futures):
                future.result()
                yield futures[future]
        except BrokenProcessPool as error:
            raise KnotholeError(
                "a worker of the benchmark died, likely for want of memory. Run the same command "
                "again: it continues where this one stopped."
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _work(plan: Plan, cell: Cell, folder: Path) -> None:
    stage = _stage(cell.dataset, cell.repeat, plan.max_rows, plan.data)
    results = run_cell(stage, cell.peer, plan.scenarios)
    cell.keep(folder, [result.as_dict() for result in results])


@lru_cache(maxsize=2)
def _stage(name: str, repeat: int, max_rows: int | None, data: str | None) -> Stage:
    return Stage.set_up(datasets.load(name, data), repeat, max_rows)


# --- files ---------------------------------------------------------------------------------------


def _claim(folder: Path, plan: Plan) -> None:
    """Note the settings in a new folder; refuse one that was begun with others."""
    file = folder / "settings.json"
    settings = json.loads(json.dumps(plan.settings()))
    if not file.exists():
        _replace(file, json.dumps(settings, indent=1).encode())
        return
    begun = json.loads(file.read_text())
    different = [name for name in settings if begun.get(name) != settings[name]]
    if different:
        raise InvalidInput(
            f"folder {os.fspath(folder)!r} was begun with other {' and '.join(different)}; results "
            f"of both cannot stand in one table. Use another folder, or delete this one."
        )


def _note_skipped(folder: Path, peers: Sequence[Peer], show: bool) -> None:
    """Keep, and say, which peers are left out and why."""
    reasons = skipped(folder)
    for peer in peers:
        reasons.pop(peer.name, None)
        if absent := peer.missing():
            verb = "is" if len(absent) == 1 else "are"
            reasons[peer.name] = f"{' and '.join(absent)} {verb} not installed"
            if show:
                print(f"{peer.name} is skipped: {reasons[peer.name]}.")
    _replace(folder / "skipped.json", json.dumps(reasons, indent=1).encode())


def skipped(folder: Path) -> dict[str, str]:
    """Why peers were left out of a run, by name."""
    file = folder / "skipped.json"
    reasons: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    return reasons


def collect(folder: str | os.PathLike[str]) -> pd.DataFrame:
    """All results in a folder, one row for each dataset, repeat, scenario and peer."""
    files = sorted(Path(folder).glob("cells/*/*/*.json"))
    rows = [row for file in files for row in _results(file)]
    frame = pd.DataFrame(rows, columns=list(Result.__dataclass_fields__))
    numbers = ["rmse", "log_loss", "auc", "fit_seconds", "predict_seconds"]
    return frame.astype(dict.fromkeys(numbers, "float64"))


def _results(file: Path) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = json.loads(file.read_text())
    except json.JSONDecodeError as error:
        raise DamagedFile(f"{os.fspath(file)!r} is damaged; delete it and run again.") from error
    return found


def parquet(results: pd.DataFrame) -> bytes:
    """Results as a small file: names as dictionaries, bytes of numbers side by side."""
    table = pa.Table.from_pandas(results, preserve_index=False)
    numbers = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    names = [name for name in results if name not in (*numbers, "groups")]
    sink = pa.BufferOutputStream()
    parquet_files.write_table(
        table, sink, compression="zstd", compression_level=19, use_dictionary=names,
        use_byte_stream_split=[*numbers, "groups.list.element"],
    )  # fmt: skip
    return bytes(sink.getvalue())


def _replace(file: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(file) as beside:
        beside.write_bytes(data)
