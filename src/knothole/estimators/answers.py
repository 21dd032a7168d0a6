"""From outputs of an expectation to what the model's own ``predict`` would return.

A regressor answers a number a row (several for several targets), a classifier labels or
probabilities of its classes; a DataFrame in gives a Series or DataFrame out, with its index.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.trees.ensemble import Ensemble


def is_classifier(ensemble: Ensemble) -> bool:
    """Whether ``predict`` gives labels."""
    return ensemble.classes is not None


def class_lists(ensemble: Ensemble) -> tuple[list[Any], ...]:
    """The labels of each target: one list for most classifiers, several for several targets."""
    classes = ensemble.classes or ()
    if classes and isinstance(classes[0], tuple):
        return tuple(list(each) for each in classes if isinstance(each, tuple))
    return (list(classes),)


def probabilities(ensemble: Ensemble, response: Floats) -> list[Floats]:
    """Probabilities (rows, classes) of each target from responses (rows, outputs)."""
    lists = class_lists(ensemble)
    if _is_binary(ensemble):
        return [np.hstack([1.0 - response, response])]
    return np.split(response, np.cumsum([len(names) for names in lists])[:-1], axis=1)


def _is_binary(ensemble: Ensemble) -> bool:
    """Whether the one output is the probability of the second of two classes."""
    return ensemble.n_outputs == 1 and len(class_lists(ensemble)[0]) == 2


def labels(ensemble: Ensemble, response: Floats) -> NDArray[Any]:
    """The most probable label of every row: (rows,), or (rows, targets)."""
    chosen = [
        np.asarray(names)[probability.argmax(axis=1)]
        for names, probability in zip(
            class_lists(ensemble), probabilities(ensemble, response), strict=True
        )
    ]
    return chosen[0] if len(chosen) == 1 else np.stack(chosen, axis=1)


def spreads(ensemble: Ensemble, std: Floats) -> list[Floats]:
    """Standard deviations of each target's probabilities from those of responses."""
    lists = class_lists(ensemble)
    if _is_binary(ensemble):
        return [np.hstack([std, std])]
    return np.split(std, np.cumsum([len(names) for names in lists])[:-1], axis=1)


def of_labels(ensemble: Ensemble, response: Floats, std: Floats) -> Floats:
    """Standard deviation of the probability of each predicted label, (rows, targets)."""
    parts = zip(probabilities(ensemble, response), spreads(ensemble, std), strict=True)
    chosen = [
        np.take_along_axis(spread, probability.argmax(axis=1)[:, None], axis=1)
        for probability, spread in parts
    ]
    return np.hstack(chosen)


def flat(response: Floats) -> Floats:
    """One number a row where there is one output, as ``predict`` has it."""
    return response[:, 0] if response.shape[1] == 1 else response


def like(table: Any, values: NDArray[Any], names: list[Any] | None = None) -> Any:
    """Values with the index of a pandas table; plain where the table is none."""
    index = pandas_index(table)
    if index is None:
        return values
    import pandas as pd

    if values.ndim == 1:
        return pd.Series(values, index=index)
    return pd.DataFrame(values, index=index, columns=names)


def pandas_index(table: Any) -> Any:
    """The index of a pandas table, None for any other."""
    is_frame = any(
        base.__name__ == "DataFrame" and base.__module__.partition(".")[0] == "pandas"
        for base in type(table).__mro__
    )
    return table.index if is_frame else None
