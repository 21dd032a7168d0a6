"""Models made of models: their trees side by side, and a link that puts their answers together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from knothole.arrays import Floats
from knothole.errors import UnsupportedModel
from knothole.trees.ensemble import UNTOLD, Ensemble, Nodes
from knothole.trees.links import IDENTITY, STEPS, Blend, Link, Member, Step
from knothole.trees.pipelines.parts import kind_of, members


def assembled(model: Any, trees: Iterator[Ensemble]) -> Ensemble:
    """A model from the ensembles at its ends, which all have the same columns."""
    kind = kind_of(model)
    if kind is None:
        return next(trees)
    inside = [assembled(member, trees) for _, member in members(model)]
    if kind == "TransformedTargetRegressor":
        return _retransformed(model, inside[0])
    if kind == "CalibratedClassifierCV":
        return _calibrated(model, inside)
    if kind in ("VotingRegressor", "VotingClassifier"):
        return _voted(model, inside)
    return inside[0]


# ---- votes -------------------------------------------------------------------------------------


def _voted(model: Any, inside: Sequence[Ensemble]) -> Ensemble:
    classifier = kind_of(model) == "VotingClassifier"
    if classifier and model.voting != "soft":
        raise UnsupportedModel(
            "cannot read a VotingClassifier with voting='hard': the majority of labels is no "
            "expectation. Use voting='soft', which also keeps probabilities."
        )
    given = [1.0] * len(model.estimators) if model.weights is None else model.weights
    pairs = zip(given, model.estimators, strict=True)
    active = [weight for weight, (_, one) in pairs if one != "drop"]
    weights = np.array(active) / np.sum(active)
    if not classifier:
        return _mixed(inside, weights, [()] * len(inside), None)
    classes = tuple(model.classes_.tolist())
    steps = [_to_classes(ensemble, len(classes), "VotingClassifier") for ensemble in inside]
    return _mixed(inside, weights, steps, classes)


def _to_classes(ensemble: Ensemble, n_classes: int, what: str) -> tuple[Step, ...]:
    """From a member's predictions to probabilities of all classes."""
    if ensemble.n_responses == n_classes:
        return ()
    if ensemble.n_responses == 1 and n_classes == 2:
        return (Step("both classes"),)
    raise UnsupportedModel(
        f"cannot read a {what} one of whose members knows other classes than the whole; train it "
        f"on folds that have all classes."
    )


# ---- calibrated probabilities ------------------------------------------------------------------


def _calibrated(model: Any, inside: Sequence[Ensemble]) -> Ensemble:
    classes = tuple(model.classes_.tolist())
    n = len(inside)
    steps, plain = [], []
    for ensemble, one in zip(inside, model.calibrated_classifiers_, strict=True):
        if one.method not in ("sigmoid", "isotonic"):
            raise UnsupportedModel(
                f"cannot read a CalibratedClassifierCV with method={one.method!r}; use 'sigmoid' "
                f"or 'isotonic'."
            )
        before = _to_classes(ensemble, len(classes), "CalibratedClassifierCV")
        by_margin = hasattr(one.estimator, "decision_function")
        # Calibrators are given the margin where a model has one, else its probabilities.
        plain.append(replace(ensemble, link=IDENTITY) if by_margin else ensemble)
        if len(classes) > 2:
            steps.append((_calibrators(one), Step("shares")))
        else:
            second = () if before or by_margin else (Step("second class"),)
            steps.append((*second, _calibrators(one), Step("both classes")))
    return _mixed(plain, np.full(n, 1 / n), steps, classes)


def _calibrators(one: Any) -> Step:
    fitted = one.calibrators
    if one.method == "sigmoid":
        slopes, shifts = ([float(getattr(each, name)) for each in fitted] for name in ("a_", "b_"))
        return Step("sigmoid", (tuple(slopes), tuple(shifts)))
    curves = [
        tuple(map(float, points))
        for each in fitted
        for points in (each.X_thresholds_, each.y_thresholds_)
    ]
    return Step("interpolate", tuple(curves))


# ---- transformed targets -----------------------------------------------------------------------


def _retransformed(model: Any, inside: Ensemble) -> Ensemble:
    """The inverse of the target's transformation, inside the expectation."""
    if inside.n_responses != 1:
        raise UnsupportedModel(
            "cannot read a TransformedTargetRegressor of several targets; train one for each."
        )
    transformer = model.transformer_

    def inverse(values: Floats) -> Floats:
        if not values.size:
            return values
        found = transformer.inverse_transform(values.reshape(-1, 1))
        return np.asarray(found, dtype=np.float64).reshape(values.shape)

    line = _line(inverse)
    if line is not None and inside.link.linear:
        slope, shift = line
        base = slope * inside.base + shift / inside.link.scale
        return replace(inside, tree_weight=slope * inside.tree_weight, base=base, recipe=UNTOLD)
    function = getattr(transformer, "inverse_func", None)
    name = getattr(function, "__name__", "")
    known = isinstance(function, np.ufunc) and name in STEPS
    step = Step(name) if known else Step("own", function=inverse)
    return _mixed([inside], np.ones(1), [(step,)], None)


def _line(function: Any) -> tuple[float, float] | None:
    """Slope and height at 0 of a function that is a line, None for any other."""
    places = np.array([0.0, 1.0, -1.0, 0.5, 3.0, -20.0, 1000.0])
    with np.errstate(all="ignore"):
        heights = function(places)
    slope, shift = float(heights[1] - heights[0]), float(heights[0])
    size = np.abs(heights).max()
    straight = np.abs(heights - (slope * places + shift)).max() <= 1e-12 * size
    return (slope, shift) if np.isfinite(size) and straight else None


# ---- trees side by side ------------------------------------------------------------------------


def _mixed(
    inside: Sequence[Ensemble], weights: Floats, steps: Sequence[tuple[Step, ...]], classes: Any
) -> Ensemble:
    """A weighted sum of what the members predict, after these steps.

    Where nothing is done to margins they are added up by the trees' own weights, and expectations
    are as exact as of one model; otherwise every member keeps margins of its own.
    """
    alike = len({(one.n_outputs, one.value.shape[1]) for one in inside}) == 1
    if alike and all(one.link.linear for one in inside) and not any(steps):
        scaled = [w * one.link.scale for w, one in zip(weights.tolist(), inside, strict=True)]
        base = np.sum([w * one.base for w, one in zip(scaled, inside, strict=True)], axis=0)
        return _side_by_side(inside, [0] * len(inside), scaled, base, IDENTITY, classes)
    starts = np.cumsum([0, *(one.n_outputs for one in inside)]).tolist()
    parts = tuple(
        Member(start, start + one.n_outputs, weight, one.link, own)
        for one, start, weight, own in zip(
            inside, starts[:-1], weights.tolist(), steps, strict=True
        )
    )
    width = len(classes) if classes else inside[0].n_responses
    # Leaves of all trees have as many values: where some have fewer, margins that nobody uses
    # take the zeros.
    spare = np.zeros(max(one.value.shape[1] for one in inside) - 1)
    base = np.concatenate([*(one.base for one in inside), spare])
    ones = [1.0] * len(inside)
    return _side_by_side(inside, starts[:-1], ones, base, Blend(parts, width), classes)


def _side_by_side(
    inside: Sequence[Ensemble],
    starts: Sequence[int],
    weights: Sequence[float],
    base: Floats,
    link: Link | Blend,
    classes: Any,
) -> Ensemble:
    """All trees in one ensemble; those of a member serve outputs from its start on."""
    width = max(one.value.shape[1] for one in inside)
    nodes = np.cumsum([0, *(len(one.feature) for one in inside)]).tolist()
    words = np.cumsum([0, *(len(one.sets) for one in inside)]).tolist()
    leaf = [one.feature < 0 for one in inside]
    value = np.zeros((nodes[-1], width))
    native = np.zeros(nodes[-1], dtype=np.int32)
    for one, own, first in zip(inside, leaf, nodes[:-1], strict=True):
        at, number = first + np.flatnonzero(own), one.left[own]
        value[at, : one.value.shape[1]] = one.value[number]
        native[at] = one.native_leaf[number]

    def joined(name: str, shifts: Sequence[Any]) -> Any:
        return np.concatenate(
            [getattr(one, name) + shift for one, shift in zip(inside, shifts, strict=True)]
        )

    left = joined("left", nodes[:-1])
    start = [
        np.where(one.set_start >= 0, one.set_start + first, -1)
        for one, first in zip(inside, words[:-1], strict=True)
    ]
    made = Nodes(
        roots=joined("roots", nodes[:-1]),
        feature=np.concatenate([one.feature for one in inside]),
        cut=np.concatenate([one.cut for one in inside]),
        left=left,
        right=left + 1,
        missing_left=np.concatenate([one.missing_left for one in inside]),
        value=value,
        native_leaf=native,
        set_start=np.concatenate(start),
        sets=np.concatenate([one.sets for one in inside]),
        tree_output=joined("tree_output", starts),
        tree_weight=np.concatenate(
            [w * one.tree_weight for w, one in zip(weights, inside, strict=True)]
        ),
    )
    precisions = {one.precision for one in inside}
    return Ensemble.build(
        made,
        columns=inside[0].columns,
        base=base,
        library=" and ".join(dict.fromkeys(one.library for one in inside)),
        precision="float32" if "float32" in precisions else "float64",
        link=link,
        classes=classes,
    )
