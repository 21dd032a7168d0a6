"""What the benchmark must show, and whether it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from benchmarks.markdown import p_value, percent
from benchmarks.suite.analysis import Ranking
from benchmarks.suite.peers.roster import OWN

#: Share of cells without a loss that is asked for: against each other method; the model alone.
AGAINST_EACH = {"deployment": 0.97, "same": 0.95, "changed": 0.95}
AGAINST_NATIVE = {"same": 0.80, "changed": 0.95}
NATIVE = "native"
#: Of tests over datasets.
LEVEL = 0.05
#: What a correction may cost in a cell.
HARM = 0.005


@dataclass(frozen=True)
class Verdict:
    """A claim, whether it holds (None where that was not measured), and the figures behind it."""

    claim: str
    holds: bool | None
    figures: str

    def __str__(self) -> str:
        word = {True: "yes", False: "no", None: "not measured"}[self.holds]
        return f"{self.claim}: **{word}** ({self.figures})."


def verdicts(
    setting: str,
    ranking: Ranking | None,
    tallies: Mapping[str, pd.DataFrame],
    by_dataset: Mapping[str, pd.DataFrame],
    corrections: pd.DataFrame,
) -> list[Verdict]:
    """All claims about a setting.

    Parameters
    ----------
    setting : {"deployment", "same", "changed"}
    ranking : Ranking, optional
        None where there is too little to rank.
    tallies : mapping
        From our peers to their wins, ties and losses against each other method.
    by_dataset : mapping
        From our peers to :func:`~benchmarks.suite.analysis.by_dataset`.
    corrections : DataFrame
        :func:`~benchmarks.suite.analysis.changes` by the correction.
    """
    found = [best_mean_rank(ranking)]
    found += [better_by_dataset(*one) for one in by_dataset.items()]
    if setting in AGAINST_EACH:
        found += [against_each(*one, AGAINST_EACH[setting]) for one in tallies.items()]
    if setting in AGAINST_NATIVE:
        found += [against_native(*one, AGAINST_NATIVE[setting]) for one in tallies.items()]
    return found if corrections.empty else [*found, no_harm(corrections)]


def best_mean_rank(ranking: Ranking | None) -> Verdict:
    """Whether one of ours has the best mean rank of all."""
    claim = "best mean rank of all methods"
    if ranking is None:
        return Verdict(claim, None, "fewer than two cells that all methods ran")
    ranks = {str(name): float(rank) for name, rank in ranking.mean_rank.items()}
    ours = min((name for name in ranks if name in OWN), key=ranks.__getitem__, default=None)
    rival = min((name for name in ranks if name not in OWN), key=ranks.__getitem__, default=None)
    if ours is None or rival is None:
        return Verdict(claim, None, "needs knothole and another method")
    apart = abs(ranks[ours] - ranks[rival]) > ranking.critical_difference
    figures = f"{ours} {ranks[ours]:.2f}, {rival} {ranks[rival]:.2f}; they "
    figures += "differ" if apart else "cannot be told apart"
    return Verdict(claim, ranks[ours] <= ranks[rival], figures)


def better_by_dataset(peer: str, found: pd.DataFrame) -> Verdict:
    """Whether a peer of ours has the smaller errors, over datasets, against every other method."""
    claim = f"{peer}: smaller errors than each other method, every dataset counted once"
    if found.empty:
        return Verdict(claim, None, "no other method was run")
    short = found[(found["p_value"] >= LEVEL) | (found["ratio"] >= 1)]
    hardest = (found if short.empty else short).sort_values("p_value", ascending=False)
    figures = ", ".join(
        f"{name} {row.ratio:.3f} of its error, ahead on {row.better:g} of {row.datasets:g}, "
        f"p {p_value(row.p_value)}"
        for name, row in (hardest.head(1) if short.empty else hardest).iterrows()
    )
    told = "the hardest is" if short.empty else "not shown against"
    return Verdict(claim, short.empty, f"Wilcoxon, Holm; {told} {figures}")


def against_each(peer: str, tally: pd.DataFrame, goal: float) -> Verdict:
    """Whether a peer of ours has no loss in enough cells, against every other method."""
    claim = f"{peer}: no loss in at least {percent(goal)} of cells against each other method"
    if not set(tally.index) - {NATIVE}:
        return Verdict(claim, None, f"no other method but {NATIVE} was run")
    short = tally[tally["win_or_tie"] < goal]
    if short.empty:
        return Verdict(claim, True, f"the hardest is {_shares(tally.head(1))}")
    return Verdict(claim, False, f"not against {_shares(short)}")


def against_native(peer: str, tally: pd.DataFrame, goal: float) -> Verdict:
    """Whether a peer of ours has no loss in enough cells against the model's own way with NaN."""
    claim = f"{peer}: no loss in at least {percent(goal)} of cells against {NATIVE}"
    if NATIVE not in tally.index:
        return Verdict(claim, None, f"{NATIVE} was not run")
    share = float(tally["win_or_tie"][NATIVE])
    return Verdict(claim, share >= goal, percent(share))


def no_harm(changes: pd.DataFrame) -> Verdict:
    """Whether the correction is nowhere worse than none, by a standard error and more."""
    claim = f"corrected, no cell is worse by {100 * HARM:g} % and a standard error than uncorrected"
    worse = changes[changes["change"] > np.maximum(HARM, changes["standard_error"])]
    named = "; ".join(
        f"{row['dataset']}, {row['scenario']} {100 * row['change']:+.2f} "
        f"+- {100 * row['standard_error']:.2f} %"
        for _, row in worse.iterrows()
    )
    figures = f"{len(worse)} of {len(changes)} cells{': ' * bool(named)}{named}; on average "
    return Verdict(claim, worse.empty, f"{figures}{100 * changes['change'].mean():+.2f} %")


def _shares(tally: pd.DataFrame) -> str:
    return ", ".join(f"{name} {percent(share)}" for name, share in tally["win_or_tie"].items())
