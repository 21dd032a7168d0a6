"""Runs of the benchmark as they are kept beside their page: small, and complete.

A page stands on the files of one to three settings (missing values at deployment only, in training
too by the same mechanism, or by another), and on nothing else::

    FOLDER/suite.md                        the page
    FOLDER/results/suite_SETTING.parquet   every score and time, one row a scenario and repeat
    FOLDER/results/suite_SETTING.json      versions, seeds, settings, and peers that were skipped
    FOLDER/results/suite_SETTING_*.png     pictures
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.suite import analysis, datasets, runner
from benchmarks.suite.peers.roster import OWN, UNCORRECTED, all_peers, idle
from benchmarks.suite.scenarios import SETTINGS, Mechanism, Scenario
from benchmarks.versions import OF_RIVALS
from knothole.errors import InvalidInput

SEEDS = (
    "four repeats, r // 4 alike, divide a dataset between their test rows; repeat r has the seed r "
    "for validation rows, model, imputers and mechanism, and r, r + 1 and so on for "
    "masked copies to train on; missing values of test rows are drawn with the seed 1000000, "
    "those of training rows with 2000000; densities have the seed 0"
)


@dataclass(frozen=True, eq=False)
class Suite:
    """All results of one setting.

    Attributes
    ----------
    results : DataFrame
        As :func:`benchmarks.suite.runner.collect` returns them.
    about : dict
        Setting, versions, scenarios and so on, as in the JSON file.
    """

    results: pd.DataFrame
    about: dict[str, Any]

    @property
    def setting(self) -> str:
        """One of "deployment", "same" and "changed"."""
        return str(self.about["setting"])

    @property
    def own(self) -> list[str]:
        """Those of our peers that were run."""
        return [name for name in OWN if name in set(self.results["peer"])]

    @cached_property
    def contest(self) -> pd.DataFrame:
        """The results of all but the one that only the correction is compared with."""
        return self.results[self.results["peer"] != UNCORRECTED]

    @cached_property
    def corrections(self) -> pd.DataFrame:
        """What the correction changes in each cell; empty where it was not left out in any."""
        return analysis.changes(self.results, OWN[0], UNCORRECTED)

    @cached_property
    def errors(self) -> pd.DataFrame:
        """Mean errors of the cells that all peers ran, in the order of datasets and scenarios."""
        table = analysis.error_table(self.contest)
        return table.reindex([cell for cell in self.cells if cell in table.index])

    @property
    def cells(self) -> list[tuple[str, str]]:
        """All cells, in order."""
        names = [name for name in datasets.REGISTRY if name in self.about["datasets"]]
        return [(name, scenario) for name in names for scenario in self.about["scenarios"]]

    @cached_property
    def ranking(self) -> analysis.Ranking | None:
        """Mean ranks; None with fewer than two peers or cells."""
        return None if min(self.errors.shape) < 2 else analysis.rank(self.contest)

    @cached_property
    def overview(self) -> pd.DataFrame:
        """Error and time side by side."""
        return analysis.overview(self.contest)

    @cached_property
    def duels(self) -> dict[str, pd.DataFrame]:
        """Of each of our peers, its duels with all rivals in all cells."""
        found = {name: analysis.duels(self.contest, name) for name in self.own}
        return {
            name: duels[~duels["rival"].isin(OWN)]
            for name, duels in found.items()
            if not set(duels.get("rival", ())) <= set(OWN)
        }

    @property
    def by_dataset(self) -> dict[str, pd.DataFrame]:
        """Of each of our peers, how it does against each other one where a dataset counts once."""
        return {name: analysis.by_dataset(duels) for name, duels in self.duels.items()}

    @cached_property
    def tallies(self) -> dict[str, pd.DataFrame]:
        """Of each of our peers, wins, ties and losses against each other one, the hardest first."""
        return {name: analysis.tally(duels) for name, duels in self.duels.items()}


def gather(folder: str | os.PathLike[str]) -> Suite:
    """What a run has found so far, from its folder."""
    place = Path(folder)
    if not (place / "settings.json").is_file():
        raise InvalidInput(
            f"{os.fspath(folder)!r} has no settings.json, which a run of the benchmark writes. "
            f"Name the folder of a run, or leave out --page-only."
        )
    results = runner.collect(place)
    if results.empty:
        raise InvalidInput(f"{os.fspath(folder)!r} has no finished cell yet.")
    settings = json.loads((place / "settings.json").read_text())
    planned = [_scenario(record) for record in settings["scenarios"]]
    about = {
        "setting": setting_of(planned),
        "datasets": sorted(set(results["dataset"])),
        "scenarios": [scenario.name for scenario in planned],
        "repeats": int(results["repeat"].nunique()),
        "max_rows": settings["max_rows"],
        "model": settings["model"],
        "seeds": SEEDS,
        "skipped": _left_out(results, runner.skipped(place), setting_of(planned)),
        "python": settings["python"],
        "versions": settings["versions"],
    }
    return Suite(results, about)


def take_rivals(plan: runner.Plan, folder: Path, page: Path) -> int:
    """Make results of rivals that stand beside a page cells of a run, and tell how many.

    Rivals stay what they are when knothole changes: a run with these has only ours to do. Results
    of other rows, models, libraries or scenarios are refused.
    """
    setting, asked = setting_of(plan.scenarios), plan.settings()
    found = next((each for each in load(page) if each.setting == setting), None)
    if found is None:
        raise InvalidInput(f"{os.fspath(page)!r} has no results of {setting!r} to take rivals of.")
    asked["scenarios"] = [scenario.name for scenario in plan.scenarios]
    # What knothole itself is or depends on says nothing of the others.
    stands, asked = (
        each | {"versions": {k: v for k, v in each["versions"].items() if k in OF_RIVALS}}
        for each in (found.about, asked)
    )
    others = [name for name in asked if asked[name] != stands[name]]
    if others:
        raise InvalidInput(
            f"rivals beside {os.fspath(page)!r} were run with other {' and '.join(others)}: theirs "
            f"{stands[others[0]]}, asked for {asked[others[0]]}. Ask for the same, or run them."
        )
    ours = {*OWN, UNCORRECTED}
    peers, taken = {peer.name: peer for peer in plan.peers if peer.name not in ours}, 0
    names = ["dataset", "repeat", "peer"]
    for key, part in found.results.groupby(names, observed=True):
        dataset, repeat, peer = map(str, key)
        if peer in peers and not part["failure"].any():
            records: Any = part.assign(groups=part["groups"].map(np.ndarray.tolist))
            cell = runner.Cell(dataset, int(repeat), peers[peer])
            cell.keep(folder, records.to_dict("records"))
            taken += 1
    return taken


def setting_of(planned: Sequence[Scenario]) -> str:
    """Which setting scenarios make: "deployment", "same" or "changed"."""
    if all(scenario.training is None for scenario in planned):
        return "deployment"
    return "same" if all(each.training == each.deployment for each in planned) else "changed"


def _scenario(record: dict[str, Any]) -> Scenario:
    training = record["training"]
    return Scenario(Mechanism(**record["deployment"]), training and Mechanism(**training))


def _left_out(results: pd.DataFrame, reasons: dict[str, str], setting: str) -> dict[str, str]:
    """Peers without a result, and why."""
    ran = set(results["peer"])
    known = reasons | idle(setting)
    return {
        name: known.get(name, "not asked for in this run")
        for name in all_peers()
        if name not in ran
    }


def save(suite: Suite, folder: Path) -> None:
    """Write the files of a setting to a page's folder, in place of earlier ones."""
    place = folder / "results"
    place.mkdir(parents=True, exist_ok=True)
    # Single precision: seven digits are more than any of these numbers has.
    small = suite.results.astype(dict.fromkeys(suite.results.select_dtypes("float64"), "float32"))
    small["groups"] = small["groups"].map(lambda group: np.asarray(group, dtype=np.float32))
    name = f"suite_{suite.setting}"
    (place / f"{name}.parquet").write_bytes(runner.parquet(small))
    (place / f"{name}.json").write_text(json.dumps(suite.about, indent=1) + "\n")


def load(folder: Path) -> list[Suite]:
    """The settings whose files are in a page's folder, in order."""
    found = []
    for setting in SETTINGS:
        file = folder / "results" / f"suite_{setting}.parquet"
        if file.exists():
            about = json.loads(file.with_suffix(".json").read_text())
            found.append(Suite(pd.read_parquet(file), about))
    if not found:
        raise InvalidInput(
            f"{os.fspath(folder)!r} has no results/suite_*.parquet to write a page from. Run the "
            f"benchmark with --page first."
        )
    return found
