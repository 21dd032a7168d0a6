"""Labels and probabilities from an ensemble's outputs, as the model's own library returns them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.errors import InvalidInput
from knothole.trees.ensemble import Ensemble

# Probabilities outside [0, 1] by less than this are rounding errors.
ROUNDING = 1e-9


def is_classifier(ensemble: Ensemble) -> bool:
    """Whether ``predict`` gives labels."""
    return ensemble.classes is not None


# Kinds of model without a numeric target, and what to do instead.
WITHOUT_TARGET = {
    "anomaly": "an isolation forest has no target",
    "survival": "the target of a survival forest is a time that may be censored; compare risks "
    "with sksurv.metrics, and leave y out elsewhere",
}


def require_target(ensemble: Ensemble, what: str) -> None:
    """Refuse a call that compares predictions with y if the model does not predict y."""
    if ensemble.recipe.task in WITHOUT_TARGET:
        raise InvalidInput(f"{what}: {WITHOUT_TARGET[ensemble.recipe.task]}.")


def class_lists(ensemble: Ensemble) -> tuple[list[Any], ...]:
    """The labels of each target: one list for most classifiers, several for several targets."""
    classes = ensemble.classes or ()
    if classes and isinstance(classes[0], tuple):
        return tuple(list(each) for each in classes if isinstance(each, tuple))
    return (list(classes),)


def output_labels(ensemble: Ensemble, n: int) -> list[Any]:
    """Labels of ``n`` outputs: classes (of two, the second), otherwise numbers from 0."""
    names = [name for target in class_lists(ensemble) for name in target]
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


def by_class(ensemble: Ensemble, values: Floats) -> list[Floats]:
    """Standard deviations or errors of outputs as those of each class, for each target."""
    if _is_binary(ensemble):
        return [np.hstack([values, values])]
    return _by_target(ensemble, values)


def label(ensemble: Ensemble, shares: list[Floats]) -> NDArray[Any]:
    """The most likely label: (rows,), or (rows, targets)."""
    labels = [
        np.asarray(names)[probability.argmax(axis=1)]
        for names, probability in zip(class_lists(ensemble), shares, strict=True)
    ]
    return labels[0] if len(labels) == 1 else np.stack(labels, axis=1)


def of_label(shares: list[Floats], values: list[Floats]) -> Floats:
    """Of one number per class (spreads, errors), the one of the most likely label."""
    chosen = [
        np.take_along_axis(each, probability.argmax(axis=1)[:, None], axis=1)
        for probability, each in zip(shares, values, strict=True)
    ]
    return flat(np.hstack(chosen))


def _is_binary(ensemble: Ensemble) -> bool:
    """Whether the only output is the probability of the second of two classes."""
    return ensemble.n_responses == 1 and len(class_lists(ensemble)[0]) == 2


def _by_target(ensemble: Ensemble, values: Floats) -> list[Floats]:
    sizes = [len(names) for names in class_lists(ensemble)]
    return np.split(values, np.cumsum(sizes)[:-1], axis=1)


def flat(response: Floats) -> Floats:
    """One-dimensional where there is one output, as ``predict`` returns it."""
    return response[:, 0] if response.shape[1] == 1 else response
