"""Features drawn at random are taken from the model and passed as auxiliary columns, or not at all.

Both arms have the same model of the remaining features, the same rows and the same missing values
in them. Of the auxiliary columns as many entries are missing as of the features.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import knothole as kh
from benchmarks.suite import datasets, models
from benchmarks.suite.cells import GROUPS, Result
from benchmarks.suite.datasets import Dataset
from benchmarks.suite.scenarios import by_importance
from knothole.arrays import Floats
from knothole.densities.base import Density
from knothole.files import whole_file
from knothole.report.methods import Task, row_losses

#: Repeats of the suite that no other measurement uses: five draws of features for each table.
REPEATS = tuple(range(80, 85))
#: How many features are taken from the model.
TAKEN = 3
#: Rows of a table at most: a quarter are tested on.
MAX_ROWS = 3000
SCENARIOS = ("nothing missing", "30 % missing", "most important feature lost")
WITH, WITHOUT = "with auxiliary columns", "without them"
RATE = 0.3


@dataclass(frozen=True)
class Draw:
    """Some features of a table, drawn at random for a repeat."""

    dataset: str
    repeat: int

    def file(self, folder: Path) -> Path:
        """Where its results are kept."""
        return folder / f"{self.dataset}-{self.repeat}.json"

    def done(self, folder: Path) -> list[dict[str, Any]]:
        """Its results, one for each scenario and arm: kept, or found now."""
        file = self.file(folder)
        if not file.exists():
            found = [result.as_dict() for result in self.results()]
            with whole_file(file) as beside:
                beside.write_text(json.dumps(found, indent=1))
        kept: list[dict[str, Any]] = json.loads(file.read_text())
        return kept

    def results(self) -> Iterator[Result]:
        """Fit a model of the other features, wrap it twice, and ask both."""
        split = datasets.split(datasets.load(self.dataset), self.repeat, max_rows=MAX_ROWS)
        rng = np.random.default_rng([self.repeat, TAKEN])
        names = list(split.train.table.columns)
        taken = [names[i] for i in sorted(rng.choice(len(names), TAKEN, replace=False))]
        features = [name for name in names if name not in taken]
        train, task = split.train, split.train.task
        model = models.xgboost_factory(task, self.repeat)()
        model.fit(train.table[features], train.target)
        valid = replace(split.valid, table=split.valid.table[features])
        first = by_importance(model, valid, self.repeat)[0]
        tables = dict(zip(SCENARIOS, _asked(split.test, first, self.repeat), strict=True))
        for arm, auxiliary in ((WITHOUT, []), (WITH, taken)):
            start = time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                robust = kh.wrap(
                    model, train.table[[*features, *auxiliary]], train.target,
                    auxiliary=auxiliary, random_state=self.repeat, verbose=False,
                )  # fmt: skip
            seconds = time.process_time() - start
            for scenario, table in tables.items():
                start = time.process_time()
                found = predicted(robust, task, table[[*features, *auxiliary]])
                asking = time.process_time() - start
                losses = row_losses(task, split.test.target, found)
                groups = tuple(float(part.mean()) for part in np.array_split(losses, GROUPS))
                yield Result(
                    self.dataset, task.value, self.repeat, scenario, arm, fit_seconds=seconds,
                    predict_seconds=asking, groups=groups,
                    **models.scores(task, split.test.target, found),
                )  # fmt: skip


def _asked(test: Dataset, first: str, repeat: int) -> Sequence[pd.DataFrame]:
    """The test rows as they are, with entries missing at random, and with a column gone."""
    gone = np.random.default_rng([repeat, 1]).random(test.table.shape) < RATE
    lost = test.table.copy()
    lost[first] = lost[first].where(pd.Series(False, index=lost.index))
    return test.table, test.table.mask(gone), lost


def predicted(robust: kh.Robust, task: Task, table: pd.DataFrame) -> Floats:
    """Numbers, or probabilities of the classes."""
    answers = robust.predict(table) if task is Task.REGRESSION else robust.predict_proba(table)
    return np.asarray(answers)


def densities(table: pd.DataFrame) -> dict[str, Density]:
    """What predictions are timed under: exact answers, and drawn ones where all is numeric."""
    exact: dict[str, Density] = {"mixture": kh.Mixture(16, random_state=0)}
    if all(pd.api.types.is_numeric_dtype(dtype) for dtype in table.dtypes):
        return exact | {"Gaussian mixture": kh.GaussianMixture(4, random_state=0)}
    return exact


def cost(dataset: str, repeat: int, times: int = 7) -> Iterator[dict[str, Any]]:
    """CPU seconds of predictions where three columns are auxiliary, and where all are features.

    Trees, densities and rows are the same: the model of all features was trained without values in
    the three columns, so that it does not split on them.
    """
    split = datasets.split(datasets.load(dataset), repeat, max_rows=MAX_ROWS)
    rng = np.random.default_rng([repeat, TAKEN])
    names = list(split.train.table.columns)
    taken = [names[i] for i in sorted(rng.choice(len(names), TAKEN, replace=False))]
    features = [name for name in names if name not in taken]
    table, target, task = split.train.table, split.train.target, split.train.task
    _, asked, _ = _asked(split.test, features[0], repeat)
    no_row = pd.Series(False, index=table.index)
    arms: dict[str, list[str]] = {"auxiliary": taken, "features": []}
    for kind, density in densities(table).items():
        robusts, seconds = {}, dict.fromkeys(arms, np.inf)
        for arm, auxiliary in arms.items():
            own = [name for name in names if name not in auxiliary]
            model = models.xgboost_factory(task, repeat)()
            nothing = {name: table[name].where(no_row) for name in taken if name in own}
            model.fit(table[own].assign(**nothing), target)
            robusts[arm] = kh.wrap(model, table[[*own, *auxiliary]], density=density,
                                   auxiliary=auxiliary, verbose=False)  # fmt: skip
            predicted(robusts[arm], task, asked)
        for _ in range(times):  # in turn, so that both have the same company
            for arm, robust in robusts.items():
                start = time.process_time()
                predicted(robust, task, asked)
                seconds[arm] = min(seconds[arm], time.process_time() - start)
        yield {"dataset": dataset, "repeat": repeat, "density": kind, **seconds}
