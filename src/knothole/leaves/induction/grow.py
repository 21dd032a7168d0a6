"""An estimator of any library, trained on completions of incomplete rows.

The gain of a split, summed over weighted completions of every row, estimates the expected gain; so
a library that takes sample weights grows its trees, top down, under the expected loss. The trees of
forests and bags have a completion each, of their own bootstrap samples: there, draws and bags are
one source of variety.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.model_selection import train_test_split

from knothole.arrays import Floats, Mask
from knothole.errors import InvalidInput
from knothole.leaves.induction.expand import shared
from knothole.leaves.induction.filling import Completions, aligned, take
from knothole.trees.libraries import unfitted, weight_name

# Completions that are drawn at once, for trees that have one each.
AT_ONCE = 64
# Bytes that completions may take up.
MEMORY = 1 << 31
# Parameters that count rows.
COUNTS = ("min_samples_leaf", "min_samples_split", "min_child_samples", "min_data_in_leaf")
# Rows from which scikit-learn's HistGradientBoosting stops early by itself.
MANY = 10_000
# Names that libraries have for the weights of eval_set.
EVAL_WEIGHTS = ("sample_weight_eval_set", "eval_sample_weight")


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
        Bytes that completions may take up: there are fewer if they must be, at least one.
    others : callable
        Completions of other rows (X, y): those that tell when to stop.
    """

    completions: Completions
    y: NDArray[Any]
    weight: Floats | None
    draws: int
    seed: int
    memory: int
    others: Callable[[Any, NDArray[Any]], Completions]

    def fit(self, estimator: Any, **fit_params: Any) -> Any:
        """A clone of the estimator, trained on completions."""
        model = unfitted(estimator)
        kinds = {base.__name__ for base in type(model).__mro__}
        params = self._validation(fit_params)
        if kinds & {"BaseForest", "BaseBagging"}:
            return self._tree_by_tree(model, params)
        if "BaseHistGradientBoosting" in kinds:
            return self._stopped_early(model, params)
        if "BaseGradientBoosting" in kinds and model.n_iter_no_change and self.draws > 1:
            raise InvalidInput(
                f"estimator: {type(model).__name__} with n_iter_no_change holds rows out by "
                f"itself, and completions of one row would be on both sides. Use draws=1, "
                f"n_iter_no_change=None, or HistGradientBoosting."
            )
        return self._weighted(model, params)

    def _weighted(self, model: Any, params: dict[str, Any], held: Mask | None = None) -> Any:
        """All completions at once, those of a row with its weight in all.

        Where the estimator wants so many rows at least, so many completions make one. Rows that
        are ``held`` out tell when to stop.
        """
        table, row = self.completions.expanded(self._affordable, self.seed)
        weight = shared(np.ones(len(self.y)) if self.weight is None else self.weight, row)
        params = aligned(params, len(self.y), row) | {weight_name(model): weight}
        if held is not None:
            out, kept = np.flatnonzero(held[row]), np.flatnonzero(~held[row])
            params = aligned(params, len(row), kept)
            params |= {"X_val": take(table, out), "y_val": self.y[row[out]]}
            params["sample_weight_val"] = weight[out]
            table, row = take(table, kept), row[kept]
        # CatBoost does not let go of parameters, and counts rows only where it is told to.
        known = {} if type(model).__module__.startswith("catboost") else model.get_params()
        least = {
            name: known[name] for name in COUNTS if isinstance(known.get(name), int | np.integer)
        }
        times = len(row) / len(np.unique(row))
        if least:
            model.set_params(**{name: ceil(times * count) for name, count in least.items()})
        model.fit(table, self.y[row], **params)
        return model.set_params(**least) if least else model

    @property
    def _affordable(self) -> int:
        """Draws that there is memory for."""
        n, columns = self.completions.gone.shape
        incomplete = max(1, int(self.completions.incomplete.sum()))
        rows = self.memory // (8 * columns) - (n - incomplete)
        return int(min(self.draws, max(1, rows // incomplete)))

    def _tree_by_tree(self, model: Any, params: dict[str, Any]) -> Any:
        """Every tree on a completion of its own: the library adds one tree at a time."""
        if model.oob_score:
            raise InvalidInput(
                "estimator: oob_score needs rows that all trees share, but each tree grown under "
                "the expected loss has its own completions; use oob_score=False."
            )
        if self.weight is not None:
            params["sample_weight"] = self.weight
        trees, before = model.n_estimators, model.warm_start
        incomplete, rows = self.completions.incomplete, np.arange(len(self.y))
        matrix = np.full(self.completions.gone.shape, np.nan)
        for start in range(0, trees, AT_ONCE):
            drawn = self.completions.drawn(min(AT_ONCE, trees - start), self.seed + start)
            for place in range(drawn.shape[1]):
                matrix[incomplete] = drawn[:, place]
                model.set_params(warm_start=True, n_estimators=start + place + 1)
                with warnings.catch_warnings():
                    # Of targets that change from tree to tree: here they do not.
                    warnings.filterwarnings("ignore", message="class_weight presets")
                    model.fit(self.completions.filled(rows, matrix), self.y, **params)
        return model.set_params(warm_start=before)

    # ---- rows that tell when to stop -------------------------------------------------------------

    def _stopped_early(self, model: Any, params: dict[str, Any]) -> Any:
        """HistGradientBoosting, which holds rows out by itself: here before they are completed."""
        early, given = model.early_stopping, params.get("X_val") is not None
        stops = given or (len(self.y) > MANY if early == "auto" else early)
        held = None
        if stops and not given and model.validation_fraction is not None:
            _, out = train_test_split(
                np.arange(len(self.y)), test_size=model.validation_fraction,
                stratify=self.y if is_classifier(model) else None, random_state=model.random_state,
            )  # fmt: skip
            held = np.isin(np.arange(len(self.y)), out)
        model.set_params(early_stopping=bool(stops))
        return self._weighted(model, params, held).set_params(early_stopping=early)

    def _validation(self, fit_params: dict[str, Any]) -> dict[str, Any]:
        """Parameters of ``fit`` with validation rows completed too."""
        found = dict(fit_params)
        if found.get("X_val") is not None:
            goes = ("y_val", "sample_weight_val")
            X, rest = self._completed(found["X_val"], *(found.get(name) for name in goes))
            found |= {"X_val": X} | dict(zip(goes, rest, strict=True))
        if found.get("eval_set") is None:
            return found
        single = isinstance(found["eval_set"], tuple)
        pairs = [found["eval_set"]] if single else list(found["eval_set"])
        name = next((name for name in EVAL_WEIGHTS if found.get(name) is not None), None)
        weights = [None] * len(pairs) if name is None else list(found[name])
        for place, pair in enumerate(pairs):
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise InvalidInput(
                    f"eval_set must hold pairs (X, y), so that their holes can be completed; got "
                    f"{type(pair).__name__}."
                )
            X, (y, weights[place]) = self._completed(*pair, weights[place])
            pairs[place] = (X, y)
        found |= {} if name is None else {name: weights}
        return found | {"eval_set": pairs[0] if single else pairs}

    def _completed(self, X: Any, y: Any, weight: Any) -> tuple[Any, list[Any]]:
        """Rows as often as there are draws, complete ones too: they need no weights then."""
        others = self.others(X, np.asarray(y))
        if not others.incomplete.any():
            return X, [y, weight]
        table, row = others.expanded(self.draws, self.seed, self.draws)
        return table, [np.asarray(y)[row], None if weight is None else np.asarray(weight)[row]]
