"""``density="auto"``: candidates learn from some rows, the best on other rows with holes is kept.

Held-out rows are masked as the user's own rows are (:mod:`knothole.densities.selection.held_out`).
A candidate's score is what the remaining entries say of it:

- by default **log p** of the masked rows. Densities and probabilities cannot be compared (a point
  mass has a probability where a Gaussian has a density), so while choosing, every number is
  expressed in units of its column's *resolution*: the typical gap between values that were
  recorded, 1 for whole numbers. A density times the resolution is close to the probability of the
  recorded cell, and the common unit favours nobody.
- or any **loss** that a caller defines, such as the error of a model's expected prediction.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from knothole.arrays import Floats, Mask
from knothole.densities.base import Density
from knothole.densities.selection.held_out import ROWS, Trial, mean_and_error, resolution, trials
from knothole.errors import InvalidInput
from knothole.tables.columns import Columns, Kind
from knothole.tables.encoding import row_weights

if TYPE_CHECKING:
    import pandas as pd


# In larger tables the size found while choosing is kept: searching again would take too long.
SEARCH_AGAIN = 4 * ROWS


#: The loss of every held-out row under a density fitted on the rows to learn from.
Loss = Callable[[Density, Trial], Floats]


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
    trials : tuple of (Density, Trial)
        The chosen candidate as it was when it was scored.
    """

    density: Density
    selection_: pd.DataFrame
    trials: tuple[tuple[Density, Trial], ...]


def select(
    candidates: Sequence[Density] | Mapping[str, Density],
    X: Any,
    *,
    columns: Columns | None = None,
    score: Loss | None = None,
    sample_weight: Any = None,
    random_state: Any = 0,
    verbose: bool = False,
) -> Selected:
    """Fit candidates on a part of the rows, keep the one that explains held-out rows best.

    Parameters
    ----------
    candidates : sequence, or mapping from names, of densities
        They are cloned. One that fails is recorded and passed over.
    X : table
        As :meth:`Density.fit` takes it.
    columns : Columns, optional
        Description of the columns; inferred from ``X`` by default.
    score : callable, optional
        ``score(density, trial)`` gives the loss of every held-out row; by default minus log p of
        its observed part.
    sample_weight : array (rows,), optional
        Weights of the rows, in learning and in scores.
    random_state : int, RandomState or None
        Seed of the split and of the masks.
    verbose : bool
        Whether to print progress.

    Examples
    --------
    >>> from knothole.densities.mixture.density import Factorized, Mixture
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 1)) + 0.1 * rng.normal(size=(300, 2))
    >>> selected = select([Factorized(), Mixture(components=8, random_state=0)], X)
    >>> selected.selection_["name"].tolist()
    ['Mixture', 'Factorized']
    """
    described = Columns.infer(X) if columns is None else columns
    return select_matrix(
        candidates, described.matrix(X), described, score=score, sample_weight=sample_weight,
        random_state=random_state, verbose=verbose,
    )  # fmt: skip


def select_matrix(
    candidates: Sequence[Density] | Mapping[str, Density],
    matrix: Floats,
    columns: Columns,
    *,
    score: Loss | None = None,
    eligible: Mask | None = None,
    sample_weight: Any = None,
    random_state: Any = 0,
    verbose: bool = False,
) -> Selected:
    """:func:`select` on a table that is encoded already, by ``columns.matrix``.

    Only rows that are ``eligible`` (rows,) are held out; by default all are.
    """
    named = _named(candidates)
    weight = row_weights(sample_weight, len(matrix))
    rows = trials(matrix, columns, random_state, eligible)
    # Units matter only where densities and probabilities meet in one score.
    unit = resolution(matrix, columns) if score is None else np.ones(len(columns))
    loss = minus_log_p(unit) if score is None else score
    tried = []
    for name, candidate in named.items():
        outcome = _try(name, candidate, rows, matrix / unit, columns, weight, loss)
        if verbose:
            print(f"[auto] {outcome}")
        tried.append(outcome)
    ranked = sorted(tried, key=lambda outcome: outcome.rank)
    for place, outcome in enumerate(ranked):
        if outcome.failure is not None:
            continue
        try:
            density = _fit(outcome.for_all(len(matrix)), matrix, columns, weight)
        except Exception as error:
            outcome.failure = f"failed on all rows: {error}"
            continue
        if verbose:
            print(f"[auto] {outcome.name} it is")
        return Selected(density, _table(ranked, place), outcome.trials(rows))
    reasons = "; ".join(f"{outcome.name}: {outcome.failure}" for outcome in ranked)
    raise InvalidInput(f"density='auto': no candidate could learn from these rows. {reasons}")


# ---- scores -------------------------------------------------------------------------------------


def minus_log_p(unit: Floats) -> Loss:
    """Minus log p of the observed part of each row, numbers in units of ``unit`` (columns,)."""

    def loss(density: Density, trial: Trial) -> Floats:
        evidence = density.columns_.evidence(trial.matrix / unit, trial.holes)
        return -density.log_evidence(density.extended(evidence, None))

    return loss


# ---- candidates ---------------------------------------------------------------------------------


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
        candidates.append(LatentTree(random_state=random_state))
    if len(numeric) >= 2:
        candidates.append(GaussianMixture(random_state=random_state))
    return candidates


@dataclass(eq=False)
class _Outcome:
    """How a candidate did."""

    name: str
    candidate: Density
    fitted: list[Density]
    loss: Floats
    weight: Floats
    seconds: float
    failure: str | None = None

    @property
    def score(self) -> float:
        """Minus the mean loss; NaN where there is none."""
        return -self.mean(self.loss) if len(self.loss) else np.nan

    @property
    def rank(self) -> tuple[bool, float]:
        """Sorts the best to the front, failures to the end."""
        return self.failure is not None, -self.score if len(self.loss) else 0.0

    def mean(self, values: Floats) -> float:
        return float(np.average(values, weights=self.weight))

    def __str__(self) -> str:
        result = f"score {self.score:.6g}" if self.failure is None else self.failure
        return f"{self.name}: {result} ({self.seconds:.1f} s)"

    def for_all(self, n_rows: int) -> Density:
        """What to fit on all rows: with the size found, where searching again would take long."""
        again: Density = clone(self.candidate)
        if n_rows <= SEARCH_AGAIN or not self.fitted:
            return again
        found = self.fitted[-1]
        if getattr(again, "components", None) == "auto":
            again.set_params(components=len(found.weights_))
        if getattr(again, "states", None) == "auto":
            again.set_params(states=found.states_)
        return again

    def trials(self, rows: Iterable[Trial]) -> tuple[tuple[Density, Trial], ...]:
        return tuple(zip(self.fitted, rows, strict=True)) if self.fitted else ()


def _try(
    name: str,
    candidate: Density,
    rows: list[Trial],
    matrix: Floats,
    columns: Columns,
    weight: Floats,
    loss: Loss,
) -> _Outcome:
    start = time.perf_counter()
    fitted: list[Density] = []
    losses = [np.empty(0)]
    failure = None
    try:
        for trial in rows:
            density = _fit(clone(candidate), matrix[trial.train], columns, weight[trial.train])
            losses.append(loss(density, trial))
            fitted.append(density)
        if np.isnan(np.concatenate(losses)).any():
            raise ArithmeticError("its loss is NaN")
    except Exception as error:  # a candidate that fails is out, whatever the reason
        failure = f"failed: {error}"
        fitted, losses = [], [np.empty(0)]
    held = [weight[trial.held] for trial in rows] if fitted else []
    own_weight = np.concatenate([np.empty(0), *held])
    if not own_weight.any():
        own_weight = np.ones_like(own_weight)
    seconds = time.perf_counter() - start
    return _Outcome(name, candidate, fitted, np.concatenate(losses), own_weight, seconds, failure)


def _fit(density: Density, matrix: Floats, columns: Columns, weight: Floats) -> Density:
    """Fit; that it could gain from more steps is told by its attributes, not by a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return density.fit_matrix(matrix, columns, sample_weight=weight)


def _named(candidates: Sequence[Density] | Mapping[str, Density]) -> dict[str, Density]:
    if isinstance(candidates, Mapping):
        named = dict(candidates)
    else:
        named = dict(_numbered(candidates))
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


def _table(ranked: list[_Outcome], chosen: int) -> pd.DataFrame:
    import pandas as pd

    best = ranked[chosen]
    rows = []
    for place, outcome in enumerate(ranked):
        behind, error = _behind(outcome, best)
        rows.append(
            {
                "name": outcome.name,
                "score": outcome.score,
                "behind": behind,
                "error": error,
                "seconds": outcome.seconds,
                "chosen": place == chosen,
                "note": outcome.failure or _note(outcome, place == chosen),
            }
        )
    return pd.DataFrame(rows)


def _behind(outcome: _Outcome, best: _Outcome) -> tuple[float, float]:
    """How much larger the mean loss is than the best one's, and the standard error of that."""
    if not (np.isfinite(outcome.score) and np.isfinite(best.score)):
        return best.score - outcome.score, np.nan
    return mean_and_error(outcome.loss - best.loss, best.weight)


def _note(outcome: _Outcome, chosen: bool) -> str:
    if not len(outcome.loss):
        return "too few rows to compare" if chosen else ""
    return "best on masked held-out rows" if chosen else ""
