"""One cell of the benchmark: one peer on one split of one dataset, in every scenario."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from benchmarks.suite import datasets, models
from benchmarks.suite.datasets import Dataset, Split
from benchmarks.suite.peers.base import MakeMissing, Peer, Training
from benchmarks.suite.scenarios import Mechanism, Scenario, by_importance
from knothole.report.methods import row_losses

# Groups of test rows whose mean losses are kept, for paired tests between peers.
GROUPS = 20


@dataclass(frozen=True)
class Result:
    """How a peer did in one scenario on one split.

    ``groups`` are the mean losses of twenty groups of test rows, the same rows for every peer.
    A peer that failed has no scores, and its error in ``failure``.
    """

    dataset: str
    task: str
    repeat: int
    scenario: str
    peer: str
    rmse: float | None = None
    log_loss: float | None = None
    auc: float | None = None
    fit_seconds: float | None = None
    predict_seconds: float | None = None
    groups: tuple[float, ...] = ()
    failure: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values by name."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Stage:
    """A split of a dataset in which values can be made missing; the same for all peers."""

    split: Split
    columns: list[str]
    repeat: int

    @classmethod
    def set_up(cls, dataset: Dataset, repeat: int, max_rows: int | None) -> Stage:
        """Split a dataset, and rank its columns by how much a model needs them."""
        split = datasets.split(dataset, repeat, max_rows=max_rows)
        model = models.xgboost_factory(dataset.task, repeat)()
        model.fit(split.train.table, split.train.target)
        return cls(split, by_importance(model, split.valid, repeat), repeat)

    def make_missing(self, mechanism: Mechanism) -> MakeMissing:
        """How a mechanism makes values missing in a table of this dataset."""

        def make_missing(table: pd.DataFrame, seed: int) -> pd.DataFrame:
            return mechanism.make_missing(
                table, seed, self.split.train.table, self.columns, mechanism=self.repeat
            )

        return make_missing

    def training(self, scenario: Scenario) -> Training:
        """What a peer may learn from in a scenario."""
        train = self.split.train
        table, has_missing = train.table, scenario.training is not None
        if scenario.training is not None:
            table = self.make_missing(scenario.training)(table, _TRAINING_SEED)
        model = models.xgboost_factory(train.task, self.repeat)
        make_missing = self.make_missing(scenario.deployment)
        return Training(
            table, train.target, train.task, model, self.repeat, make_missing, has_missing
        )

    def test_table(self, scenario: Scenario) -> pd.DataFrame:
        """The test rows with their missing values."""
        return self.make_missing(scenario.deployment)(self.split.test.table, _TEST_SEED)


# Informed peers make values of training rows missing with the seeds 0, 1, ...; these are far from
# them.
_TEST_SEED = 1_000_000
_TRAINING_SEED = 2_000_000


def run_cell(stage: Stage, peer: Peer, scenarios: Sequence[Scenario]) -> list[Result]:
    """Fit a peer, once for all scenarios in which it learns from the same, and score it.

    Whatever a peer raises is a result too; errors in setting up the stage are not caught.
    """
    groups: dict[Any, list[Scenario]] = {}
    for scenario in scenarios:
        groups.setdefault(scenario if peer.informed else scenario.training, []).append(scenario)
    with _one_thread():
        return [
            result
            for group in groups.values()
            for result in _run_group(stage, copy.deepcopy(peer), group)
        ]


@dataclass(frozen=True)
class Attempt:
    """What a peer returned, how long it took, and what it raised ("" if nothing)."""

    found: Any
    seconds: float
    failure: str = ""


def _run_group(stage: Stage, peer: Peer, scenarios: list[Scenario]) -> Iterator[Result]:
    """Scores of a new peer in scenarios that share what it learns from."""
    fit = _attempt(peer.fit, stage.training(scenarios[0]))
    for scenario in scenarios:
        done = fit if fit.failure else _attempt(peer.predict, stage.test_table(scenario))
        test = stage.split.test
        about: dict[str, Any] = {
            "dataset": test.name, "task": test.task.value, "repeat": stage.repeat,
            "scenario": scenario.name, "peer": peer.name,
        }  # fmt: skip
        failure = done.failure
        if not failure and not np.isfinite(done.found).all():
            failure = "predictions are not finite"
        if failure:
            yield Result(**about, failure=failure)
            continue
        about.update(models.scores(test.task, test.target, done.found))
        losses = row_losses(test.task, test.target, done.found)
        groups = tuple(float(part.mean()) for part in np.array_split(losses, GROUPS) if len(part))
        yield Result(**about, fit_seconds=fit.seconds, predict_seconds=done.seconds, groups=groups)


def _attempt(work: Callable[[Any], Any], material: Any) -> Attempt:
    # Time of the processor, not of the clock: cells run side by side with whatever else there is.
    start = time.process_time()
    try:
        found = work(material)
    except Exception as error:  # whatever a rival's library raises
        return Attempt(None, 0.0, f"{type(error).__name__}: {error}"[:300])
    return Attempt(found, time.process_time() - start)


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread for everybody: times are compared, and cells run side by side."""
    before = os.environ.get("KNOTHOLE_THREADS")
    os.environ["KNOTHOLE_THREADS"] = "1"
    try:
        with threadpool_limits(1):
            yield
    finally:
        if before is None:
            del os.environ["KNOTHOLE_THREADS"]
        else:
            os.environ["KNOTHOLE_THREADS"] = before
