"""Everything in one go: the paper's figure, the published masks, and what the paper leaves open.

Everything goes to one folder; page and picture are written from the other files alone::

    FOLDER/reproduce.md              what was found
    FOLDER/results/figure1.csv       the error of every method, panel, rate and trial
    FOLDER/results/figure1.png       its picture
    FOLDER/results/figure1_rule.csv  the same with the raw table encoded by the paper's rule
    FOLDER/results/published.csv     the errors on the published masks, where those are at hand
    FOLDER/results/forests.csv, mechanisms.csv
    FOLDER/results/reproduce.json    versions, seeds, choices and seconds
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.paper import open_questions, page, panels, published
from benchmarks.paper.panels import RATES, Insurance, Record
from benchmarks.versions import versions
from benchmarks.workers import spawned
from knothole.errors import InvalidInput
from knothole.progress import bar

#: Trials of the figure, and of the smaller experiments beside it.
TRIALS = 10
OPEN_TRIALS = 3
RESULTS = "results"


@dataclass(frozen=True)
class Job:
    """A call of a function whose first argument is Insurance; ``title`` says what it is."""

    title: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    data: str | None = None
    encoding: str = "authors"

    def __call__(self) -> Any:
        """Do it, in whatever process."""
        return self.function(_insurance(self.data, self.encoding), *self.arguments)


@lru_cache(maxsize=2)
def _insurance(data: str | None, encoding: str) -> Insurance:
    return Insurance.load(data, encoding)


def reproduce(
    folder: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    *,
    trials: int = TRIALS,
    open_trials: int = OPEN_TRIALS,
    workers: int = 2,
    show: bool = True,
) -> Path:
    """Run everything and write it to a folder.

    Parameters
    ----------
    folder : path
        Where to write; it is created, and files of an earlier run are replaced.
    data : path, optional
        Folder with the data; see :func:`benchmarks.suite.datasets.load`. Without the published
        masks in it that part is left out, and the page says so.
    trials : int
        Of the figure.
    open_trials : int
        Of the experiments that the paper leaves open; 0 for none.
    workers : int
        Processes; 1 runs in this one.
    show : bool
        Whether to show progress.

    Returns
    -------
    Path
        The page.
    """
    if trials < 2:
        raise InvalidInput(f"trials must be at least 2, for a standard deviation; got {trials}.")
    if open_trials == 1 or open_trials < 0:
        raise InvalidInput(f"open_trials must be 0 or at least 2; got {open_trials}.")
    place = Path(folder)
    (place / RESULTS).mkdir(parents=True, exist_ok=True)
    source = None if data is None else os.fspath(data)
    about: dict[str, Any] = {
        "versions": versions(),
        "python": platform.python_version(),
        "trials": trials,
        "open_trials": open_trials,
        "workers": workers,
        "cores": os.cpu_count(),
        "seeds": "masks: 100 trial + 10 rate for training rows, 1000000 more for test rows; "
        "densities and forests: trial; choices: 0",
        "seconds": {},
    }

    def run(title: str, jobs: Sequence[Job]) -> list[Any]:
        start = time.perf_counter()
        found = _run(title, jobs, workers, show)
        about["seconds"][title] = round(time.perf_counter() - start, 1)
        return found

    _write(place, "figure1.csv", _figure(source, "authors", trials, about, run))
    _write(place, "figure1_rule.csv", _figure(source, "paper", trials, about, run))
    chosen = about["densities"]
    _stale(place, "published.csv", "published_errors.csv", "forests.csv", "mechanisms.csv")
    about["published"] = _published(place, source, run)
    if open_trials:
        _open(place, chosen["0.3"], source, open_trials, run)
    text = json.dumps(about, indent=1)
    (place / RESULTS / "reproduce.json").write_text(text + "\n")
    return page.write(place)


def _figure(
    source: str | None,
    encoding: str,
    trials: int,
    about: dict[str, Any],
    run: Callable[[str, Sequence[Job]], list[Any]],
) -> pd.DataFrame:
    """Both panels in one encoding; ``about`` is told of the densities."""
    where, suffix = (source, encoding), "" if encoding == "authors" else " by the rule"
    jobs = [Job(f"density at rate {rate}", _choose, (rate,), *where) for rate in RATES]
    chosen = dict(zip(RATES, run(f"densities{suffix}", jobs), strict=True))
    complete = run(f"left density{suffix}", [Job("complete", _choose_complete, (), *where)])[0]
    names = {"complete": complete} | {f"{rate:.1f}": name for rate, name in chosen.items()}
    about[f"densities{suffix}"] = names
    jobs = [
        Job(f"left, trial {trial}", panels.left_panel, (complete, trial), *where)
        for trial in range(trials)
    ]
    jobs += [
        Job(f"right, rate {rate}, trial {trial}", panels.right_panel, (chosen[rate], rate, trial),
            *where)
        for trial, rate in itertools.product(range(trials), RATES)
    ]  # fmt: skip
    return _table(run(f"figure 1{suffix}", jobs))


def _published(
    place: Path, source: str | None, run: Callable[[str, Sequence[Job]], list[Any]]
) -> dict[str, Any]:
    """Errors on the published masks, to files; returns the choices, or why there is nothing."""
    try:
        errors = published.Published.load(source).errors
    except InvalidInput as error:
        return {"skipped": str(error)}
    results, choices = run(
        "published masks", [Job("published masks", _evaluate, (source,), source)]
    )[0]
    _write(place, "published.csv", results)
    _write(place, "published_errors.csv", published.compare(results, errors).reset_index())
    return dict(choices)


def _evaluate(_: Insurance, source: str | None) -> tuple[pd.DataFrame, dict[str, Any]]:
    return published.evaluate(source)


def _open(
    place: Path,
    density: str,
    source: str | None,
    trials: int,
    run: Callable[[str, Sequence[Job]], list[Any]],
) -> None:
    forests = [
        Job(f"forests, rate {rate}, trial {trial}", open_questions.forests, (rate, trial), source)
        for rate, trial in itertools.product(open_questions.FOREST_RATES, range(trials))
    ]
    _write(place, "forests.csv", _table(run("forests", forests)))
    mechanisms = [
        Job(f"{learning.name}, trial {trial}", open_questions.mechanisms,
            (density, learning, trial), source)
        for learning, trial in itertools.product(open_questions.MECHANISMS, range(trials))
    ]  # fmt: skip
    _write(place, "mechanisms.csv", _table(run("mechanisms", mechanisms)))


def _choose(data: Insurance, rate: float) -> str:
    """The density for a rate of missing values, by the training rows of the first trial."""
    return panels.choose_density(data.incomplete(rate, 0)[0], data.columns())


def _choose_complete(data: Insurance) -> str:
    return panels.choose_density(data.train, data.columns())


# --- running and writing -------------------------------------------------------------------------


def _run(title: str, jobs: Sequence[Job], workers: int, show: bool) -> list[Any]:
    """What the jobs return, in their order."""
    with bar(title, len(jobs), verbose=show) as advance:
        if workers == 1:
            found = []
            for job in jobs:
                found.append(job())
                advance(job.title)
            return found
        with spawned(min(workers, len(jobs))) as pool:
            futures = {pool.submit(job): place for place, job in enumerate(jobs)}
            try:
                for future in as_completed(futures):
                    future.result()
                    advance(jobs[futures[future]].title)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            return [future.result() for future in futures]


def _table(parts: Sequence[list[Record]]) -> pd.DataFrame:
    return pd.DataFrame(list(itertools.chain.from_iterable(parts)))


def _write(place: Path, name: str, table: pd.DataFrame) -> None:
    table.to_csv(place / RESULTS / name, index=False, float_format="%.4f", lineterminator="\n")


def _stale(place: Path, *names: str) -> None:
    """Remove files that this run may not write, so that a page never shows an earlier run's."""
    for name in names:
        (place / RESULTS / name).unlink(missing_ok=True)
