"""``density="auto"``: candidates learn from some rows; the best on other, masked rows is kept.

Held-out rows are masked as the user's own rows are (:mod:`knothole.densities.held_out`).
A candidate's score is what the remaining entries say of it:

- by default **log p** of the masked rows. Densities and probabilities cannot be compared (a point
  mass has a probability where a Gaussian has a density), so while choosing, every number is
  expressed in units of its column's *resolution*: the typical gap between values that were
  recorded, 1 for whole numbers. A density times the resolution is close to the probability of the
  recorded cell, and the common unit favours nobody.
- or any **loss** that a caller defines, such as the error of a model's expected prediction.

Every candidate learns once from some of the rows and is judged on others. Those that are within a
standard error of the best learn again from more rows, and are judged on more. The winner is then
fitted on all rows. Of fewer than 1,000 rows all are used from the start, by cross-validation.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from knothole.arrays import Floats, Mask
from knothole.columns.columns import Columns, Kind
from knothole.columns.read import row_weights
from knothole.densities.base import Density, of_same_size
from knothole.densities.held_out import (
    ROWS_TO_JUDGE,
    HeldOut,
    hold_out,
    mean_and_error,
    rows_to_screen,
)
from knothole.densities.names import name_of
from knothole.errors import InvalidInput
from knothole.progress import Advance, silent

if TYPE_CHECKING:
    import pandas as pd


# Parts of 100 that the first comparison, the second look and learning from all rows take.
SCREENING, LOOKING_AGAIN, FITTING = 45.0, 25.0, 30.0
# Standard errors behind the best within which a candidate gets a second look.
CLOSE = 1.0


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
        A row for each candidate, the best first: the name of the ``metric`` and its ``value`` on
        masked held-out rows; the ``score`` that candidates are ranked by (mean log p, or minus the
        mean loss, which is the squared error where the metric is RMSE), how far it is ``behind``
        the best one's, the standard ``error`` of that difference, ``seconds`` to learn and score,
        whether it was ``chosen``, and a ``note``, such as why it failed.
    """

    density: Density
    selection_: pd.DataFrame


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
    >>> candidates = [Factorized(), Mixture(n_components=8, random_state=0)]
    >>> select(candidates, X, Columns.infer(X)).selection_["name"].tolist()
    ['mixture', 'independent']
    """
    from sklearn.base import clone

    named = _named(candidates)
    weight = row_weights(sample_weight, len(matrix))
    parts = hold_out(matrix, columns, random_state, eligible)
    # Units matter only where densities and probabilities meet in one score.
    unit = resolution(matrix, columns) if score is None else np.ones(len(columns))
    loss = minus_log_p(unit) if score is None else score
    metric = LOG_P if score is None else getattr(score, "metric", "mean loss")
    tried = [Candidate(name, candidate, metric) for name, candidate in named.items()]

    def fitted(density: Density, rows: Any) -> Density:
        return _fit(clone(density), matrix[rows] / unit, columns, weight[rows])

    def judge(
        candidates: Sequence[Candidate], parts: Sequence[HeldOut], work: float, stage: str
    ) -> None:
        for candidate in candidates:
            advance(f"{stage}: {candidate.name}", 0.0)
            candidate.judge(parts, fitted, weight, loss)
            advance(str(candidate), work / len(candidates))

    screening = SCREENING
    if len(parts) > 1:
        # Sizes are found once, on all rows, and not again in every fold.
        screening /= 2
        for candidate in tried:
            advance(f"choose the size of a density: {candidate.name}", 0.0)
            candidate.find_size(fitted)
            advance("", screening / len(tried))
    screen = rows_to_screen(len(columns.variables)), ROWS_TO_JUDGE
    first = [part.first(*screen) for part in parts] if len(parts) == 1 else parts
    judge(tried, first, screening, "compare densities")
    best = min(tried, key=lambda candidate: candidate.rank)
    close = [candidate for candidate in tried if not candidate.behind_clearly(best)]
    more = len(parts) == 1 and len(parts[0].train) > len(first[0].train)
    if more and len(close) > 1:
        judge(close, parts, LOOKING_AGAIN, "compare the best again, on more rows")
        for candidate in tried:
            candidate.out = candidate not in close
    else:
        advance("", LOOKING_AGAIN)
    ranked = sorted(tried, key=lambda candidate: candidate.rank)
    for best in ranked:
        if best.failure is not None:
            continue
        advance(f"fit {best.name} to all rows", 0.0)
        try:
            density = _fit(clone(best.density), matrix, columns, weight)
        except Exception as error:
            best.failure = f"failed on all rows: {error}"
            continue
        advance("", FITTING)
        return Selected(density, _table(ranked, best))
    reasons = "; ".join(f"{candidate.name}: {candidate.failure}" for candidate in ranked)
    raise InvalidInput(f"density='auto': no candidate could learn from these rows. {reasons}")


def minus_log_p(unit: Floats) -> Loss:
    """Minus log p of the observed part of each row, numbers in units of ``unit`` (columns,)."""

    def loss(density: Density, part: HeldOut) -> Floats:
        evidence = density.columns_.evidence(part.matrix / unit, part.missing_mask)
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


#: What candidates are compared by where no loss is given.
LOG_P = "mean log p"


class Candidate:
    """A density, how it did on held-out rows, and why it failed, if it did.

    ``looks`` has the loss and the weight of each held-out row, look by look; ``out`` says that it
    was too far behind for a second one.
    """

    def __init__(self, name: str, density: Density, metric: str) -> None:
        from sklearn.base import clone

        self.name, self.density, self.metric = name, clone(density), metric
        self.looks: list[tuple[Floats, Floats]] = []
        self.seconds = 0.0
        self.failure: str | None = None
        self.out = False

    def find_size(self, fitted: Callable[[Density, Any], Density]) -> None:
        """Settle what is left open ("auto") by a fit on all rows."""
        with self._attempt():
            self.density = of_same_size(self.density, fitted(self.density, slice(None)))

    def judge(
        self,
        parts: Sequence[HeldOut],
        fitted: Callable[[Density, Any], Density],
        weight: Floats,
        loss: Loss,
    ) -> None:
        """Learn without the held-out rows, and find the loss of each."""
        with self._attempt():
            losses = []
            for part in parts:
                density: Any = fitted(self.density, part.train)
                losses.append(loss(density, part))
                # How columns are read is found once; sizes follow the number of rows.
                if getattr(self.density, "normal_scores", None) == "auto":
                    self.density.set_params(normal_scores=density.normal_scores_)
            every = np.concatenate([np.empty(0), *losses])
            if np.isnan(every).any():
                raise ArithmeticError("its loss is NaN")
            own = np.concatenate([np.empty(0), *(weight[part.held] for part in parts)])
            self.looks.append((every, own if own.any() else np.ones_like(own)))

    @contextmanager
    def _attempt(self) -> Iterator[None]:
        """Time some work; a candidate that fails is out, whatever the reason."""
        start = time.perf_counter()
        try:
            yield
        except Exception as error:
            self.failure = self.failure or f"failed: {error}"
        self.seconds += time.perf_counter() - start

    @property
    def score(self) -> float:
        """Minus the mean loss; NaN where there is none."""
        loss, weight = self.looks[-1] if self.looks else (np.empty(0), np.empty(0))
        return -float(np.average(loss, weights=weight)) if len(loss) else np.nan

    @property
    def value(self) -> float:
        """The score in the unit of the metric."""
        if self.metric == LOG_P:
            return self.score
        # A score of 0 is a loss of 0, not of -0.
        loss = 0.0 - self.score
        return float(np.sqrt(loss)) if self.metric.startswith("RMSE") else loss

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """Sorts the best to the front, failures to the end."""
        return self.failure is not None, self.out, 0.0 if np.isnan(self.score) else -self.score

    def __str__(self) -> str:
        result = self.failure or f"held-out {self.metric} {self.value:.4g}"
        return f"{self.name}: {result} ({self.seconds:.1f} s)"

    def behind(self, best: Candidate) -> tuple[float, float]:
        """How much larger the mean loss is than the best one's, and the standard error of that.

        By the last look that both had.
        """
        if not (np.isfinite(self.score) and np.isfinite(best.score)):
            return best.score - self.score, np.nan
        last = min(len(self.looks), len(best.looks)) - 1
        (loss, weight), (least, _) = self.looks[last], best.looks[last]
        return mean_and_error(loss - least, weight)

    def behind_clearly(self, best: Candidate) -> bool:
        """Whether another is better by more than a standard error; failures are."""
        behind, error = self.behind(best)
        return self.failure is not None or bool(behind > CLOSE * error)


def _fit(density: Density, matrix: Floats, columns: Columns, weight: Floats) -> Density:
    """Fit; that it could gain from more steps is told by its attributes, not by a warning."""
    from sklearn.exceptions import ConvergenceWarning

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
    """Densities by their names, numbered where one comes again."""
    seen: dict[str, int] = {}
    for candidate in candidates:
        name = name_of(candidate)
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
                "metric": candidate.metric,
                "value": candidate.value,
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
        return "clearly behind on some of the rows" if candidate.out else ""
    return "best on masked held-out rows" if np.isfinite(best.score) else "too few rows to compare"


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
    in_group = {member for group in columns.one_hot for member in group.columns}
    for i, column in enumerate(columns):
        if column.kind is not Kind.CONTINUOUS or i in in_group:
            continue
        distinct = np.unique(matrix[~np.isnan(matrix[:, i]), i])
        if len(distinct) > 1:
            unit[i] = np.median(np.diff(distinct))
    return unit
