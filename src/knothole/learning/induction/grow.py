"""An estimator of any library, trained on completions of incomplete rows.

The gain of a split, summed over weighted completions of every row, estimates the expected gain; so
a library that takes sample weights grows its trees, top down, under the expected loss. The trees of
forests and bags have a completion each, of their own bootstrap samples: there, draws and bags are
one source of variety.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone, is_classifier
from sklearn.model_selection import train_test_split

from knothole.arrays import Floats
from knothole.errors import InvalidInput
from knothole.learning.induction.expand import expanded
from knothole.learning.induction.filling import Completions, aligned

# Completions that are drawn at once, for trees that have one each.
AT_ONCE = 64
# Bytes that completions may take up.
MEMORY = 1 << 31
# Parameters that count rows.
COUNTS = ("min_samples_leaf", "min_samples_split", "min_child_samples", "min_data_in_leaf")
# Rows from which scikit-learn's HistGradientBoosting stops early by itself.
MANY = 10_000


@dataclass(frozen=True, eq=False)
class Growing:
    """Training rows, and how they are completed.

    Attributes
    ----------
    completions : Completions
    y : array (rows,)
        Targets, as the estimator takes them.
    weight : array (rows,) or None
        Sample weights where some were given.
    draws, seed : int
        Completions of each incomplete row, and their seed.
    memory : int
        Bytes that the completions may take up; there are fewer draws if they must be, at least one.
    others : callable
        Completions of other rows (X, y): those that tell when to stop.
    """

    completions: Completions
    y: NDArray[Any]
    weight: Floats | None
    draws: int
    seed: int
    memory: int
    others: Callable[[Any, Any], Completions]

    @property
    def affordable(self) -> int:
        """Draws that there is memory for."""
        incomplete, columns = int(self.completions.incomplete.sum()), self.completions.gone.shape[1]
        rows = self.memory // (8 * columns) - (len(self.completions) - incomplete)
        return int(min(self.draws, max(1, rows // max(1, incomplete))))

    def fit(self, estimator: Any, **fit_params: Any) -> Any:
        """A clone of the estimator, trained on completions."""
        model = clone(estimator)
        kinds = {base.__name__ for base in type(model).__mro__}
        fit_params = self._validation(fit_params)
        if kinds & {"BaseForest", "BaseBagging"}:
            return self._tree_by_tree(model, fit_params)
        if "BaseHistGradientBoosting" in kinds and "X_val" not in fit_params:
            return self._stopped_early(model, fit_params)
        if getattr(model, "n_iter_no_change", None) and self.draws > 1:
            raise InvalidInput(
                f"estimator: {type(model).__name__} with n_iter_no_change holds rows out by "
                f"itself, and completions of one row would be on both sides. Use draws=1, "
                f"n_iter_no_change=None, or HistGradientBoosting."
            )
        return self._weighted(model, fit_params)

    def _weighted(self, model: Any, fit_params: dict[str, Any]) -> Any:
        weight = np.ones(len(self.y)) if self.weight is None else self.weight
        full = expanded(self.completions, self.y, weight, self.affordable, self.seed)
        with _counting_completions(model, len(full.row) / len(self.y)):
            params = aligned(fit_params, len(self.y), full.row)
            return model.fit(full.X, full.y, **params, sample_weight=full.weight)

    def _tree_by_tree(self, model: Any, fit_params: dict[str, Any]) -> Any:
        """Every tree on a completion of its own: the library adds one tree at a time."""
        if model.oob_score:
            raise InvalidInput(
                "estimator: oob_score needs rows that all trees share, but each tree grown under "
                "the expected loss has its own completions; use oob_score=False."
            )
        if self.weight is not None:
            fit_params = fit_params | {"sample_weight": self.weight}
        trees, before = model.n_estimators, {"warm_start": model.warm_start}
        model.set_params(warm_start=True)
        incomplete, rows = self.completions.incomplete, np.arange(len(self.y))
        matrix = np.full(self.completions.gone.shape, np.nan)
        for start in range(0, trees, AT_ONCE):
            drawn = self.completions.drawn(min(AT_ONCE, trees - start), self.seed + start)
            for place in range(drawn.shape[1]):
                matrix[incomplete] = drawn[:, place]
                model.set_params(n_estimators=start + place + 1)
                model.fit(self.completions.filled(rows, matrix), self.y, **fit_params)
        return model.set_params(**before)

    def _stopped_early(self, model: Any, fit_params: dict[str, Any]) -> Any:
        """HistGradientBoosting, which holds rows out by itself: here before they are completed."""
        early = model.early_stopping
        stops = len(self.y) > MANY if early == "auto" else early
        if not stops or model.validation_fraction is None:
            grown = self._weighted(model.set_params(early_stopping=bool(stops)), fit_params)
            return grown.set_params(early_stopping=early)
        rows = train_test_split(
            np.arange(len(self.y)),
            test_size=model.validation_fraction,
            stratify=self.y if is_classifier(model) else None,
            random_state=model.random_state,
        )
        kept, held = (np.sort(part) for part in rows)
        weight = None if self.weight is None else self.weight[kept]
        part = replace(self, completions=self.completions[kept], y=self.y[kept], weight=weight)
        validation = self.completions[held]
        X, times = _each(validation, self.draws, self.seed)
        fit_params = fit_params | {"X_val": X, "y_val": self.y[held].repeat(times, axis=0)}
        if self.weight is not None:
            fit_params["sample_weight_val"] = self.weight[held].repeat(times)
        model.set_params(early_stopping=True)
        return part._weighted(model, fit_params).set_params(early_stopping=early)

    # ---- rows that tell when to stop -------------------------------------------------------------

    def _validation(self, fit_params: dict[str, Any]) -> dict[str, Any]:
        """Parameters of ``fit`` with validation rows completed too, all of them as often."""
        found = dict(fit_params)
        if found.get("X_val") is not None:
            found["X_val"], times = self._completed(found["X_val"], found["y_val"])
            for name in ("y_val", "sample_weight_val"):
                found[name] = _repeated(found.get(name), times)
        sets = found.get("eval_set")
        if sets is None:
            return found
        single = isinstance(sets, tuple)
        weights = next(
            (n for n in ("sample_weight_eval_set", "eval_sample_weight") if n in found), ""
        )
        completed = []
        for place, pair in enumerate([sets] if single else sets):
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise InvalidInput(
                    f"eval_set must hold pairs (X, y), so that their holes can be completed; got "
                    f"{type(pair).__name__}."
                )
            X, times = self._completed(*pair)
            completed.append((X, _repeated(pair[1], times)))
            if found.get(weights) is not None:
                found[weights] = list(found[weights])
                found[weights][place] = _repeated(found[weights][place], times)
        found["eval_set"] = completed[0] if single else completed
        return found

    def _completed(self, X: Any, y: Any) -> tuple[Any, int]:
        return _each(self.others(X, np.asarray(y)), self.draws, self.seed)


def _each(completions: Completions, draws: int, seed: int) -> tuple[Any, int]:
    """Every row as often, so that they need no weights: as it is where none has holes."""
    if not completions.incomplete.any():
        return completions.table, 1
    return completions.each(draws, seed), draws


def _repeated(values: Any, times: int) -> Any:
    return values if values is None or times == 1 else np.repeat(np.asarray(values), times, axis=0)


@contextmanager
def _counting_completions(model: Any, times: float) -> Iterator[None]:
    """Least numbers of rows are raised while training: so many completions make one row."""
    known = {} if type(model).__module__.startswith("catboost") else model.get_params()
    before = {name: known[name] for name in COUNTS if isinstance(known.get(name), int | np.integer)}
    if before:
        model.set_params(**{name: ceil(times * least) for name, least in before.items()})
    try:
        yield
    finally:
        if before:
            model.set_params(**before)
