"""``density="auto"``: candidates learn from some rows, the best on other rows with holes is kept.

Held-out rows are masked as the user's own rows are (:mod:`knothole.densities.held_out`).
A candidate's score is what the remaining entries say of it:

- by default **log p** of the masked rows. Densities and probabilities cannot be compared (a point
  mass has a probability where a Gaussian has a density), so while choosing, every number is
  expressed in units of its column's *resolution*: the typical gap between values that were
  recorded, 1 for whole numbers. A density times the resolution is close to the probability of the
  recorded cell, and the common unit favours nobody.
- or any **loss** that a caller defines, such as the error of a model's expected prediction.

Searching for a size costs most. So candidates that would search first *rehearse* with a modest size
and prior, and whoever is clearly behind on the same held-out rows is out. Of many rows some do for
whoever is behind beyond any doubt; those that are left rehearse again with all, if there are two.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from knothole.arrays import Floats, Mask
from knothole.columns.columns import Columns, Kind
from knothole.columns.read import row_weights
from knothole.densities.base import Density, of_same_size
from knothole.densities.held_out import HeldOut, hold_out, mean_and_error
from knothole.errors import InvalidInput
from knothole.progress import Advance, silent

if TYPE_CHECKING:
    import pandas as pd


# What candidates that search rehearse with; of two ways, the better counts.
REHEARSALS: dict[str, tuple[dict[str, Any], ...]] = {
    "Mixture": ({"components": 8, "strength": 1.0},),
    "LatentTree": ({"states": 8, "strength": 1.5},),
    "GaussianMixture": tuple(
        {"components": 4, "strength": 1.0, "normal_scores": way} for way in (True, "repeated")
    ),
}
# More variables than this are wide: there a rehearsal has time for one covariance, and for some of
# the 200 steps that a latent tree of 500 variables takes.
WIDE = 100
REHEARSALS_OF_WIDE: dict[str, tuple[dict[str, Any], ...]] = {
    "LatentTree": ({"states": 8, "strength": 1.5, "max_iter": 40},),
    "GaussianMixture": ({"components": 1, "strength": 1.0, "normal_scores": True},),
}
# Parts of 100 that rehearsals, searches and learning from all rows take, as bars have it.
REHEARSING, SEARCH, AGAIN = 22.0, 72.0, 6.0
# Rows of a first rehearsal, which must be less than half of all, and standard errors that a
# rehearsal may be behind the best one: with those rows, and with all.
FEW_TO_REHEARSE = 900
FAR_BEHIND, BEHIND = 4.0, 2.0


#: The loss of every held-out row under a density fitted on the rows to learn from.
Loss = Callable[[Density, HeldOut], Floats]


@dataclass(frozen=True, eq=False)
class Selected:
    """What was chosen.

    Attributes
    ----------
    density : Density
        Fitted on all rows.
    selection_ : pandas.DataFrame
        A row a candidate, the best first: its ``score`` on masked held-out rows (mean log p, or
        minus the mean loss: larger is better), ``behind`` (how far behind the best), the standard
        ``error`` of that difference, ``seconds`` to learn and score, whether it was ``chosen``,
        and a ``note``, such as why it failed.
    scored : tuple of (Density, HeldOut)
        The chosen candidate as it was when it was scored, and the rows it was scored on.
    """

    density: Density
    selection_: pd.DataFrame
    scored: tuple[tuple[Density, HeldOut], ...]


def select(
    candidates: Sequence[Density] | Mapping[str, Density],
    matrix: Floats,
    columns: Columns,
    *,
    score: Loss | None = None,
    eligible: Mask | None = None,
    sample_weight: Any = None,
    random_state: Any = 0,
    advance: Advance = silent,
) -> Selected:
    """Fit candidates on a part of the rows, keep the one that explains held-out rows best.

    Parameters
    ----------
    candidates : sequence, or mapping from names, of densities
        They are cloned. One that fails is recorded and passed over.
    matrix, columns : float64 (rows, columns), Columns
        As :meth:`Density.fit_matrix` takes them.
    score : callable, optional
        ``score(density, held_out)`` gives the loss of every held-out row; by default minus log p of
        its observed part.
    eligible : bool array (rows,), optional
        Rows that may be held out; by default all.
    sample_weight : array (rows,), optional
        Weights of the rows, in learning and in scores.
    random_state : int, RandomState or None
        Seed of the split and of the masks.
    advance : callable
        Told of progress: of 100 parts in all.

    Examples
    --------
    >>> from knothole.densities.mixture.density import Factorized, Mixture
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 1)) + 0.1 * rng.normal(size=(300, 2))
    >>> candidates = [Factorized(), Mixture(components=8, random_state=0)]
    >>> select(candidates, X, Columns.infer(X)).selection_["name"].tolist()
    ['Mixture', 'Factorized']
    """
    named = _named(candidates)
    weight = row_weights(sample_weight, len(matrix))
    parts = hold_out(matrix, columns, random_state, eligible)
    # Units matter only where densities and probabilities meet in one score.
    unit = resolution(matrix, columns) if score is None else np.ones(len(columns))
    loss = minus_log_p(unit) if score is None else score
    tried = [Candidate(name, candidate) for name, candidate in named.items()]

    def judge(candidate: Candidate, work: float, learned: list[HeldOut] = parts) -> None:
        candidate.judge(learned, lambda rows: matrix[rows] / unit, columns, weight, loss)
        advance(str(candidate), work)

    rehearse(tried, judge, parts, wide=len(columns.variables) > WIDE)
    left = [candidate for candidate in tried if not candidate.out]
    effort = sum(candidate.effort for candidate in left)
    for candidate in left:
        share = candidate.effort / effort if effort else 1 / len(left)
        judge(candidate, share * (SEARCH if effort else SEARCH + REHEARSING))
    ranked = sorted(tried, key=lambda candidate: candidate.rank)
    for best in ranked:
        if best.failure is not None:
            continue
        try:
            density = _fit(best.for_all(), matrix, columns, weight)
        except Exception as error:
            best.failure = f"failed on all rows: {error}"
            continue
        advance(f"{best.name} it is", AGAIN)
        scored = tuple(zip(best.fitted, parts, strict=False))
        return Selected(density, _table(ranked, best), scored)
    reasons = "; ".join(f"{candidate.name}: {candidate.failure}" for candidate in ranked)
    raise InvalidInput(f"density='auto': no candidate could learn from these rows. {reasons}")


def minus_log_p(unit: Floats) -> Loss:
    """Minus log p of the observed part of each row, numbers in units of ``unit`` (columns,)."""

    def loss(density: Density, part: HeldOut) -> Floats:
        evidence = density.columns_.evidence(part.matrix / unit, part.holes)
        return -density.log_evidence(density.extended(evidence, None))

    return loss


def default_candidates(columns: Columns, random_state: Any = 0) -> list[Density]:
    """What ``density="auto"`` tries on such columns."""
    from knothole.densities.gaussian.density import GaussianMixture
    from knothole.densities.latent_tree.density import LatentTree
    from knothole.densities.mixture.density import Factorized, Mixture

    variables = columns.variables
    numeric = [v for v in variables if v.kind is not Kind.CATEGORICAL]
    candidates: list[Density] = [Factorized(random_state=random_state)]
    if len(variables) >= 2:
        candidates.append(Mixture(n_init=1, random_state=random_state))
    if len(variables) >= 3:
        candidates.append(LatentTree(n_init=1, random_state=random_state))
    if len(numeric) >= 2:
        candidates.append(GaussianMixture(random_state=random_state))
    return candidates


def rehearse(
    tried: Sequence[Candidate],
    judge: Callable[[Candidate, float, list[HeldOut]], None],
    parts: list[HeldOut],
    wide: bool,
) -> None:
    """Let candidates that search for a size try a modest one; out with those clearly behind.

    Their rehearsal is what is told of them.
    """
    left: list[tuple[Candidate, list[Density]]] = []
    known = REHEARSALS | REHEARSALS_OF_WIDE if wide else REHEARSALS
    for candidate in tried:
        modest = known.get(type(candidate.density).__name__, ())
        given = candidate.density.get_params()
        if modest and all(given[name] == "auto" for name in modest[0] if name != "max_iter"):
            ways = [clone(candidate.density).set_params(**way) for way in modest]
            left.append((candidate, ways))
    rounds = [(parts, BEHIND)]
    if len(parts) == 1 and len(parts[0].train) > 2 * FEW_TO_REHEARSE:
        rounds.insert(0, ([parts[0].with_fewer(FEW_TO_REHEARSE)], FAR_BEHIND))
    for learned, bound in rounds:
        if len(left) < 2:
            return
        rehearsals = []
        for candidate, ways in left:
            own = [Candidate(f"{candidate.name}, rehearsing", density) for density in ways]
            for rehearsal in own:
                judge(rehearsal, REHEARSING / len(rounds) / len(left) / len(own), learned)
            first, *others = sorted(own, key=lambda one: one.rank)
            rehearsals.append((candidate, first))
            candidate.effort = first.seconds
            if others and all(other.clearly_behind(first, bound) for other in others):
                candidate.settle("normal_scores", first)
                ways[:] = [first.density]
        best = min((rehearsal for _, rehearsal in rehearsals), key=lambda one: one.rank)
        for candidate, rehearsal in rehearsals:
            if rehearsal.clearly_behind(best, bound):
                candidate.loss, candidate.weight = rehearsal.loss, rehearsal.weight
                candidate.seconds, candidate.out = rehearsal.seconds, True
        left = [(candidate, ways) for candidate, ways in left if not candidate.out]


class Candidate:
    """A density, how it did on held-out rows, and why it failed, if it did.

    ``out`` says that a rehearsal was clearly behind another's, ``effort`` how long it took.
    """

    def __init__(self, name: str, density: Density) -> None:
        self.name, self.density = name, density
        self.fitted: list[Density] = []
        self.loss = self.weight = np.empty(0)
        self.seconds = 0.0
        self.failure: str | None = None
        self.out = False
        self.effort = 0.0

    def judge(
        self,
        parts: list[HeldOut],
        some: Callable[[NDArray[np.intp]], Floats],
        columns: Columns,
        weight: Floats,
        loss: Loss,
    ) -> None:
        """Learn without the held-out rows, and find the loss of each; ``some`` has the rows."""
        start = time.perf_counter()
        fitted, losses = [], [np.empty(0)]
        try:
            for part in parts:
                density = clone(self.density)
                fitted.append(_fit(density, some(part.train), columns, weight[part.train]))
                losses.append(loss(density, part))
            if np.isnan(np.concatenate(losses)).any():
                raise ArithmeticError("its loss is NaN")
        except Exception as error:  # a candidate that fails is out, whatever the reason
            self.failure = f"failed: {error}"
        else:
            self.fitted, self.loss = fitted, np.concatenate(losses)
            self.weight = np.concatenate([np.empty(0), *(weight[part.held] for part in parts)])
            if not self.weight.any():
                self.weight = np.ones_like(self.weight)
        self.seconds = time.perf_counter() - start

    @property
    def score(self) -> float:
        """Minus the mean loss; NaN where there is none."""
        return -float(np.average(self.loss, weights=self.weight)) if len(self.loss) else np.nan

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """Sorts the best to the front, failures to the end."""
        return self.failure is not None, self.out, -self.score if len(self.loss) else 0.0

    def __str__(self) -> str:
        result = f"score {self.score:.6g}" if self.failure is None else self.failure
        return f"{self.name}: {result} ({self.seconds:.1f} s)"

    def behind(self, best: Candidate) -> tuple[float, float]:
        """How much larger the mean loss is than the best one's, and the standard error of that."""
        if not (np.isfinite(self.score) and np.isfinite(best.score)):
            return best.score - self.score, np.nan
        return mean_and_error(self.loss - best.loss, best.weight)

    def clearly_behind(self, best: Candidate, bound: float) -> bool:
        """Whether the mean loss is larger than another's by more than so many standard errors."""
        behind, error = self.behind(best)
        return bool(behind > bound * error)

    def settle(self, parameter: str, rehearsal: Candidate) -> None:
        """Search no more for what a rehearsal has shown."""
        value = rehearsal.density.get_params()[parameter]
        self.density = clone(self.density).set_params(**{parameter: value})

    def for_all(self) -> Density:
        """What to fit on all rows: with the size and the prior found, which took long enough."""
        if not self.fitted:
            again: Density = clone(self.density)
            return again
        return of_same_size(self.density, self.fitted[-1]).beginning_with(self.fitted[-1])


def _fit(density: Density, matrix: Floats, columns: Columns, weight: Floats) -> Density:
    """Fit; that it could gain from more steps is told by its attributes, not by a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return density.fit_matrix(matrix, columns, sample_weight=weight)


def _named(candidates: Sequence[Density] | Mapping[str, Density]) -> dict[str, Density]:
    named = dict(candidates if isinstance(candidates, Mapping) else _numbered(candidates))
    if not named:
        raise InvalidInput("candidates must hold at least one density; got none.")
    for name, candidate in named.items():
        if not isinstance(candidate, Density):
            raise InvalidInput(
                f"candidates must be densities; got {type(candidate).__name__} for {name!r}."
            )
    return named


def _numbered(candidates: Iterable[Density]) -> Iterator[tuple[str, Density]]:
    """Densities by the names of their classes, numbered where one comes again."""
    seen: dict[str, int] = {}
    for candidate in candidates:
        name = type(candidate).__name__
        seen[name] = seen.get(name, 0) + 1
        yield (name if seen[name] == 1 else f"{name} {seen[name]}"), candidate


def _table(ranked: list[Candidate], best: Candidate) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for candidate in ranked:
        behind, error = candidate.behind(best)
        rows.append(
            {
                "name": candidate.name,
                "score": candidate.score,
                "behind": behind,
                "error": error,
                "seconds": candidate.seconds,
                "chosen": candidate is best,
                "note": candidate.failure or _note(candidate, best),
            }
        )
    return pd.DataFrame(rows)


def _note(candidate: Candidate, best: Candidate) -> str:
    if candidate is not best:
        return "clearly behind in a rehearsal" if candidate.out else ""
    return "best on masked held-out rows" if len(best.loss) else "too few rows to compare"


def resolution(matrix: Floats, columns: Columns) -> Floats:
    """The unit in which each column was recorded, as far as its values tell, (columns,).

    The median gap between distinct values; 1 for whole numbers, categories and dummies.

    Examples
    --------
    >>> from knothole.columns.columns import Column
    >>> resolution(np.array([[0.25], [0.5], [0.5], [1.75], [2.0]]), Columns((Column("x"),)))
    array([0.25])
    """
    unit = np.ones(len(columns))
    in_block = {member for block in columns.blocks for member in block.columns}
    for i, column in enumerate(columns):
        if column.kind is not Kind.CONTINUOUS or i in in_block:
            continue
        distinct = np.unique(matrix[~np.isnan(matrix[:, i]), i])
        if len(distinct) > 1:
            unit[i] = np.median(np.diff(distinct))
    return unit
