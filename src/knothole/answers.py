"""From outputs of an expectation to what the model's own ``predict`` would return.

A regressor answers a number a row (several for several targets), a classifier labels or
probabilities of its classes; a table of pandas, polars or Arrow in gives one of its library out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.columns.evidence import Evidence
from knothole.columns.outputs import Shares, like
from knothole.errors import InvalidInput, NotFitted
from knothole.expectation.expectation import Expectation
from knothole.inspection.intervals import Calibration
from knothole.trees.ensemble import Ensemble

# Probabilities that are beyond 0 or 1 by less are so by rounding alone.
ROUNDING = 1e-9


class Answers:
    """What a model says about some rows; each answer is computed when it is first asked for.

    Made by :meth:`knothole.Robust.answers`.

    Examples
    --------
    >>> import knothole as kh
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> model = DecisionTreeRegressor().fit([[0.0], [1.0]], [2.0, 3.0])
    >>> X = [[0.0], [1.0]] * 10
    >>> found = kh.wrap(model, X, density=kh.Factorized()).answers([[np.nan]])
    >>> found.prediction, found.std, found.quantiles([0.0, 1.0])[0]
    (array([2.5]), array([0.5]), array([[2., 3.]]))
    """

    def __init__(
        self,
        expectation: Expectation,
        evidence: Evidence,
        table: Any,
        threads: int | None,
        calibration: Calibration | None = None,
    ) -> None:
        self._expectation, self._evidence, self._threads = expectation, evidence, threads
        self._calibration = calibration
        self._table = table
        self._ensemble = expectation.original

    @property
    def prediction(self) -> Any:
        """Labels of a classifier, numbers of a regressor: (rows,), or (rows, targets)."""
        if not is_classifier(self._ensemble):
            return self._like(flat(self._predicted[0]))
        chosen = [
            np.asarray(names)[probability.argmax(axis=1)]
            for names, probability in zip(class_lists(self._ensemble), self._shares, strict=True)
        ]
        return self._like(chosen[0] if len(chosen) == 1 else np.stack(chosen, axis=1))

    @property
    def std(self) -> Any:
        """Standard deviation that the holes cause, for classifiers in the label's probability."""
        return self._beside_prediction(self._std[0])

    @property
    def errors(self) -> Any:
        """Standard error of :attr:`prediction`, for classifiers of the label's probability."""
        return self._beside_prediction(self._predicted[1])

    @property
    def std_errors(self) -> Any:
        """Standard error of :attr:`std`."""
        return self._beside_prediction(self._std[1])

    @property
    def probabilities(self) -> Any:
        """Probabilities of the classes, (rows, classes); a list of them for several targets."""
        return self._by_class(self._shares)

    @property
    def probabilities_std(self) -> Any:
        """Standard deviations of :attr:`probabilities` that the holes cause."""
        return self._by_class(self._of_classes(self._std[0]))

    @property
    def probabilities_errors(self) -> Any:
        """Standard errors of :attr:`probabilities`."""
        return self._by_class(self._of_classes(self._predicted[1]))

    @property
    def probabilities_std_errors(self) -> Any:
        """Standard errors of :attr:`probabilities_std`."""
        return self._by_class(self._of_classes(self._std[1]))

    @property
    def margin(self) -> tuple[Any, Any]:
        """Expected margin (Prop. 1) and its standard error: (rows,), or (rows, outputs)."""
        mean, error = self._expectation.margin(self._evidence, threads=self._threads)
        return self._like(flat(mean)), self._like(flat(error))

    def quantiles(self, levels: Sequence[float]) -> tuple[Any, Any]:
        """Quantiles of a regressor's prediction, and their standard errors.

        Both are (rows, levels), or (rows, outputs, levels). They are about the holes alone.
        """
        found = self._expectation.quantiles(self._evidence, levels, threads=self._threads)
        if self._ensemble.n_responses > 1:
            return found
        quantiles, errors = (self._like(each[:, 0], list(levels)) for each in found)
        return quantiles, errors

    def interval(self, coverage: float) -> Any:
        """Intervals for y, (rows, 2); see :meth:`knothole.Robust.predict_interval`."""
        if self._calibration is None:
            raise NotFitted(
                "predict_interval: how far y lies from predictions is not known yet; call "
                "robust.calibrate(X, y) with rows that the model was not trained on, and use what "
                "it returns."
            )
        ends = self._calibration.intervals(
            self._expectation, self._evidence, coverage, self._threads
        )
        return self._like(ends, ["low", "high"])

    @cached_property
    def _predicted(self) -> tuple[Floats, Floats]:
        return self._expectation.predict(self._evidence, threads=self._threads)

    @cached_property
    def _std(self) -> tuple[Floats, Floats]:
        return self._expectation.std(self._evidence, threads=self._threads)

    @property
    def _shares(self) -> list[Floats]:
        return probabilities(self._ensemble, self._predicted[0])

    def _of_classes(self, values: Floats) -> list[Floats]:
        """Spreads or errors of outputs as those of classes."""
        if _is_binary(self._ensemble):
            return [np.hstack([values, values])]
        return _by_target(self._ensemble, values)

    def _beside_prediction(self, values: Floats) -> Any:
        """Spreads or errors of predictions, for classifiers of the label's probability."""
        if is_classifier(self._ensemble):
            chosen = [
                np.take_along_axis(each, probability.argmax(axis=1)[:, None], axis=1)
                for probability, each in zip(self._shares, self._of_classes(values), strict=True)
            ]
            values = np.hstack(chosen)
        return self._like(flat(values))

    def _by_class(self, parts: list[Floats]) -> Any:
        lists = class_lists(self._ensemble)
        tables = [self._like(part, names) for names, part in zip(lists, parts, strict=True)]
        tables = [Shares(each) if isinstance(each, pd.DataFrame) else each for each in tables]
        return tables[0] if len(tables) == 1 else tables

    def _like(self, values: NDArray[Any], names: list[Any] | None = None) -> Any:
        """Values of the kind of table that was asked about."""
        return like(self._table, values, names)


def is_classifier(ensemble: Ensemble) -> bool:
    """Whether ``predict`` gives labels."""
    return ensemble.classes is not None


def require_regressor(ensemble: Ensemble, what: str) -> None:
    """Refuse a question that is about numbers only."""
    if is_classifier(ensemble):
        raise InvalidInput(
            f"{what}: the model is a classifier, which says how sure it is by probabilities; use "
            f"predict_proba."
        )


def class_lists(ensemble: Ensemble) -> tuple[list[Any], ...]:
    """The labels of each target: one list for most classifiers, several for several targets."""
    classes = ensemble.classes or ()
    if classes and isinstance(classes[0], tuple):
        return tuple(list(each) for each in classes if isinstance(each, tuple))
    return (list(classes),)


def output_labels(ensemble: Ensemble, n: int) -> list[Any]:
    """What ``n`` outputs are of: a class each, of two the second; else numbers from 0."""
    names = [name for own in class_lists(ensemble) for name in own]
    if n == 1 and len(names) == 2:
        return names[1:]
    return names if len(names) == n else list(range(n))


def probabilities(ensemble: Ensemble, response: Floats) -> list[Floats]:
    """Probabilities (rows, classes) of each target from responses (rows, outputs)."""
    inside = np.clip(response, 0.0, 1.0)  # scikit-learn refuses 1 + 2e-16
    response = np.where(np.abs(inside - response) < ROUNDING, inside, response)
    if _is_binary(ensemble):
        return [np.hstack([1.0 - response, response])]
    return _by_target(ensemble, response)


def _is_binary(ensemble: Ensemble) -> bool:
    """Whether the one output is the probability of the second of two classes."""
    return ensemble.n_responses == 1 and len(class_lists(ensemble)[0]) == 2


def _by_target(ensemble: Ensemble, values: Floats) -> list[Floats]:
    sizes = [len(names) for names in class_lists(ensemble)]
    return np.split(values, np.cumsum(sizes)[:-1], axis=1)


def flat(response: Floats) -> Floats:
    """One number a row where there is one output, as ``predict`` has it."""
    return response[:, 0] if response.shape[1] == 1 else response
