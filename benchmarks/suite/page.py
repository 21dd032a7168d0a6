"""The page of ``make suite``, written from the files beside it and nothing else.

What no command can tell, why a method loses where it does, is written by hand in
``results/suite_SETTING_why.md`` and taken into the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from benchmarks import pictures
from benchmarks.markdown import number, p_value, percent, table
from benchmarks.suite.analysis import CELL, by_group
from benchmarks.suite.figures import PANELS, duels, ranks, tables, times
from benchmarks.suite.peers.roster import OWN, all_peers
from benchmarks.suite.results import Suite, load
from benchmarks.suite.verdicts import AGAINST_EACH, verdicts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TITLES = {
    "deployment": "Missing values at deployment only",
    "same": "Missing values in training and deployment, by the same mechanism",
    "changed": "Missing values in training and deployment, by different mechanisms",
}


def write(folder: Path) -> Path:
    """Write ``suite.md`` and its pictures from the results in a folder."""
    suites = load(folder)
    parts = [_head(), _verdicts(suites)]
    for suite in suites:
        for name, figure in figures(suite).items():
            file = folder / "results" / f"suite_{suite.setting}_{name}.png"
            file.write_bytes(pictures.png(figure))
        why = folder / "results" / f"suite_{suite.setting}_why.md"
        parts += _section(suite, why.read_text() if why.exists() else "")
    page = folder / "suite.md"
    page.write_text("\n".join(parts))
    return page


def figures(suite: Suite) -> dict[str, Figure]:
    """The pictures that results allow, by name: "tables", "ranks", "times" and "duels"."""
    title = _TITLES[suite.setting]
    found = {}
    if _by_dataset(suite):
        found["tables"] = tables(suite.errors, title)
    if suite.ranking is not None:
        over = f"mean ranks over {suite.ranking.datasets} datasets"
        found["ranks"] = ranks(suite.ranking, f"{title}: {over}")
    if len(suite.errors):
        found["times"] = times(suite.overview, f"{title}: error against time")
    if suite.tallies:
        goal = AGAINST_EACH.get(suite.setting)
        found["duels"] = duels(suite.tallies, f"{title}: cells won, tied and lost", goal)
    return found


def _by_dataset(suite: Suite) -> bool:
    """Whether errors can be drawn by dataset, over ours and in the order of the model's own."""
    both = {OWN[0], "native"} <= {*suite.errors.columns}
    return both and not PANELS.keys().isdisjoint(suite.errors.index.unique("scenario"))


def _head() -> str:
    return """# The suite

Written by `make suite`; every number is from a file in `docs/results`. A *cell*
is a dataset in a scenario. Its error is the RMSE of a regression, the log loss of a classification,
averaged over the repeats. All methods see the same splits, the same missing values and the same
XGBoost settings, which were fixed beforehand and not optimised. Where values are missing at
deployment only, methods marked \\* are told how they will go missing, and train a model for it.

*knothole* is what `wrap(model, X, y)` gives by default: the model's leaves stay as they are, and
in a column that had missing values in training, what a missing value means is inferred row by row.
*knothole refitted*, where training has missing values, is `wrap(model, X, y,
nan_policy="lost").refit_leaves(X, y)`: leaf values are learned again, conditioned on the target.
Those of regressions then move on to the least error of the deployed predictions. This last step was
designed on samples of five of these tables, so its part of the result is not an independent test.
"""


def _verdicts(suites: list[Suite]) -> str:
    lines = ["## Verdicts\n"]
    for suite in suites:
        lines.append(f"{_TITLES[suite.setting]}:\n")
        found = verdicts(
            suite.setting, suite.ranking, suite.tallies, suite.by_dataset, suite.corrections
        )
        lines += [*(f"- {verdict}" for verdict in found), ""]
    return "\n".join(lines)


def _section(suite: Suite, why: str) -> Iterator[str]:
    yield f"## {_TITLES[suite.setting]}\n"
    yield _ranks(suite)
    if suite.tallies:
        yield _duels(suite)
        yield _groups(suite)
    yield _errors(suite)
    yield from _losses(suite)
    if why:
        yield f"### Why\n\n{why}"
    yield _foot(suite)


def _ranks(suite: Suite) -> str:
    lines = ["### Mean ranks, error and time\n"]
    if suite.ranking is not None:
        lines += [_picture(suite, "ranks", "Mean ranks"), _critical(suite)]
    overview = suite.overview
    shown = pd.DataFrame(
        {
            "method": [_name(suite, peer) for peer in overview.index],
            "mean rank": overview["mean_rank"].map("{:.2f}".format).to_numpy(),
            "relative error": overview["relative_error"].map(number).to_numpy(),
            "mean AUC": overview["auc"].map(number).to_numpy(),
            "seconds to fit": overview["fit_seconds"].map(_seconds).to_numpy(),
            "to predict": overview["predict_seconds"].map(_seconds).to_numpy(),
            "failures": overview["failures"].map(str).to_numpy(),
        }
    )
    lines += [
        "Relative error: divided by that of the cell's best method, geometric mean over cells.\n"
        "Seconds: medians over datasets and repeats, on one thread; fitting includes training the\n"
        "model.\n",
        table(shown),
        "",
        _picture(suite, "times", "Error against time"),
    ]
    return "\n".join(lines)


def _critical(suite: Suite) -> str:
    ranking = suite.ranking
    if ranking is None:
        return ""
    alike = ", ".join(ranking.like_the_best())
    return (
        f"Methods are ranked on each of {ranking.datasets} datasets by their mean rank in its "
        f"cells ({ranking.cells} that\nall methods ran, of {len(suite.cells)}). Mean ranks over "
        f"datasets differ if they are {ranking.critical_difference:.2f} apart\n(Nemenyi, 5 %); "
        f"Friedman's p is {p_value(ranking.p_value)}. Not significantly "
        f"different from the best: {alike}.\n"
    )


def _duels(suite: Suite) -> str:
    lines = [
        "### Against each other method\n",
        "Cells won / tied / lost by a paired t-test at 5 % over groups of test rows of all\n"
        "repeats, no row in two of them, and the share without a loss.\n",
        _picture(suite, "duels", "Wins, ties and losses"),
    ]
    columns = {}
    for own, tally in suite.tallies.items():
        counts = tally[["win", "tie", "loss"]].astype(str).agg(" / ".join, axis=1)
        columns[own] = counts + " (" + tally["win_or_tie"].map(percent) + ")"
    shown = pd.DataFrame(columns).loc[next(iter(suite.tallies.values())).index]
    shown.insert(0, "method", [_name(suite, name) for name in shown.index])
    lines += [
        table(shown),
        "",
        "Every dataset counted once: the ratio of errors, its geometric mean over cells and then\n"
        "over datasets; on how many it is below 1; Wilcoxon's p over datasets, by Holm's rule.\n",
    ]
    for own, found in suite.by_dataset.items():
        by = found.reindex(shown.index.intersection(found.index))
        columns[own] = (
            by["ratio"].map("{:.3f}".format)
            + by.apply(lambda row: f", {row.better:g} of {row.datasets:g}, p ", axis=1)
            + by["p_value"].map(p_value)
        )
    once = pd.DataFrame(columns).reindex(shown.index)
    once.insert(0, "method", shown["method"])
    return "\n".join([*lines, table(once), ""])


def _groups(suite: Suite) -> str:
    lines = [
        "### By the way values go missing\n",
        "Comparisons without a loss; errors divided by those of the cell's best other method:\n"
        "geometric mean, largest, and cells where the ratio is above 1.03. *natural*: tables\n"
        "that have missing values of their own, which are in the other groups too.\n",
    ]
    rows = [
        {
            "missing": name,
            "ours": own,
            "cells": f"{group['cells']:g}",
            "no loss": percent(group["win_or_tie"]),
            "to the best": f"{group['ratio']:.3f}",
            "largest": f"{group['largest']:.3f}",
            "above 1.03": f"{group['cells_behind']:g}",
        }
        for own, duels in suite.duels.items()
        for name, group in by_group(duels).iterrows()
    ]
    return "\n".join([*lines, table(pd.DataFrame(rows), text_columns=2), ""])


def _errors(suite: Suite) -> str:
    order = [peer for peer in suite.overview.index if peer in suite.errors]
    lines = ["### Errors\n"]
    if _by_dataset(suite):
        lines += [_picture(suite, "tables", "Errors of other methods relative to knothole's")]
    lines += ["RMSE or log loss, the smallest bold.\n"]
    lines += [_by_cell(suite, suite.errors[order], suite.errors.min(axis=1)), ""]
    auc = suite.contest.pivot_table(index=CELL, columns="peer", values="auc")
    auc = auc.reindex([cell for cell in suite.errors.index if cell in auc.index])
    if len(auc):
        auc = auc.reindex(columns=order)
        lines += ["AUC of the classifications, the largest bold.\n"]
        lines += [_by_cell(suite, auc, auc.max(axis=1)), ""]
    return "\n".join(lines)


def _by_cell(suite: Suite, values: pd.DataFrame, best: pd.Series[float]) -> str:
    text = values.map(number)
    shown = text.where(values.ne(best, axis=0), "**" + text + "**").reset_index()
    return table(shown.rename(columns=lambda name: _name(suite, name)), text_columns=2)


def _losses(suite: Suite) -> Iterator[str]:
    for own, fought in suite.duels.items():
        lost = fought[fought["outcome"] == "loss"]
        yield f"### Where {own} loses\n"
        if lost.empty:
            yield "Nowhere.\n"
            continue
        gap = (lost["error"] / lost["rival_error"] - 1).sort_values(ascending=False)
        lost = lost.loc[gap.index]
        told = sum(_informed(suite, rival) for rival in lost["rival"])
        also = (
            f", {told} of them against methods that are told how values go missing (\\*)"
            if told
            else ""
        )
        yield f"{len(lost)} of {len(fought)} comparisons{also}. The largest difference first.\n"
        shown = pd.DataFrame(
            {
                "dataset": lost["dataset"],
                "scenario": lost["scenario"],
                "against": [_name(suite, rival) for rival in lost["rival"]],
                own: lost["error"].map(number),
                "its error": lost["rival_error"].map(number),
                "behind": gap.map(lambda part: f"{100 * part:.1f} %" if np.isfinite(part) else ""),
                "p": lost["p_value"].map(p_value),
            }
        )
        yield table(shown, text_columns=3) + "\n"


def _foot(suite: Suite) -> str:
    about = suite.about
    repeats = ", ".join(map(str, sorted(suite.results["repeat"].unique())))
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    model = ", ".join(f"{name}={value}" for name, value in about["model"].items())
    lines = [
        "### How it was run\n",
        f"- Versions: Python {about['python']}, {versions}.",
        f"- {len(about['datasets'])} datasets, {about['repeats']} repeats (number {repeats}), at "
        f"most {about['max_rows']} rows of a dataset.",
        f"- XGBoost: {model}.",
        f"- Seeds: {about['seeds']}.",
    ]
    lines += [f"- Skipped: {name} ({why})." for name, why in about["skipped"].items()]
    failed = suite.results[suite.results["failure"] != ""]
    for (peer, failure), rows in failed.groupby(["peer", "failure"], sort=False):
        where = ", ".join(dict.fromkeys(rows["dataset"]))
        lines.append(f"- Failed: {peer}, {len(rows)} times ({where}): `{failure}`")
    return "\n".join([*lines, ""])


def _picture(suite: Suite, name: str, title: str) -> str:
    return f"![{title}](results/suite_{suite.setting}_{name}.png)\n"


def _name(suite: Suite, peer: str) -> str:
    """A peer, marked where it is told how values go missing; ours are bold."""
    marked = f"{peer}\\*" if _informed(suite, peer) else peer
    return f"**{marked}**" if peer in OWN else marked


def _informed(suite: Suite, peer: str) -> bool:
    known = all_peers().get(peer)
    return suite.setting == "deployment" and known is not None and known.informed


def _seconds(value: float) -> str:
    return number(value, 2)
