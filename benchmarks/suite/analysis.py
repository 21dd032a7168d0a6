"""From results to a verdict: ranks with a critical difference, duels by paired tests, time.

The error of a peer in a *cell* (a dataset in a scenario) is its RMSE, or its log loss, averaged
over the repeats. Cells of a dataset resemble each other, so what is said of peers in general counts
every dataset once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from benchmarks.suite.datasets import NATURAL
from knothole.errors import InvalidInput

CELL = ["dataset", "scenario"]


def with_error(results: pd.DataFrame) -> pd.DataFrame:
    """Results with a column ``error``: RMSE or log loss, infinite where the peer failed."""
    error = results["rmse"].fillna(results["log_loss"])
    return results.assign(error=error.where(results["failure"] == "", np.inf))


def error_table(results: pd.DataFrame) -> pd.DataFrame:
    """Mean error over the repeats, a row for each cell and a column for each peer.

    Cells that some peer has not run yet are left out.
    """
    found = with_error(results)
    table = found.pivot_table(index=CELL, columns="peer", values="error", aggfunc="mean")
    repeats = found.pivot_table(index=CELL, columns="peer", values="repeat", aggfunc="nunique")
    same = repeats.notna().all(axis=1) & (repeats.nunique(axis=1) == 1)
    return table[same]


@dataclass(frozen=True, eq=False)
class Ranking:
    """Mean ranks of peers over datasets, and how far apart they must be to differ.

    Attributes
    ----------
    mean_rank : Series
        By peer, best first; 1 is best on every dataset.
    p_value : float
        Friedman's test that all peers are alike.
    critical_difference : float
        Nemenyi's: two peers whose mean ranks are farther apart differ at the level ``alpha``.
    cells, datasets : int
        How many cells were ranked, of how many datasets.
    """

    mean_rank: pd.Series[float]
    p_value: float
    critical_difference: float
    cells: int
    datasets: int

    def like_the_best(self) -> list[str]:
        """Peers that cannot be told from the best one."""
        gap = self.mean_rank - self.mean_rank.iloc[0]
        return [str(name) for name in self.mean_rank.index[gap <= self.critical_difference]]

    def alike(self) -> list[tuple[str, str]]:
        """First and last of the groups of peers that cannot be told apart, the largest of them."""
        ranks = self.mean_rank.to_numpy()
        ends = np.searchsorted(ranks, ranks + self.critical_difference, side="right") - 1
        names = [str(name) for name in self.mean_rank.index]
        return [
            (names[start], names[end])
            for start, end in enumerate(ends)
            if end > start and (start == 0 or end > ends[start - 1])
        ]


def rank(results: pd.DataFrame, alpha: float = 0.05) -> Ranking:
    """Rank peers on every dataset, by their mean rank in its cells, and test (Demsar 2006).

    Nemenyi's critical difference is q sqrt(k (k + 1) / (6 N)) for k peers and N datasets, with q
    the upper ``alpha`` quantile of the studentised range over sqrt(2). Ties share their mean rank;
    a peer that failed is last.
    """
    table = error_table(results)
    n_cells, n_peers = table.shape
    if n_cells < 2 or n_peers < 2:
        raise InvalidInput(
            f"results must have at least two peers in two cells that all of them ran; got "
            f"{n_peers} peers in {n_cells} cells."
        )
    ranks = table.rank(axis=1).groupby("dataset").mean().rank(axis=1)
    return Ranking(
        ranks.mean().sort_values(kind="stable"),
        _friedman(ranks.to_numpy()),
        critical_difference(n_peers, len(ranks), alpha),
        n_cells,
        len(ranks),
    )


def _friedman(ranks: NDArray[np.float64]) -> float:
    """P-value of Friedman's test in the form of Iman and Davenport, ties corrected."""
    n, k = ranks.shape
    between = n * ((ranks.mean(axis=0) - (k + 1) / 2) ** 2).sum()
    within = ((ranks - (k + 1) / 2) ** 2).sum() - between
    if within <= 0:
        return 0.0 if between > 0 else 1.0
    return float(stats.f.sf(between * (n - 1) / within, k - 1, (k - 1) * (n - 1)))


def critical_difference(peers: int, datasets: int, alpha: float = 0.05) -> float:
    """Nemenyi's critical difference of mean ranks.

    Examples
    --------
    >>> round(critical_difference(4, 14), 2)  # q = 2.569
    1.25
    """
    quantile = stats.studentized_range.ppf(1 - alpha, peers, np.inf) / np.sqrt(2)
    return float(quantile * np.sqrt(peers * (peers + 1) / (6 * datasets)))


def duels(results: pd.DataFrame, peer: str = "knothole", alpha: float = 0.05) -> pd.DataFrame:
    """Compare one peer with each other one in every cell by a paired test.

    The mean losses of groups of test rows, the same rows for both, are compared by a paired t-test
    over the groups of all repeats. That has more power than a test over the few repeats, so fewer
    differences hide behind a tie.

    Returns
    -------
    DataFrame
        A row for each cell and rival: both errors, ``p_value`` and ``outcome``, which is "win",
        "tie" or "loss" for ``peer``.
    """
    found = with_error(results)
    if peer not in set(found["peer"]):
        raise InvalidInput(f"peer must be among those in the results; got {peer!r}.")
    rows = []
    for (dataset, scenario), cell in found.groupby(CELL, sort=False):
        own = cell[cell["peer"] == peer].set_index("repeat").sort_index()
        for rival, theirs in cell[cell["peer"] != peer].groupby("peer", sort=False):
            other = theirs.set_index("repeat").sort_index()
            shared = own.index.intersection(other.index)
            if len(shared):
                p_value, outcome = _duel(own.loc[shared], other.loc[shared], alpha)
                rows.append(
                    {
                        "dataset": dataset,
                        "scenario": scenario,
                        "rival": rival,
                        "error": own.loc[shared, "error"].mean(),
                        "rival_error": other.loc[shared, "error"].mean(),
                        "p_value": p_value,
                        "outcome": outcome,
                    }
                )
    return pd.DataFrame(rows)


def _duel(own: pd.DataFrame, other: pd.DataFrame, alpha: float) -> tuple[float, str]:
    failed = [bool((part["failure"] != "").any()) for part in (own, other)]
    if any(failed):
        return np.nan, "tie" if all(failed) else "loss" if failed[0] else "win"
    pairs = [
        np.asarray(mine) - np.asarray(theirs)
        for mine, theirs in zip(own["groups"], other["groups"], strict=True)
    ]
    difference = np.concatenate(pairs)
    if np.ptp(difference) == 0 and difference[0] == 0:
        return 1.0, "tie"
    p_value = float(stats.ttest_1samp(difference, 0.0).pvalue)
    if p_value >= alpha:
        return p_value, "tie"
    return p_value, "win" if difference.mean() < 0 else "loss"


def changes(results: pd.DataFrame, peer: str, other: str) -> pd.DataFrame:
    """By how much the error of a peer is above another's in each cell, and the standard error.

    Both are parts of the other's error. The standard error is over groups of test rows, of which
    both have the same; that of an RMSE is half of its squares'.
    """
    found = with_error(results[results["peer"].isin([peer, other])])
    rows = []
    for (dataset, scenario), cell in found.groupby(CELL, sort=False):
        if {peer, other} <= set(cell["peer"]) and (cell["failure"] == "").all():
            both = cell.pivot(index="repeat", columns="peer", values=["error", "groups"]).dropna()
            mine, theirs = (np.concatenate([*both["groups"][name]]) for name in (peer, other))
            part = 0.5 if cell["rmse"].notna().all() else 1.0
            error = {name: both["error"][name].mean() for name in (peer, other)}
            rows.append(
                {
                    "dataset": dataset,
                    "scenario": scenario,
                    "change": error[peer] / error[other] - 1,
                    "standard_error": part * stats.sem(mine - theirs) / theirs.mean(),
                }
            )
    return pd.DataFrame(rows, columns=[*CELL, "change", "standard_error"])


def by_dataset(duels: pd.DataFrame) -> pd.DataFrame:
    """Against each rival: ``ratio`` of errors, on how many ``datasets`` it is below 1, ``p_value``.

    A dataset counts once, by its geometric mean over cells. The p-value is that of Wilcoxon's
    signed-rank test over datasets, two-sided, by Holm's rule for as many rivals as there are
    (Demsar 2006). Cells in which somebody failed are left out.
    """
    fought = duels[np.isfinite(duels["error"]) & np.isfinite(duels["rival_error"])]
    fought = fought.assign(ratio=np.log(fought["error"] / fought["rival_error"]))
    means = fought.groupby(["rival", "dataset"])["ratio"].mean()
    rows = {}
    for rival, own in means.groupby("rival"):
        p_value = stats.wilcoxon(own).pvalue if own.any() else 1.0
        rows[rival] = {
            "ratio": float(np.exp(own.mean())),
            "better": int((own < 0).sum()),
            "datasets": len(own),
            "p_value": float(p_value),
        }
    found = pd.DataFrame.from_dict(rows, orient="index")
    if found.empty:
        return found
    order = found["p_value"].sort_values(kind="stable").index
    holm = found["p_value"][order] * np.arange(len(order), 0, -1)
    return found.assign(p_value=holm.cummax().clip(upper=1.0))


def by_group(duels: pd.DataFrame) -> pd.DataFrame:
    """How one peer does by the way missing values come, "MCAR" and so on, and on "natural" tables.

    Those have missing values of their own, and are in the other groups too. Of a group: its
    ``cells``, the share of duels that are no loss, ``ratio``, the geometric mean of the error over
    that of the cell's best rival, the largest of these, and how many ``cells_behind`` are above
    1.03.
    """
    kind = duels["scenario"].str.split().str[0]
    groups = {name: duels[kind == name] for name in dict.fromkeys(kind)}
    groups["natural"] = duels[duels["dataset"].isin(NATURAL)]
    rows = {}
    for name, own in groups.items():
        cells = own.groupby(CELL).agg({"error": "first", "rival_error": "min"})
        ratio = (cells["error"] / cells["rival_error"]).where(np.isfinite(cells["error"]), np.inf)
        if len(cells):
            rows[name] = {
                "cells": len(cells),
                "win_or_tie": float((own["outcome"] != "loss").mean()),
                "ratio": float(np.exp(np.log(ratio).mean())),
                "largest": float(ratio.max()),
                "cells_behind": int((ratio > 1.03).sum()),
            }
    return pd.DataFrame.from_dict(rows, orient="index")


def tally(duels: pd.DataFrame) -> pd.DataFrame:
    """Wins, ties and losses against each rival, and the share of cells that are no loss."""
    counts = pd.crosstab(duels["rival"], duels["outcome"])
    counts = counts.reindex(columns=["win", "tie", "loss"], fill_value=0)
    share = (counts["win"] + counts["tie"]) / counts.sum(axis=1)
    return counts.assign(win_or_tie=share).sort_values("win_or_tie", kind="stable")


def overview(results: pd.DataFrame) -> pd.DataFrame:
    """Error and time side by side: one row for each peer, best mean rank first.

    ``relative_error`` is the geometric mean over cells of the error over that of the cell's best
    peer; times are medians, in seconds.
    """
    table = error_table(results)
    relative = table.div(table.min(axis=1), axis=0)
    times = results.groupby("peer")[["fit_seconds", "predict_seconds"]].median()
    failed = results.assign(failed=results["failure"] != "").groupby("peer")["failed"].sum()
    columns = {
        "mean_rank": table.rank(axis=1).mean(),
        "relative_error": np.exp(np.log(relative.where(np.isfinite(relative))).mean()),
        "auc": results.groupby("peer")["auc"].mean(),
        "fit_seconds": times["fit_seconds"],
        "predict_seconds": times["predict_seconds"],
        "failures": failed,
    }
    return pd.DataFrame(columns).sort_values("mean_rank", kind="stable")
