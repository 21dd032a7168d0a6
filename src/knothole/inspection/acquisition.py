"""Which missing value to acquire next: how much knowing it is expected to reduce the error.

Acquiring X_j changes the answer from E[f | x_o] to E[f | x_o, X_j] and reduces its expected error
by

    gain(j) = E[ D(E[f | x_o, X_j], E[f | x_o]) | x_o ]

where D is the squared difference, for the variance of a number or the Brier score of probabilities,
or the Kullback-Leibler divergence, for their entropy. The outer expectation is over all levels of a
category, weighted by p(level | x_o), or over draws of X_j from p(x_j | x_o). If the inner one is
drawn too, its noise would count as gain; a jackknife over groups of draws (exact for squares)
estimates that part, which is subtracted.

In a row with many missing values that would be many expectations. There, complete rows are drawn
once, with the model's output for each, sorted by X_j and divided into bins, whose means stand for
E[f | x_o, X_j]. That is 2 to 40 times faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Mask
from knothole.cached import cached_property
from knothole.columns.evidence import Evidence
from knothole.columns.read import listed
from knothole.densities.base import drawn_rows
from knothole.errors import InvalidInput
from knothole.expectation.expectation import Expectation
from knothole.expectation.monte_carlo.statistics import by_group, standard_error
from knothole.inspection.shapley import Players
from knothole.missingness.inference import acquired
from knothole.sobol import GROUPS, SIZE, WORD

if TYPE_CHECKING:
    import pandas as pd

Criterion = Literal["variance", "brier", "entropy"]
UNITS = {
    "variance": "variance of the prediction",
    "brier": "Brier score",
    "entropy": "entropy of the probabilities",
}
#: Words of draws that tell how likely a label is to change.
WORDS = range(4)
#: With more players to acquire, the gains of a row are estimated by bins of complete draws.
MANY = 8
# Words of draws for bins, and number of bins.
_WORDS_OF_BINS, _BINS = 8, 32
# The most rows of evidence, and numbers in complete draws, that are in memory at once.
_ROWS, _NUMBERS = 1 << 14, 1 << 23


# Lines that are shown of a table.
SHOWN = 10
# Gains below this share of the largest one are shown as "about 0".
NOTHING = 1e-3


def rounded(gain: float, largest: float) -> str:
    """A gain for readers.

    Examples
    --------
    >>> rounded(6030.308, 90673.0), rounded(0.0123456, 0.2), rounded(5e-07, 0.2)
    ('6030', '0.0123', 'about 0')
    """
    if abs(gain) <= NOTHING * largest:
        return "about 0"
    return f"{gain:.0f}" if abs(gain) >= 1000 else f"{gain:.3g}"


@dataclass(frozen=True, eq=False)
class Acquisition:
    """The value of acquiring each missing value of each row.

    Attributes
    ----------
    gain, error, per_cost : pandas.DataFrame (rows, players)
        Expected reduction of the criterion, its standard error, and the gain per unit of cost; NaN
        where nothing is missing.
    best : pandas.Series
        The missing value with the largest gain per cost; None if there is none, or if enough is
        known (``stop``).
    change : pandas.Series or None
        For classifiers: the probability that the predicted label changes once all values are known.
    plan : pandas.Series or None
        With a ``budget``: what to acquire, the best first, as tuples of names.
    unit : str
        What the gain is taken off: "variance of the prediction", "Brier score" or "entropy".
    """

    gain: pd.DataFrame
    error: pd.DataFrame
    per_cost: pd.DataFrame
    best: pd.Series[Any]
    change: pd.Series[Any] | None
    plan: pd.Series[Any] | None
    unit: str

    def table(self) -> pd.DataFrame:
        """One line for every row and missing value, in a row the most valuable first."""
        import pandas as pd

        rows, missing = np.nonzero(self.gain.notna().to_numpy())
        names = self.gain.columns.to_numpy()[missing]
        out = pd.DataFrame({"row": self.gain.index.to_numpy()[rows], "variable": names})
        for name in ("gain", "error", "per_cost"):
            out[name] = getattr(self, name).to_numpy()[rows, missing]
        out["best"] = names == self.best.to_numpy()[rows]
        order = np.lexsort((-out["per_cost"].to_numpy(), rows))
        return out.iloc[order].reset_index(drop=True)

    def __repr__(self) -> str:
        table = self._shown()
        rest = len(table) - SHOWN
        lines = [self._title(), table.head(SHOWN).to_string(index=False)]
        if rest > 0:
            lines.append(f"and {rest:,} more; .table() has all")
        return "\n".join(lines if len(table) else lines[:1])

    def _repr_html_(self) -> str:
        return f"<p>{self._title()}</p>{self._shown().head(2 * SHOWN).to_html(index=False)}"

    def _title(self) -> str:
        rows = f"{len(self.gain):,} row{'' if len(self.gain) == 1 else 's'}"
        if not self.gain.notna().to_numpy().any():
            return f"Acquisition of {rows}: no missing values here, nothing to gain"
        return f"Acquisition of {rows}: how much lower the {self.unit} is expected to be"

    def _shown(self) -> pd.DataFrame:
        """The table for readers: gains with three digits, and costs where they were given."""
        table = self.table()
        table["gain"] = [rounded(gain, self._largest()) for gain in table["gain"]]
        same = (self.per_cost.fillna(0.0) == self.gain.fillna(0.0)).to_numpy().all()
        return table[["row", "variable", "gain", *([] if same else ["per_cost"]), "best"]]

    def _largest(self) -> float:
        return float(np.nanmax(self.gain.to_numpy(), initial=0.0))


@dataclass(frozen=True, eq=False)
class Gains:
    """Expected gains of rows; ``binary``: the outputs are probabilities of two classes."""

    expectation: Expectation
    evidence: Evidence
    players: Players
    criterion: Criterion
    binary: bool

    def single(self) -> tuple[Floats, Floats]:
        """Gains and their standard errors, (rows, players) each; NaN where nothing is missing."""
        gain, error = np.full((2, *self.open.shape), np.nan)
        many = self.open.sum(axis=1) > MANY
        alone = np.array(
            [len(own) == 1 and not self._levels(own[0]) for own in self.players.variables]
        )
        step = max(1, _NUMBERS // (WORD * _WORDS_OF_BINS * self.evidence.points.shape[1]))
        for start in range(0, many.sum(), step):
            some = np.flatnonzero(many)[start : start + step]
            gain[some], error[some] = self._by_bins(some, alone)
        for player in range(len(self.players.names)):
            rows = np.flatnonzero(self.open[:, player] & ~(many & alone[player]))
            if not len(rows):
                continue
            own = self.players.variables[player]
            levels = self._levels(own[0]) if len(own) == 1 else 0
            for start in range(0, len(rows), step := max(1, _ROWS // max(levels, WORD))):
                some = rows[start : start + step]
                if levels:
                    part = self._by_levels(some, own[0], levels)
                else:
                    part = self._by_draws(some, np.tile(self._mask([player]), (len(some), 1)))
                gain[some, player], error[some, player] = part
        return gain, error

    def plans(self, cost: Floats, budget: float, first: Floats) -> list[tuple[str, ...]]:
        """Greedy plans for a budget: each player by what it adds to those before it.

        ``first`` has the gains of single players.
        """
        rows, n = self.open.shape
        chosen = np.zeros((rows, n), dtype=np.bool_)
        orders: list[list[str]] = [[] for _ in range(rows)]
        left, reached = np.full(rows, float(budget)), np.zeros(rows)
        added = first
        while True:
            able = self.open & ~chosen & (cost <= left[:, None] * (1 + 1e-12))
            per_cost = np.where(able & (added > 0), added / cost, -np.inf)
            best = per_cost.argmax(axis=1)
            going = np.flatnonzero(per_cost[np.arange(rows), best] > 0)
            if not len(going):
                return [tuple(order) for order in orders]
            for row in going.tolist():
                orders[row].append(self.players.names[best[row]])
            chosen[going, best[going]] = True
            left[going] -= cost[best[going]]
            reached[going] += added[going, best[going]]
            added = np.full((rows, n), -np.inf)
            further = self.open & ~chosen & np.isin(np.arange(rows), going)[:, None]
            places, players = np.nonzero(further)
            for start in range(0, len(places), step := _ROWS // WORD):
                at, one = places[start : start + step], players[start : start + step]
                sets = chosen[at].copy()
                sets[np.arange(len(at)), one] = True
                masks = np.asarray((sets[:, :, None] & self.players.members).any(axis=1))
                added[at, one] = self._by_draws(at, masks)[0] - reached[at]

    def change(self) -> Floats:
        """The probability that labels change once all values are known, (rows,)."""
        expectation = self.expectation
        link = expectation.ensemble.link
        now = _labels(expectation.predict(self.evidence)[0])
        out = np.zeros(len(now))
        missing = np.flatnonzero(self.open.any(axis=1))
        step = max(1, _ROWS // len(WORDS))
        for start in range(0, len(missing), step):
            some = missing[start : start + step]
            for rows, part in self.evidence[some].parts():
                drawn = link(by_group(expectation.monte_carlo.margins(part, WORDS)))
                then = _labels(drawn)
                out[some[rows]] = (then != now[some[rows]][:, None, None]).mean(axis=(1, 2))
        return out

    @cached_property
    def open(self) -> Mask:
        """Players with a missing value, (rows, players)."""
        missing = np.isnan(self.evidence.points[:, : len(self.expectation.columns.variables)])
        own = self.players.variables
        return np.stack([missing[:, list(each)].any(axis=1) for each in own], axis=1)

    @cached_property
    def _now(self) -> Floats:
        """E[f | x_o] by groups of draws, (rows, groups, outputs)."""
        return self.expectation.by_group(self.evidence, False, range(1))

    def _levels(self, v: int) -> int:
        """Levels of a category that can be enumerated; 0 for variables that must be drawn."""
        weighed = hasattr(self.expectation.density, "log_evidence")
        return len(self.expectation.columns.variables[v].levels) if weighed else 0

    def _mask(self, players: list[int]) -> Mask:
        return np.asarray(self.players.members[players].any(axis=0))

    def _by_levels(self, rows: NDArray[np.intp], v: int, levels: int) -> tuple[Floats, Floats]:
        """The gain of a category, over all levels that it can have."""
        mask = np.arange(self.evidence.points.shape[1]) == v
        values = np.broadcast_to(np.arange(float(levels))[:, None], (len(rows), levels, 1))
        told, log_p = self._told(rows, np.tile(mask, (len(rows), 1)), values)
        log_p = log_p.reshape(len(rows), levels)
        for variable, own, allowed in self.evidence[rows].restricted():
            if variable == v:
                log_p[own] = np.where(allowed, log_p[own], -np.inf)
        top = log_p.max(axis=1, keepdims=True)
        weight = np.exp(log_p - np.where(np.isfinite(top), top, 0.0))
        total = weight.sum(axis=1, keepdims=True)
        weight = np.where(total > 0, weight / np.where(total > 0, total, 1.0), 1 / levels)
        return self._weighed(rows, told, weight)

    def _by_draws(self, rows: NDArray[np.intp], masks: Mask) -> tuple[Floats, Floats]:
        """The gain of sets of variables (sets, variables), each in one row, over their draws."""
        values = self._drawn[rows]
        masks = masks & np.isnan(self.evidence.points[rows])
        told, _ = self._told(rows, masks, values, weigh=False)
        return self._weighed(rows, told, None)

    def _by_bins(self, rows: NDArray[np.intp], alone: Mask) -> tuple[Floats, Floats]:
        """Gains of players that are one numeric variable each, from bins of complete draws."""
        ensemble = self.expectation.ensemble
        draws = WORD * _WORDS_OF_BINS
        # Shuffled: tied draws would otherwise be spread over the bins more evenly than by chance.
        shuffled = np.random.default_rng(0).permutation(draws)
        points = self._draws(self.evidence[rows], draws)[:, shuffled, : len(ensemble.columns)]
        f = ensemble.predict(np.ascontiguousarray(points.reshape(-1, points.shape[2])), 1)
        f = np.ascontiguousarray(f.reshape(len(rows), draws, -1).swapaxes(1, 2))
        group = shuffled // SIZE % GROUPS
        gain, error = np.full((2, len(rows), len(alone)), np.nan)
        for player in np.flatnonzero(alone & self.open[rows].any(axis=0)):
            own = np.flatnonzero(self.open[rows, player])
            order = points[own, :, self.players.variables[player][0]].argsort(axis=1, kind="stable")
            sorted_f, of = np.take_along_axis(f[own], order[:, None], axis=2), group[order]
            gain[own, player] = self._of_bins(sorted_f)
            parts = np.array([self._of_bins(_without(sorted_f, of == g)) for g in range(GROUPS)])
            error[own, player] = np.sqrt((GROUPS - 1) * parts.var(axis=0))
        return gain, error

    def _of_bins(self, f: Floats) -> Floats:
        """Mean D between the means of bins of sorted draws (rows, outputs, draws) and of all draws.

        The part of it that chance alone causes, h, is subtracted.
        """
        bins = f.reshape(len(f), f.shape[1], _BINS, -1)
        means = bins.mean(axis=3)
        now = means.mean(axis=2, keepdims=True)
        chance = bins.var(axis=3, ddof=1).mean(axis=2, keepdims=True) / bins.shape[3]
        h = np.sqrt(chance * (1 - 1 / _BINS))
        by_chance = (self._between(now + h, now) + self._between(now - h, now))[:, 0] / 2
        return np.asarray(self._between(means, now).mean(axis=1) - by_chance)

    @cached_property
    def _drawn(self) -> Floats:
        """Draws of all missing values, (rows, draws, variables)."""
        return self._draws(self.evidence, WORD)

    def _draws(self, evidence: Evidence, draws: int) -> Floats:
        expectation = self.expectation
        seed = int(np.random.SeedSequence([expectation.seed, 1]).generate_state(1)[0])
        return drawn_rows(expectation.density, evidence, draws, seed)

    def _told(
        self, rows: NDArray[np.intp], masks: Mask, values: Floats, weigh: bool = True
    ) -> tuple[Evidence, Floats]:
        """The evidence if some variables had these values (rows, values, variables or 1).

        And, if ``weigh``, the log probability of the values, up to a constant for each row.
        """
        density, n = self.expectation.density, values.shape[1]
        known, evidence = np.repeat(masks, n, axis=0), self.evidence[np.repeat(rows, n)]
        points = np.where(known, values.reshape(-1, values.shape[2]), evidence.points)
        if weigh or evidence.hypotheses is not None:
            return acquired(density, evidence, known, points)
        return replace(evidence.hidden(known), points=points), np.zeros(len(points))

    def _weighed(
        self, rows: NDArray[np.intp], told: Evidence, weight: Floats | None
    ) -> tuple[Floats, Floats]:
        """Mean gain over values that may be acquired, by weights (rows, values) or over draws."""
        then = self.expectation.by_group(told, False, range(1))
        drawn = weight is None
        weight = np.full((len(rows), WORD), 1 / WORD) if weight is None else weight
        groups = then.shape[1]
        then = then.reshape(len(rows), weight.shape[1], *then.shape[1:])
        then = np.ascontiguousarray(np.moveaxis(then, 1, 3))  # values last
        now = self._now[rows][..., None]
        # The gain without each group of draws, (groups, rows, values).
        without = [self._between(*(_left_out(v, g) for v in (then, now))) for g in range(groups)]
        each = self._between(then.mean(axis=1), now.mean(axis=1))
        error = np.zeros(len(rows))
        if groups > 1:
            apart = np.array([(part * weight).sum(axis=1) for part in without])
            error = np.sqrt((groups - 1) * apart.var(axis=0))
            each = groups * each - (groups - 1) * np.mean(without, axis=0)
        if drawn:
            of_groups = each.reshape(len(rows), GROUPS, SIZE).mean(axis=2)
            error = np.hypot(error, standard_error(of_groups))
        return (each * weight).sum(axis=1), error

    def _between(self, then: Floats, now: Floats) -> Floats:
        """D of outputs (rows, outputs, values), summed over outputs."""
        if self.criterion != "entropy":
            share = 0.5 if self.binary and then.shape[1] == 2 else 1.0
            return np.asarray(share * ((then - now) ** 2).sum(axis=1))
        if self.binary and then.shape[1] == 1:
            then, now = (np.concatenate([1 - p, p], axis=1) for p in (then, now))
        then, now = (np.clip(p, 1e-12, 1.0) for p in (then, now))
        return np.asarray((then * np.log(then / now)).sum(axis=1))


def _without(f: Floats, gone: Mask) -> Floats:
    """Outputs (rows, outputs, draws) without the draws marked as gone, equally many in each row."""
    kept = np.broadcast_to(~gone[:, None], f.shape)
    return f[kept].reshape(len(f), f.shape[1], -1)


def _left_out(v: Floats, group: int) -> Floats:
    """The mean over all groups (axis 1) except one."""
    return np.asarray(np.delete(v, group, axis=1).mean(axis=1)) if v.shape[1] > 1 else v[:, 0]


def _labels(outputs: Floats) -> NDArray[Any]:
    """Labels of outputs (..., outputs), as positions."""
    return outputs[..., 0] > 0.5 if outputs.shape[-1] == 1 else outputs.argmax(axis=-1)


def costs(cost: Mapping[str, float] | None, names: tuple[str, ...]) -> Floats:
    """The cost of acquiring each player, 1 by default."""
    if not isinstance(cost, Mapping | None):
        raise InvalidInput(
            f"cost must be a dictionary from names to numbers, such as {{{names[0]!r}: 3.0}}; got "
            f"{cost!r}."
        )
    given = dict(cost or {})
    unknown = [name for name in given if name not in names]
    if unknown:
        raise InvalidInput(
            f"cost names {unknown[0]!r}, which no variable is called; there is {listed(names)}."
        )
    found = np.array([given.get(name, 1.0) for name in names], dtype=np.float64)
    if not (np.isfinite(found).all() and (found > 0).all()):
        raise InvalidInput(f"cost must be numbers above 0; got {given!r}.")
    return found


def acquisition(
    gains: Gains, cost: Floats, budget: float | None, stop: float | None, index: Any
) -> Acquisition:
    """The gains, the best player of each row and, with a budget, the plan of each row."""
    import pandas as pd

    gain, error = gains.single()
    per_cost = gain / cost
    names = list(gains.players.names)
    worth = np.where(np.isnan(per_cost), -np.inf, per_cost)
    best: list[Any] = [
        names[j] if worth[row, j] > 0 else None for row, j in enumerate(worth.argmax(axis=1))
    ]
    change = None
    if gains.criterion != "variance":
        change = pd.Series(gains.change(), index=index, name="change")
        if stop is not None:
            known = (1 - change >= stop).tolist()
            best = [None if enough else name for enough, name in zip(known, best, strict=True)]
    plan = None
    if budget is not None:
        orders = gains.plans(cost, budget, np.where(np.isnan(gain), -np.inf, gain))
        orders = [
            order if name is not None else () for order, name in zip(orders, best, strict=True)
        ]
        plan = pd.Series(orders, index=index, name="plan", dtype=object)
    labels: dict[str, Any] = {"index": index, "columns": names}
    return Acquisition(
        gain=pd.DataFrame(gain, **labels),
        error=pd.DataFrame(error, **labels),
        per_cost=pd.DataFrame(per_cost, **labels),
        best=pd.Series(best, index=index, name="best", dtype=object),
        change=change,
        plan=plan,
        unit=UNITS[gains.criterion],
    )
