"""``python -m benchmarks.mcar``: the setting of Le Morvan and Varoquaux (arXiv 2407.19804).

20 and 50 % of the entries are missing completely at random, in training and test rows alike, and a
model is trained on what each imputer makes of the training rows, with and without columns that
say which entries were missing. knothole is measured beside them: with the model's own leaves, and
with refitted ones. A second part is not in that paper: the model was trained on complete rows, and
all peers but one keep it.

It goes on where it stopped, and writes the tables of docs/alternatives.md.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from benchmarks.markdown import table as markdown
from benchmarks.suite import datasets, runner
from benchmarks.suite.peers.base import Native, Peer, Training
from benchmarks.suite.peers.imputation import MeanAndMask, filled, mice
from benchmarks.suite.peers.own import Knothole, KnotholeRefitted
from benchmarks.suite.scenarios import Mechanism, Scenario
from knothole.arrays import Floats
from knothole.report.methods import Filled, Iterative, TableImputer, outputs

#: One split of each table, none that served design, and so many of its rows at most.
REPEAT, MAX_ROWS = 8, 4_000
FILE, PAGE = "mcar.csv", "alternatives.md"
COLUMNS = ["dataset", "task", "scenario", "peer", "rmse", "log_loss", "fit_seconds", "failure"]


class WithMask(Peer):
    """A model trained on a filled table, and on columns of 0 / 1 that say what was missing.

    Parameters
    ----------
    name : str
        For tables; "+ mask" is added.
    imputer : TableImputer, optional
        What fills; None leaves NaN to the model.
    """

    def __init__(self, name: str, imputer: TableImputer | None = None) -> None:
        self.name, self.imputer = f"{name} + mask", imputer

    def fit(self, training: Training) -> Self:
        """Fit the imputer and, on the filled training table and its mask, the model."""
        self.task_ = training.task
        if self.imputer is not None:
            self.imputer.fit(training.table, training.seed)
        self.model_ = training.fitted(self._with_mask(training.table))
        return self

    def predict(self, table: pd.DataFrame) -> Floats:
        """Fill, add the mask, and ask the model."""
        return outputs(self.model_, self._with_mask(table), self.task_)

    def _with_mask(self, table: pd.DataFrame) -> pd.DataFrame:
        mask = table.isna().astype(np.float64).add_suffix(" is missing")
        return pd.concat(
            [table if self.imputer is None else self.imputer.fill(table), mask], axis=1
        )


class Refitted(KnotholeRefitted):
    """Refitted leaves with other options: what conditioning on the target is worth.

    Parameters
    ----------
    name : str
        For tables.
    options
        For :meth:`~knothole.robust.Robust.refit_leaves`.
    """

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name)
        self.refit = options

    def fit(self, training: Training) -> Self:
        """Fit the model, learn the density of its columns, and then new leaf values."""
        self.observed_ = list(training.table.columns[training.table.notna().any()])
        table = training.table[self.observed_]
        Knothole.fit(self, replace(training, table=table))
        self.robust_ = self.robust_.refit_leaves(table, training.target, **self.refit)
        return self


#: Refitted leaves without the step towards the deployed error, and without y in the draws.
_VARIANTS = (
    Refitted("refitted, expected loss", objective="expected"),
    Refitted("refitted without y", condition_on_target=False),
)
_MCAR = tuple(Mechanism("mcar", rate) for rate in (0.2, 0.5))
#: What is run: the scenarios of each part, and its peers.
PARTS: Mapping[str, tuple[tuple[Scenario, ...], tuple[Peer, ...]]] = {
    "training": (
        tuple(Scenario(mechanism, mechanism) for mechanism in _MCAR),
        (
            Native(), WithMask("native"), filled("mean"), WithMask("mean", Filled("mean")),
            mice(), WithMask("MICE", Iterative()), Knothole(), KnotholeRefitted(), *_VARIANTS,
        ),
    ),
    "deployment": (
        tuple(Scenario(mechanism) for mechanism in _MCAR),
        (Native(), filled("mean"), mice(), Knothole(), MeanAndMask()),
    ),
}  # fmt: skip


def main() -> None:
    """Run what is not done yet; write docs/results/mcar.csv and the tables of the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mcar", description=__doc__)
    parser.add_argument("--tables", nargs="*", default=list(datasets.names()))
    parser.add_argument("--runs", type=Path, default=Path("out/mcar"), help="kept here")
    parser.add_argument("--page-only", action="store_true", help="run nothing")
    parser.add_argument("-o", "--output", type=Path, default=Path("docs"))
    asked = parser.parse_args()
    file = asked.output / "results" / FILE
    if not asked.page_only:
        for name in asked.tables:  # table by table, so that a run that is stopped has whole tables
            for part, (scenarios, peers) in PARTS.items():
                plan = runner.Plan(
                    peers, [name], scenarios, repeats=1, first=REPEAT, max_rows=MAX_ROWS
                )
                runner.run(plan, asked.runs / part, workers=1, show=False)
            print(name, flush=True)
        found = pd.concat(runner.collect(asked.runs / part) for part in PARTS)
        found[COLUMNS].to_csv(file, index=False, float_format="%.6g")
    print(f"wrote {write(asked.output)}")


def ratios(results: pd.DataFrame) -> pd.DataFrame:
    """Errors over those of the model's own way with NaN: a row a dataset and scenario."""
    error = results["rmse"].fillna(results["log_loss"])
    wide = results.assign(error=error).pivot_table(
        index=["scenario", "dataset"], columns="peer", values="error", sort=False
    )
    return wide.div(wide[Native.name], axis=0)


def tables(results: pd.DataFrame) -> dict[str, str]:
    """The page's tables by their mark, in Markdown; of tables that all peers of one were run on."""
    refitted = ("knothole refitted", *(peer.name for peer in _VARIANTS))
    training, peers = PARTS["training"]
    shown = {
        "training": (training, [peer for peer in peers if peer not in _VARIANTS]),
        "deployment": PARTS["deployment"],
        "target": (training, [peer for peer in peers if peer.name in refitted]),
    }
    return {mark: _table(ratios(results), mark, *part) for mark, part in shown.items()}


def _table(
    found: pd.DataFrame, part: str, scenarios: Sequence[Scenario], peers: Sequence[Peer]
) -> str:
    rows = []
    for peer in peers:
        row: dict[str, str] = {"way": _name(peer, part)}
        for scenario in scenarios:
            own = found.loc[scenario.name][[each.name for each in peers]].dropna()
            ahead = int((own.idxmin(axis=1) == peer.name).sum())
            rate = scenario.deployment.name
            row[rate] = f"{np.exp(np.log(own[peer.name]).mean()):.3f}"
            row[f"{rate}: best of {len(own)} tables"] = str(ahead)
        rows.append(row)
    return markdown(pd.DataFrame(rows))


def _name(peer: Peer, part: str) -> str:
    return f"{peer.name}, retrained" if peer.informed and part == "deployment" else peer.name


def write(output: Path) -> Path:
    """Put the tables where the page has marks for them."""
    page = output / PAGE
    text = page.read_text(encoding="utf-8")
    for part, shown in tables(pd.read_csv(output / "results" / FILE)).items():
        mark = re.compile(rf"(<!-- mcar {part} -->\n).*?(<!-- end -->)", re.DOTALL)
        text, count = mark.subn(lambda found, shown=shown: found[1] + shown + "\n" + found[2], text)
        if count != 1:
            raise ValueError(f"{page} must have one mark '<!-- mcar {part} -->'; it has {count}.")
    page.write_text(text, encoding="utf-8")
    return page


if __name__ == "__main__":
    main()
