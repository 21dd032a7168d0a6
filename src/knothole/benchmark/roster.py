"""All peers, by name."""

from __future__ import annotations

from collections.abc import Mapping

from knothole.benchmark.imputation import (
    Filled,
    Iterative,
    MeanAndMask,
    Miceforest,
    MissForest,
    Neighbours,
)
from knothole.benchmark.peers import Knothole, Native, Peer, Retrained, Ydf
from knothole.benchmark.walks import FractionalWeights, SurrogateSplits


def all_peers() -> Mapping[str, Peer]:
    """Every peer by name, knothole first; those whose libraries are absent are among them.

    Examples
    --------
    >>> list(all_peers())[:3]
    ['knothole', 'native', 'mean']
    """
    peers: list[Peer] = [
        Knothole(),
        Native(),
        Filled("mean"),
        Filled("median"),
        Filled("mode"),
        MeanAndMask(),
        Iterative(),
        Iterative(draws=20),
        Neighbours(),
        Miceforest(),
        MissForest(),
        FractionalWeights(),
        SurrogateSplits(),
        Retrained(1),
        Retrained(8),
        Ydf(),
    ]
    return {peer.name: peer for peer in peers}
