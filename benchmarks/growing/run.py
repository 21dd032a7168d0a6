"""One trial of each experiment.

*Insurance*: the paper's right panel in the authors' encoding, missing values at the same rate at
learning and deployment, for one tree and for a hundred boosted ones. *Shifts*: tables of the suite,
where values go missing by one mechanism at learning and by another at deployment. *Times*: what
growing costs.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import catboost
import lightgbm
import pandas as pd
import xgboost
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.tree import DecisionTreeRegressor

from benchmarks.paper import panels
from benchmarks.paper.panels import Insurance, Record
from benchmarks.suite import datasets
from benchmarks.suite.cells import Stage, run_cell
from benchmarks.suite.peers.base import Native, Peer
from benchmarks.suite.peers.imputation import MeanAndMask, mice
from benchmarks.suite.peers.own import Knothole, KnotholeGrown, KnotholeRefitted
from benchmarks.suite.scenarios import Mechanism, Scenario
from knothole import missingness
from knothole.densities.mixture.density import Mixture
from knothole.files import whole_file
from knothole.leaves.induction import expand
from knothole.meta import ExpectedRegressor
from knothole.wrapping import wrap

NATIVE, REFITTED, GROWN = "XGBoost", "refitted leaves", "grown"
#: What tells the models apart; the rest is as in the paper's figure.
MODELS: dict[str, dict[str, Any]] = {
    "one tree": {"n_estimators": 1, "learning_rate": 1.0},
    "100 trees": {"n_estimators": 100, "learning_rate": 0.1},
}


def insurance(rate: float, trial: int) -> list[Record]:
    """The methods at one rate, under one density over X, a mixture."""
    data = Insurance.load()
    train, test = data.incomplete(rate, trial)
    learned = panels.learn(Mixture(random_state=trial), train, data.columns())
    records = []
    for name, settings in MODELS.items():
        estimator = xgboost.XGBRegressor(n_jobs=1, **panels.COMMON, **settings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of densities that have not quite converged
            model = estimator.fit(train, data.y)
            robust = wrap(model, train, density=learned, nan_policy="lost")
            grown = ExpectedRegressor(
                estimator, density=learned, learn="expected", nan_policy="lost"
            )
            answers = {
                NATIVE: model.predict(test),
                REFITTED: robust.refit_leaves(train, data.y, n_jobs=1).predict(test, n_jobs=1),
                GROWN: grown.fit(train, data.y).predict(test, n_jobs=1),
            }
        records += data.records(answers, model=name, rate=rate, trial=trial)
    return records


TABLES = ("abalone", "concrete", "titanic", "pima_diabetes")
_KINDS = {kind: Mechanism(kind, 0.3) for kind in ("mcar", "mar", "mnar")}
#: Every way from one mechanism to another, and from no missing values to some.
SHIFTS = tuple(
    Scenario(deployment, training)
    for training in (None, *_KINDS.values())
    for deployment in (*_KINDS.values(), Mechanism("outage"))
)
#: Rows of a table, so that all of it takes hours and not days; the density is one that is quick.
MAX_ROWS = 1500


def peers(missing_in_training: bool) -> list[Peer]:
    """Those that are compared; without missing values in training nothing is refitted or grown."""
    quick = Mixture(random_state=0)
    own: list[Peer] = [Knothole(density=quick)]
    if missing_in_training:
        own += [KnotholeRefitted(density=quick), KnotholeGrown(density=quick)]
    return [*own, Native(), MeanAndMask(), mice()]


def shifts(table: str, repeat: int) -> list[Record]:
    """Errors on one split of a table, in every shift."""
    stage = Stage.set_up(datasets.load(table), repeat, MAX_ROWS)
    records: list[Record] = []
    for missing in (False, True):
        part = [each for each in SHIFTS if (each.training is not None) == missing]
        for peer in peers(missing):
            for result in run_cell(stage, peer, part):
                error = result.rmse if result.rmse is not None else result.log_loss
                scenario = next(each for each in part if each.name == result.scenario)
                training = "none" if scenario.training is None else scenario.training.kind
                records.append(
                    {"table": table, "repeat": repeat, "training": training,
                     "deployment": scenario.deployment.kind, "peer": result.peer, "error": error,
                     "failure": result.failure, "max_rows": MAX_ROWS}
                )  # fmt: skip
    return records


def times(repeat: int) -> list[Record]:
    """CPU time of training on eight draws, and on the table as it is, by library."""
    whole = datasets.load("kin8nm")
    X, y = missingness.mcar(whole.table, 0.3, repeat), whole.target
    joint = Mixture(8, random_state=0).fit(X, target=y)
    records = []
    for estimator in (
        xgboost.XGBRegressor(n_jobs=1, n_estimators=100, max_depth=5),
        lightgbm.LGBMRegressor(n_jobs=1, verbose=-1),
        catboost.CatBoostRegressor(
            iterations=200, verbose=0, thread_count=1, allow_writing_files=False
        ),
        HistGradientBoostingRegressor(early_stopping=False),
        DecisionTreeRegressor(),
    ):
        start = time.process_time()
        clone(estimator).fit(X, y)
        own = time.process_time()
        full = expand(joint, X, y)
        drawn = time.process_time()
        clone(estimator).fit(full.X, full.y, sample_weight=full.weight)
        grown = time.process_time()
        records.append(
            {"estimator": type(estimator).__name__, "repeat": repeat, "rows": len(y),
             "draws": len(full.row), "own": own - start, "drawing": drawn - own,
             "training": grown - drawn}
        )  # fmt: skip
    return records


class Job(NamedTuple):
    """One trial, and where its result is kept: of Insurance at a rate, of times, or of shifts."""

    what: str
    trial: int
    rate: float
    folder: Path

    @property
    def path(self) -> Path:
        """Where the result is."""
        return self.folder / f"{self.what}_{self.rate:.1f}_{self.trial}.csv"

    def done(self) -> Path:
        """Run, unless that has been done."""
        if self.path.exists():
            return self.path
        if self.what == "insurance":
            records = insurance(self.rate, self.trial)
        elif self.what == "times":
            records = times(self.trial)
        else:
            records = shifts(self.what, self.trial)
        with whole_file(self.path) as place:
            pd.DataFrame(records).to_csv(place, index=False)
        print(self.what, self.rate, self.trial, flush=True)
        return self.path
