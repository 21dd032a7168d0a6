"""Expected outputs as independent groups of draws tell them, for differences between rows.

:meth:`~knothole.expectation.expectation.Expectation.predict` gives every row the draws that its own
tolerance needs. Here all rows have the same draws, so that what is common to their errors cancels
out in differences such as v(S and j) - v(S); how far the groups' own differences lie apart then
tells the error that is left.
"""

from __future__ import annotations

import numpy as np

from knothole.arrays import Floats
from knothole.columns.evidence import Evidence
from knothole.compiled.sobol import GROUPS
from knothole.compiled.threads import over_chunks
from knothole.expectation.expectation import Expectation
from knothole.expectation.monte_carlo.statistics import by_group, group_means


def n_groups(expectation: Expectation, margins: bool) -> int:
    """How many groups there are: one where answers are exact."""
    return 1 if _is_exact(expectation, margins) else GROUPS


def replicates(
    expectation: Expectation,
    evidence: Evidence,
    margins: bool,
    words: range,
    threads: int | None = None,
) -> Floats:
    """Expected margins, or predictions, of each group of the draws of ``words``.

    Returns
    -------
    float64 (rows, groups, outputs)
    """
    if _is_exact(expectation, margins):
        answers = expectation.margin if margins else expectation.predict
        return answers(evidence, threads=threads)[0][:, None]
    ensemble, engine = expectation.ensemble, expectation.completions
    used = np.flatnonzero(ensemble.used)
    link = ensemble.link
    width = ensemble.n_outputs if margins else ensemble.n_responses

    def of_holes(part: Evidence) -> Floats:
        if margins:
            return engine.group_margins(part, words)
        if link.linear:
            return engine.group_margins(part, words) * link.scale
        drawn = by_group(engine.margins(part, words))
        known = expectation.engine.margin(part)[0] if expectation.corrects else None
        return group_means(link(drawn), drawn, known)

    def work(start: int, stop: int) -> Floats:
        own = evidence[start:stop]
        has_hole = np.isnan(own.points[:, used]).any(axis=1)
        out = np.empty((len(own.points), GROUPS, width))
        points = np.ascontiguousarray(own.points[~has_hole, : len(ensemble.columns)])
        out[~has_hole] = (ensemble.margin if margins else ensemble.predict)(points, 1)[:, None]
        holes = np.flatnonzero(has_hole)
        for rows, part in own[holes].parts():
            out[holes[rows]] = of_holes(part)
        return out

    nothing = np.empty((0, GROUPS, width))
    parts = over_chunks(work, len(evidence.points), engine.chunk, threads)
    return np.concatenate([nothing, *parts])


def _is_exact(expectation: Expectation, margins: bool) -> bool:
    return expectation.exact if margins else expectation.exact_predictions
