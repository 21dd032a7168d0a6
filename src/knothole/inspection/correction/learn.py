"""Learning a correction, and finding out whether it is worth anything.

Rows that the model was not trained on (*honest* rows: held out by the user, or of clones of the
model) are copied with holes put into them. On these copies each part of a correction is boosted
from E_p[f given x_o] towards f(x). Copies of a row are on one side of every split. Each half of the
rows is answered by trees that the other half has taught. Some of all rows choose how many trees
there are and which share of their step is taken, others say what that gains, and the other way
round. A part is kept where it gains more than twice its standard error, against f and, as far as y
is known, against y: trees that come closer to an f too sure of itself may move away from y. It then
learns from all copies again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Mask
from knothole.columns.columns import Columns
from knothole.columns.evidence import Evidence, holes_in
from knothole.densities.held_out import FOLDS, TOO_FEW_TO_JUDGE
from knothole.expectation.expectation import Expectation
from knothole.inspection.correction import boosting
from knothole.inspection.correction.corrected import (
    GENERAL,
    Correction,
    Part,
    input_names,
    level_counts,
)
from knothole.inspection.correction.determined import CONTRADICTED, NOTHING, Determined
from knothole.inspection.correction.patterns import GIVEN, Patterns, given_masks, masks, on_columns
from knothole.inspection.correction.space import Space

if TYPE_CHECKING:
    import pandas as pd

Rows = NDArray[np.intp]

# Copies to learn from: for the general part, and for each variable with a part of its own, which
# are those that the model needs most. Where predictions are not linear in the leaves, every copy
# needs draws, and there are fewer.
COPIES = {True: 6000, False: 2500}
COPIES_OF_ONE = {True: 2000, False: 800}
SINGLE = {True: 5, False: 3}
# Of more variables than this there are fewer copies, as what one takes grows with them.
WIDE = 100
# Stages at most; it ends earlier where so many did not gain. Shares of their step.
STAGES = 8
PATIENCE = 2
SHARES = (0.25, 0.5, 0.75, 1.0)
# A gain is beyond doubt from so many standard errors on: a model has several parts.
DOUBT = 2.0
# Rows that tell how much a model needs a variable, and copies that tell the spread, which is
# never so many times what p says, or less than one such part of it.
PROBES = 500
SPREAD_COPIES = 400
MOST_SPREAD = 10.0
# The largest outputs whose squares can be added up.
LARGEST = 1e150
# Shares of holes by which gains are told.
BANDS = (0.0, 0.2, 0.4, 0.6, 1.0)


@dataclass(frozen=True, eq=False)
class Honest:
    """Rows under a model that was not trained on them: the one that is wrapped, or a clone.

    ``table`` is what the user has, ``matrix`` the same encoded, ``y`` (rows, outputs) the targets
    in units of predictions, NaN where they are not known.
    """

    expectation: Expectation
    table: Any
    matrix: Floats
    y: Floats

    @cached_property
    def usable(self) -> Rows:
        """Rows of which the model has its own output: NaN only where it has met NaN."""
        ensemble = self.expectation.original
        used = np.isin(np.arange(len(ensemble.columns)), ensemble.feature)
        strange = np.isnan(self.matrix) & used & ~self.expectation.columns.nullable
        return np.flatnonzero(~strange.any(axis=1))

    @cached_property
    def output(self) -> Floats:
        """The model's own predictions of rows as they are, (rows, outputs)."""
        columns = self.expectation.columns
        points = columns.evidence(self.matrix, holes_in(columns, self.matrix)).points
        return self.predicted(points)

    def predicted(self, points: Floats) -> Floats:
        """The model's own predictions of points without holes, (rows, outputs)."""
        ensemble = self.expectation.ensemble
        return ensemble.predict(np.ascontiguousarray(points[:, : len(ensemble.columns)]))


class Copies(NamedTuple):
    """Rows with holes put into them: where they come from, what is known, E_p, f(x) and y."""

    source: Rows
    row: Rows
    points: Floats
    mean: Floats
    truth: Floats
    y: Floats

    def some(self, chosen: Mask) -> Copies:
        """Those that are chosen."""
        parts: list[Any] = [array[chosen] for array in self]
        return Copies(*parts)


class Trial(NamedTuple):
    """How a part does on copies of rows that its trees have not seen.

    ``share`` of the step of so many ``stages`` is taken. ``gains`` by copy, their mean ``gain`` and
    its standard ``error`` are shares of the loss without a correction; ``y_gain`` and ``y_error``
    are those against y, NaN where y is not known.
    """

    stages: int
    share: float
    gains: Floats
    gain: float
    error: float
    y_gain: float
    y_error: float
    copies: Copies
    corrected: Floats

    def why_not(self) -> str:
        """Why the part is not worth it; empty where it is."""
        if not self.stages:
            return "no number of trees gains on rows held out"
        if not self.gain > DOUBT * self.error:
            return "the gain on rows held out is within two standard errors"
        if self.y_gain <= DOUBT * self.y_error:
            return "the gain against y on rows held out is within two standard errors"
        return ""


class Learner:
    """All that parts of a correction are learned from."""

    def __init__(
        self, expectation: Expectation, honest: Sequence[Honest], patterns: Any, seed: int
    ) -> None:
        self.expectation, self.honest, self.patterns = expectation, honest, patterns
        self.columns = expectation.columns
        self.space = Space.of(expectation.original)
        self.linear = expectation.ensemble.link.linear
        self.rng = np.random.default_rng(seed)
        self.starts = np.cumsum([0, *(len(one.matrix) for one in honest)])
        order = self.rng.permutation(self.starts[-1])
        self.fold, self.chooser = order % FOLDS, order // FOLDS % 2
        self.levels = self._levels()

    def _levels(self) -> tuple[Floats, ...]:
        """Mean output by level of each categorical variable."""
        points = [one.expectation.evidence_of(one.matrix).points for one in self.honest]
        outputs = np.concatenate([one.output for one in self.honest])
        output = outputs[:, int(np.argmax(outputs.var(axis=0)))]
        found = []
        for codes, n_levels in zip(
            np.concatenate(points).T, level_counts(self.columns), strict=False
        ):
            known = ~np.isnan(codes) & bool(n_levels)
            own = codes[known].astype(np.intp)
            count = np.bincount(own, minlength=n_levels)
            total = np.bincount(own, output[known], minlength=n_levels)
            found.append(np.where(count > 0, total / np.maximum(count, 1), np.nan))
        return tuple(found)

    # ---- copies -----------------------------------------------------------------------------

    def copies(self, count: int, hide: Callable[[Honest, Rows], Mask]) -> Copies:
        """About so many copies; ``hide`` says which entries of some rows to hide."""
        total = sum(len(one.usable) for one in self.honest)
        parts = []
        for number, one in enumerate(self.honest):
            left = round(count * len(one.usable) / total)
            while left > 0:  # every row once, and then again
                rows = self.rng.permutation(one.usable)[:left]
                parts.append(self._hidden(number, rows, hide(one, rows)))
                left -= len(rows)
        return Copies(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def _hidden(self, number: int, rows: Rows, hidden: Mask) -> Copies:
        one = self.honest[number]
        evidence = one.expectation.evidence_of(np.where(hidden, np.nan, one.matrix[rows]))
        used = np.isnan(evidence.points[:, one.expectation.used]).any(axis=1)
        rows, evidence = rows[used], evidence[np.flatnonzero(used)]
        mean, _ = one.expectation.rough.predict(evidence)
        where = np.full(len(rows), number), rows + self.starts[number]
        return Copies(*where, evidence.points, mean, one.output[rows], one.y[rows])

    def hide_some(self, one: Honest, rows: Rows) -> Mask:
        """Holes of all kinds."""
        hidden = masks(self.columns, one.matrix, len(rows), self.rng)
        if self.patterns is not None:
            seed = int(self.rng.integers(2**31 - 1))
            given = given_masks(self.patterns, one.table, self.columns, len(one.matrix), seed)[rows]
            hidden = np.where(self.rng.random((len(rows), 1)) < GIVEN, given, hidden)
        return hidden

    def hide_one(self, variable: int) -> Callable[[Honest, Rows], Mask]:
        """A certain variable is gone."""
        gone = np.arange(len(self.columns.variables)) == variable
        return lambda _, rows: np.repeat(on_columns(self.columns, gone[None]), len(rows), axis=0)

    def against(self, determined: Determined) -> tuple[float, float, str]:
        """What rules gain against f, its error, and why they are not to be believed, if so.

        E_p may be the better answer to rows that are as good as complete: it smooths what a model
        has learned too well. So rules are left out where y speaks against them.
        """

        def hide(_: Honest, rows: Rows) -> Mask:
            gone = self.rng.choice(determined.targets, (len(rows), 1))
            return on_columns(self.columns, gone == np.arange(len(self.columns.variables)))

        copies, used = self.copies(COPIES_OF_ONE[self.linear], hide), self.expectation.used
        points = determined.complete(Evidence(copies.points), used).points
        whole = np.asarray(~np.isnan(points[:, used]).any(axis=1))
        copies, points = copies.some(whole), points[whole]
        if len(copies.row) < TOO_FEW_TO_JUDGE:
            why = f"{len(copies.row)} rows to judge it by; it takes {TOO_FEW_TO_JUDGE}"
            return np.nan, np.nan, why
        answer = np.empty_like(copies.truth)
        for number, one in enumerate(self.honest):
            own = copies.source == number
            answer[own] = one.predicted(points[own])
        of_f, of_y = (
            self.space.losses(copies.mean, truth) - self.space.losses(answer, truth)
            for truth in (copies.truth, copies.y)
        )
        unit = self.space.losses(copies.mean, copies.truth).mean() or 1.0
        gain, error = by_rows(of_f / unit, copies.row)
        y_gain, y_error = by_rows(of_y, copies.row)
        why = "y of rows held out speaks against it" if y_gain < -y_error else ""
        if (answer != copies.truth).any(axis=1).mean() > CONTRADICTED:
            why = "rows held out contradict it"
        return gain, error, why

    def needed(self) -> list[int]:
        """Variables by how much predictions change where a variable is shuffled, the most first."""
        ensemble = self.expectation.original
        matrix = np.concatenate([one.matrix for one in self.honest])
        matrix = matrix[self.rng.permutation(len(matrix))[:PROBES]]
        own, change = ensemble.predict(matrix), {}
        for number in self.expectation.used.tolist():
            shuffled = matrix.copy()
            members = list(self.columns.variables[number].columns)
            shuffled[:, members] = matrix[self.rng.permutation(len(matrix))][:, members]
            change[number] = float(((ensemble.predict(shuffled) - own) ** 2).mean())
        return sorted(change, key=change.__getitem__, reverse=True)

    # ---- parts ------------------------------------------------------------------------------

    def inputs(self, copies: Copies) -> tuple[Floats, Floats]:
        """What the trees see, and where they start."""
        base = self.space.base(copies.mean)
        return Correction((), self.levels).inputs(copies.points, base), base

    def weights(self, copies: Copies) -> Floats:
        """One over the variance to expect of f(x), so that rows with few holes count too."""
        squares = ((copies.truth - copies.mean) ** 2).mean(axis=1)
        known = np.hstack([np.isnan(copies.points), copies.mean])
        return boosting.precisions(known, squares, self.fold[copies.row])

    def tried(self, copies: Copies, weight: Floats, always: bool = False) -> Trial:
        """A part as it does on copies of rows that its trees have not seen.

        It goes on after the first stage only if that gains beyond doubt, or ``always``.
        """
        inputs, base = self.inputs(copies)
        fold, z = self.fold[copies.row], [base]
        boosts = []
        for number in range(FOLDS):
            own, others = fold == number, fold != number
            known = inputs[others], base[others], copies.truth[others], weight[others]
            boosts.append((own, boosting.boost(*known, self.space)))
        choices, losses = [(0, 0.0)], [self.losses(base, copies, weight)]
        for stages in range(1, STAGES + 1):
            z.append(z[-1].copy())
            for own, boost in boosts:
                z[-1][own] += boosting.step(next(boost), inputs[own])
            for share in SHARES:
                choices.append((stages, share))
                losses.append(self.losses(base + share * (z[-1] - base), copies, weight))
            best = int(np.argmin([of_f.mean() for of_f, _ in losses]))
            if stages - choices[best][0] >= PATIENCE:
                break
            if stages == 1 and not always and in_doubt(losses[0], losses[best], copies.row):
                break
        stages, share = choices[best]
        corrected = self.space.means(base + share * (z[stages] - base))
        judged = judge(np.array(losses), copies.row, self.chooser[copies.row])
        return Trial(stages, share, *judged, copies, corrected)

    def losses(self, z: Floats, copies: Copies, weight: Floats) -> tuple[Floats, Floats]:
        """Losses of copies against f and against y."""
        mean = self.space.means(z)
        of_f, of_y = (self.space.losses(mean, truth) for truth in (copies.truth, copies.y))
        return weight * of_f, weight * of_y

    def part(self, variable: int, copies: Copies, weight: Floats, trial: Trial) -> Part:
        """The part itself, learned from all copies."""
        inputs, base = self.inputs(copies)
        stages = boosting.boost(inputs, base, copies.truth, weight, self.space)
        kept = [next(stages) for _ in range(trial.stages)]
        names = input_names(len(self.levels), base.shape[1])
        ensemble = boosting.as_ensemble(kept, names, trial.share)
        return Part(variable, ensemble, self.spread(trial))

    def spread(self, trial: Trial) -> Floats:
        """How much farther f lies from corrected predictions than p says, for each output."""
        copies, squares, variances = trial.copies, [], []
        for number, one in enumerate(self.honest):
            own = np.flatnonzero(copies.source == number)[: SPREAD_COPIES // len(self.honest)]
            points = copies.points[own][:, : len(self.levels)]
            evidence = one.expectation.density.extended(Evidence(points), None)
            variances.append(one.expectation.rough.std(evidence)[0] ** 2)
            squares.append((copies.truth[own] - trial.corrected[own]) ** 2)
        found, expected = (np.concatenate(each).mean(axis=0) for each in (squares, variances))
        times = np.sqrt(np.where(expected > 0, found, 1.0) / np.where(expected > 0, expected, 1.0))
        return np.clip(times, 1 / MOST_SPREAD, MOST_SPREAD)


def learn(
    expectation: Expectation,
    honest: Sequence[Honest],
    *,
    always: bool,
    patterns: Patterns | None = None,
    determined: Determined = NOTHING,
    seed: int = 0,
) -> tuple[Correction | None, pd.DataFrame]:
    """A correction, None where there is none, and the table of what was found.

    ``always`` keeps parts that have not been shown to gain. Of what is ``determined``, all rules
    are taken or none.
    """
    rows = sum(len(one.usable) for one in honest)
    if rows < TOO_FEW_TO_JUDGE:
        return None, no_correction(
            f"{rows} rows to learn from; it takes at least {TOO_FEW_TO_JUDGE}"
        )
    if max(np.abs(one.output).max(initial=0.0) for one in honest) > LARGEST:
        return None, no_correction(f"outputs beyond {LARGEST:g} cannot be squared")
    import pandas as pd

    learner, parts, table = Learner(expectation, honest, patterns, seed), [], []
    if determined.targets:  # by draws of its own: parts are what they would be without it
        gain, error, why = Learner(expectation, honest, patterns, seed).against(determined)
        determined = NOTHING if why else determined
        about = {"trees": 0, "share": 1.0, "kept": not why, "why": why}
        table.append({"holes": "determined by others", "gain": gain, "error": error, **about})
    for variable in [*learner.needed()[: SINGLE[learner.linear]], GENERAL]:
        general = variable == GENERAL
        count = (COPIES if general else COPIES_OF_ONE)[learner.linear]
        count = count if general else min(count, rows)
        count = round(count * min(1.0, WIDE / len(learner.columns.variables)))
        copies = learner.copies(count, learner.hide_some if general else learner.hide_one(variable))
        folds = np.bincount(learner.fold[copies.row], minlength=FOLDS)
        if folds.min() < TOO_FEW_TO_JUDGE // 4:  # NaN is a value of the model there
            continue
        varied = general and learner.space.name == "plain"
        weight = learner.weights(copies) if varied else np.ones(len(copies.row))
        trial = learner.tried(copies, weight, always)
        why = trial.why_not()
        if always and trial.stages:
            why = ""
        if not why:
            parts.append(learner.part(variable, copies, weight, trial))
        table += told(learner.columns, variable, trial, why)
    if not table:
        return None, no_correction("no NaN is a hole")
    correction = Correction(tuple(parts), learner.levels, determined)
    return correction if parts or determined.targets else None, pd.DataFrame(table)


def told(columns: Columns, variable: int, trial: Trial, why: str) -> list[dict[str, Any]]:
    """Rows of the table: a variable that is gone, or shares of holes."""
    trees = trial.stages * boosting.TREES * trial.corrected.shape[1]
    about = {"trees": trees, "share": trial.share, "kept": not why, "why": why}
    if variable != GENERAL:
        name = f"{columns.variables[variable].name} gone"
        return [{"holes": name, "gain": trial.gain, "error": trial.error, **about}]
    share = np.isnan(trial.copies.points).mean(axis=1)
    rows = [{"holes": "any other", "gain": trial.gain, "error": trial.error, **about}]
    for low, high in pairwise(BANDS):
        own = (share > low) & (share <= high)
        if own.any():
            gain, error = by_rows(trial.gains[own], trial.copies.row[own])
            name = f"any other, {100 * low:.0f} to {100 * high:.0f} %"
            rows.append({"holes": name, "gain": gain, "error": error, **about})
    return rows


def no_correction(why: str) -> pd.DataFrame:
    """The table where nothing was learned."""
    import pandas as pd

    row = {"holes": "any", "gain": np.nan, "error": np.nan, "trees": 0, "share": 0.0}
    return pd.DataFrame([row | {"kept": False, "why": why}])


def judge(losses: Floats, rows: Rows, chooser: Rows) -> tuple[Floats, float, float, float, float]:
    """What choosers 0 gain on copies of choosers 1, and these on those: by copy, means and errors.

    ``losses`` (choices, 2, copies) are against f, by which is chosen, and against y; the first of
    the choices is to do nothing.
    """
    chosen = np.zeros(len(rows), dtype=np.intp)
    for number in (0, 1):
        own = chooser == number
        if own.any():
            chosen[~own] = losses[:, 0, own].mean(axis=1).argmin()
    gains = losses[0] - losses[chosen, :, np.arange(len(rows))].T
    of_f, of_y = gains[0] / (losses[0, 0].mean() or 1.0), gains[1] / (losses[0, 1].mean() or 1.0)
    return of_f, *by_rows(of_f, rows), *by_rows(of_y, rows)


def in_doubt(before: Sequence[Floats], after: Sequence[Floats], rows: Rows) -> bool:
    """Whether losses against f or y, as far as they are known, may be none the smaller."""
    found = [by_rows(one - other, rows) for one, other in zip(before, after, strict=True)]
    return any(gain <= DOUBT * error for gain, error in found)


def by_rows(values: Floats, rows: Rows) -> tuple[float, float]:
    """Mean over copies and its standard error, copies of a row taken together."""
    _, which = np.unique(rows, return_inverse=True)
    count = np.bincount(which)
    mean = float(values.mean())
    beyond = np.bincount(which, values - mean)
    return mean, float(np.sqrt((beyond**2).sum()) / count.sum())
