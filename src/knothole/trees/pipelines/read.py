"""Models made of steps and models, as one ensemble over a table's columns, and back."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from knothole.errors import InvalidInput, ReaderMismatch
from knothole.trees.ensemble import Ensemble
from knothole.trees.links import Blend
from knothole.trees.pipelines.blend import assembled
from knothole.trees.pipelines.domains import Domain, domains
from knothole.trees.pipelines.fold import folded
from knothole.trees.pipelines.front import Front
from knothole.trees.pipelines.parts import INNER, ends, kind_of, last
from knothole.trees.pipelines.rows import Rows
from knothole.trees.read import read, write

# Rows on which a model as a whole is compared with what was made of it.
COMPARED = 64


def is_composed(model: Any) -> bool:
    """Whether a model is a pipeline, or holds other models in another way."""
    return kind_of(model) is not None


def read_over(model: Any, table: Any, holes: str = "auto") -> Ensemble:
    """Read a fitted pipeline, or a model made of models, over the columns of its training table.

    Parameters
    ----------
    model : object
        See :mod:`knothole.trees.pipelines.parts`.
    table : table
        What it was trained on, or rows like it: with all values of its columns that matter.
    holes : {"auto", "all"}
        With "auto", NaN in the table must mean something to the model; see :func:`knothole.wrap`.

    Returns
    -------
    Ensemble
        Of the columns that reach a tree model. Rows come to the leaves that the model itself
        sends them to, and predictions are compared with the model's own.
    """
    rows = Rows(table)
    fronts = [Front.of(steps, end, table) for steps, end in ends(model)]
    found = domains(rows, fronts)
    if holes == "auto":
        _check_nan(rows, found)
    ensemble = assembled(model, iter(folded(rows, fronts, found)))
    _compare(model, rows, ensemble)
    return ensemble


def _check_nan(rows: Rows, found: list[Domain]) -> None:
    """Refuse NaN in training that a step refuses, or fills from other columns."""
    for domain in found:
        source = rows.sources[domain.position]
        refused = any(answer is None for answer in domain.of_nan)
        if refused and source.read is not None and np.isnan(source.read.values).any():
            raise InvalidInput(
                f"X_train has NaN in column {source.name!r}, and what the pipeline makes of it "
                f"depends on other columns, or it refuses it: NaN is no value of its own there. "
                f"Pass holes='all', which takes every NaN for a hole."
            )


def _compare(model: Any, rows: Rows, ensemble: Ensemble) -> None:
    rng = np.random.default_rng(0)
    values = {i: rng.choice(source.values, COMPARED) for i, source in enumerate(rows.sources)}
    table = rows.table(values)
    classifier = ensemble.classes is not None
    native = model.predict_proba(table) if classifier else model.predict(table)
    native = np.hstack(native) if isinstance(native, list) else np.asarray(native)
    ours = ensemble.predict(ensemble.columns.matrix(table))
    if classifier and ours.shape[1] == 1:
        ours = np.hstack([1 - ours, ours])
    native = native.reshape(COMPARED, -1)
    unit = 1.0 if classifier else float(np.abs(native).max())
    if ours.shape != native.shape or not np.allclose(ours, native, rtol=1e-5, atol=1e-5 * unit):
        raise ReaderMismatch(
            f"{type(model).__name__}: predictions of what was read are not the model's own. Please "
            f"report it with the versions of the libraries; meanwhile wrap the tree model itself, "
            f"on the rows that it is given."
        )


def write_over(model: Any, ensemble: Ensemble) -> Any:
    """A copy of a pipeline whose tree model has the leaf values of an ensemble read from it."""
    tree_model = last(model)
    if kind_of(tree_model) is not None or isinstance(ensemble.link, Blend):
        raise InvalidInput(
            f"to_native: the leaves of a {type(model).__name__} are those of models inside it; "
            f"wrap these one by one."
        )
    original = read(tree_model)
    value = original.value.copy()
    number = {key: i for i, key in enumerate(_leaf_keys(original))}
    for key, new in zip(_leaf_keys(ensemble), ensemble.value, strict=True):
        value[number[key]] = new
    for key, new in zip(_leaf_keys(ensemble), ensemble.value, strict=True):
        if not np.array_equal(value[number[key]], new):
            raise InvalidInput(
                "to_native: a leaf of the model serves several ranges of a column that a step bins "
                "or folds, and tuning gave them different values. Keep the tuned model as it is."
            )
    written = copy.deepcopy(model)
    _replace(written, write(tree_model, original.with_values(value)))
    return written


def _leaf_keys(ensemble: Ensemble) -> list[tuple[int, int]]:
    """Tree and the library's own number of each leaf."""
    return list(zip(ensemble.leaf_tree.tolist(), ensemble.native_leaf.tolist(), strict=True))


def _replace(model: Any, new: Any) -> None:
    """Put another tree model at the end."""
    kind = str(kind_of(model))
    inner = model.steps[-1][1] if kind == "Pipeline" else getattr(model, INNER[kind])
    if kind_of(inner) is not None:
        _replace(inner, new)
    elif kind == "Pipeline":
        model.steps[-1] = (model.steps[-1][0], new)
    else:
        setattr(model, INNER[kind], new)
