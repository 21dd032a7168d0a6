"""All peers, by name."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.suite.peers.base import Native, Peer
from benchmarks.suite.peers.imputation import (
    Imputed,
    MeanAndMask,
    Miceforest,
    MissForest,
    Neighbours,
    Stacked,
    filled,
    mice,
)
from benchmarks.suite.peers.own import Knothole, KnotholeGrown, KnotholeRefitted
from benchmarks.suite.peers.trained import Retrained, Ydf
from benchmarks.suite.peers.walks import FractionalWeights, SurrogateSplits

#: Those that are ours.
OWN = ("knothole", "knothole refitted", "knothole grown")
#: The first of ours without its correction: what that is compared with, and no rival.
UNCORRECTED = "knothole uncorrected"


def all_peers() -> Mapping[str, Peer]:
    """Every peer by name, ours first; those whose libraries are absent are among them.

    Examples
    --------
    >>> list(all_peers())[:3]
    ['knothole', 'knothole refitted', 'knothole grown']
    """
    peers: list[Peer] = [
        Knothole(),
        KnotholeRefitted(),
        KnotholeGrown(),
        Knothole(UNCORRECTED, correction=False),
        Native(),
        filled("mean"),
        filled("median"),
        filled("mode"),
        MeanAndMask(),
        mice(),
        mice(draws=20),
        Stacked(),
        Imputed("nearest neighbours", Neighbours()),
        Miceforest(),
        MissForest(),
        FractionalWeights(),
        SurrogateSplits(),
        Retrained(1),
        Retrained(8),
        Ydf(),
    ]
    return {peer.name: peer for peer in peers}


def idle(missing: str) -> dict[str, str]:
    """Peers that have nothing of their own to do in a setting, and why.

    Examples
    --------
    >>> list(idle("deployment")), list(idle("same"))
    (['knothole refitted', 'knothole grown'], ['retrained x1', 'knothole uncorrected'])
    """
    peers = all_peers()
    if missing == "deployment":
        why = "it learns from missing values in training, and here there are none"
        return {name: why for name, peer in peers.items() if peer.needs_missing_in_training}
    return {
        Retrained(1).name: "one copy, with the missing values that there are, is native itself",
        UNCORRECTED: "what a correction adds is judged with missing values at deployment only",
    }
