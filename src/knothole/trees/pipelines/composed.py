"""Pipelines and models made of models as one ensemble over a table's columns, and back.

The trees of all inner models stand side by side; a link combines the models' answers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from knothole.arrays import Floats
from knothole.columns.read import class_names
from knothole.errors import InvalidInput, ReaderMismatch, UnsupportedModel
from knothole.trees.curves import reached, sample_quantiles
from knothole.trees.ensemble import UNKNOWN_RECIPE, Ensemble, Nodes, nodes_of
from knothole.trees.libraries import require_fitted
from knothole.trees.links import IDENTITY, STEPS, Blend, Link, Member, Step
from knothole.trees.pipelines.fold import folded
from knothole.trees.pipelines.steps import Domain, ProbeTable, SteppedModel, Steps, domains_of
from knothole.trees.read import read, write

# ---- what a model is made of ---------------------------------------------------------------------


# Classes of scikit-learn that hold other models, by name: none is imported to recognise one.
KINDS = (
    "Pipeline", "TransformedTargetRegressor", "CalibratedClassifierCV", "VotingRegressor",
    "VotingClassifier", "BaseSearchCV", "FrozenEstimator",
)  # fmt: skip
# Attribute of the inner model, for classes that hold one.
INNER = {
    "TransformedTargetRegressor": "regressor_",
    "BaseSearchCV": "best_estimator_",
    "FrozenEstimator": "estimator",
}
# Classes whose answer is not a mean of their members' answers, and what to do instead.
REFUSED = {
    "TunedThresholdClassifierCV": "wrap its estimator_, and put the threshold around what wrap "
    "returns: FixedThresholdClassifier(FrozenEstimator(robust), threshold=...)",
    "FixedThresholdClassifier": "wrap its estimator_, and put it around what wrap returns",
    "StackingRegressor": "use a VotingRegressor, or wrap one of its members",
    "StackingClassifier": "use a VotingClassifier(voting='soft'), or wrap one of its members",
}


# What inner models predict if their answers cannot be transformed or averaged further.
TASKS_OF_MEMBERS = {
    "anomaly": "anomaly scores",
    "quantiles": "quantiles",
    "survival": "survival",
}


def kind_of(model: Any) -> str | None:
    """Name of the class that holds other models, or None for any other object."""
    for package, name in class_names(model):
        if package == "sklearn" and name in REFUSED:
            raise UnsupportedModel(f"cannot read a {name}: {REFUSED[name]}.")
        if package == "sklearn" and name in KINDS:
            return name
    return None


def members(model: Any) -> list[tuple[Steps, Any]]:
    """The inner models of a model, each with the steps that rows take to it."""
    kind = kind_of(model)
    require_fitted(model)
    if kind == "Pipeline":
        steps = [step for _, step in model.steps]
        passing = [step for step in steps[:-1] if step is not None and step != "passthrough"]
        return [(tuple(passing), steps[-1])]
    if kind == "CalibratedClassifierCV":
        return [((), one.estimator) for one in model.calibrated_classifiers_]
    if kind in ("VotingRegressor", "VotingClassifier"):
        return [((), one) for one in model.estimators_]
    return [((), getattr(model, INNER[str(kind)]))]


def ends(model: Any, steps: Steps = ()) -> Iterator[tuple[Steps, Any]]:
    """The innermost tree models, in order, each with all steps before it."""
    if kind_of(model) is None:
        yield steps, model
        return
    for further, member in members(model):
        yield from ends(member, (*steps, *further))


def last(model: Any) -> Any:
    """The only tree model of a pipeline; if there are several, the model itself."""
    tree_models = [end for _, end in ends(model)]
    return tree_models[0] if len(tree_models) == 1 else model


# ---- reading and writing -------------------------------------------------------------------------


# Rows on which the assembled ensemble is compared with the model as a whole.
COMPARED = 64


def is_composed(model: Any) -> bool:
    """Whether a model is a pipeline or otherwise holds other models."""
    return kind_of(model) is not None


def read_over(model: Any, table: Any, native: bool = True) -> Ensemble:
    """Read a pipeline, or a model made of models, over the columns of its training table.

    Parameters
    ----------
    model : object
        See ``KINDS``.
    table : table
        Its training table, or similar rows in which all values that matter occur.
    native : bool
        Whether the model must treat NaN in the table as a value; see :func:`knothole.wrap`.

    Returns
    -------
    Ensemble
        Over the columns that reach a tree model. Rows reach the leaves that the model itself
        sends them to, and predictions were compared with the model's own.
    """
    rows = ProbeTable(table)
    fronts = [SteppedModel.of(steps, end, table) for steps, end in ends(model)]
    domains = domains_of(rows, fronts)
    if native:
        _check_nan(rows, domains)
    ensemble = assembled(model, iter(folded(rows, fronts, domains)))
    _compare(model, rows, ensemble)
    return ensemble


def _check_nan(rows: ProbeTable, domains: list[Domain]) -> None:
    """Refuse NaN in training that a step refuses, or imputes from other columns."""
    for domain in domains:
        source = rows.sources[domain.position]
        refused = any(answer is None for answer in domain.of_nan)
        if refused and source.read is not None and np.isnan(source.read.values).any():
            raise InvalidInput(
                f"X_train has NaN in column {source.name!r}, and what the pipeline makes of it "
                f"depends on other columns, or it refuses it: NaN is no value of its own there. "
                f"Pass nan_policy='lost', which integrates over every missing value."
            )


def _compare(model: Any, rows: ProbeTable, ensemble: Ensemble) -> None:
    rng = np.random.default_rng(0)
    values = {i: rng.choice(source.values, COMPARED) for i, source in enumerate(rows.sources)}
    table = rows.table(values)
    classifier, task = ensemble.classes is not None, ensemble.recipe.task
    matrix = ensemble.columns.matrix(table)
    ours = ensemble.predict(matrix)
    if task == "anomaly":
        native = model.score_samples(table)
    else:
        native = model.predict_proba(table) if classifier else model.predict(table)
    if task == "quantiles":
        leaves = reached(ensemble.leaves(matrix), ensemble.n_leaves)
        levels = np.array(ensemble.recipe.quantiles)
        ours = sample_quantiles(ensemble.curves, leaves, levels).reshape(COMPARED, -1)
    native = np.hstack(native) if isinstance(native, list) else np.asarray(native)
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
    number = {key: i for i, key in enumerate(original.leaf_keys())}
    for key, new in zip(ensemble.leaf_keys(), ensemble.value, strict=True):
        value[number[key]] = new
    for key, new in zip(ensemble.leaf_keys(), ensemble.value, strict=True):
        if not np.array_equal(value[number[key]], new):
            raise InvalidInput(
                "to_native: a leaf of the model serves several ranges of a column that a step bins "
                "or folds, and refitting gave them different values. Keep the refitted model as "
                "it is."
            )
    written = copy.deepcopy(model)
    _replace(written, write(tree_model, original.with_values(value)))
    return written


def _replace(model: Any, new: Any) -> None:
    """Replace the innermost tree model."""
    kind = str(kind_of(model))
    inner = model.steps[-1][1] if kind == "Pipeline" else getattr(model, INNER[kind])
    if kind_of(inner) is not None:
        _replace(inner, new)
    elif kind == "Pipeline":
        model.steps[-1] = (model.steps[-1][0], new)
    else:
        setattr(model, INNER[kind], new)


# ---- the models inside, put together -------------------------------------------------------------


def assembled(model: Any, trees: Iterator[Ensemble]) -> Ensemble:
    """The ensemble of a model, given those of its innermost models, over the same columns."""
    kind = kind_of(model)
    if kind is None:
        return next(trees)
    inside = [assembled(member, trees) for _, member in members(model)]
    task = next((one.recipe.task for one in inside if one.recipe.task), "")
    if task and kind in ("TransformedTargetRegressor", "VotingRegressor"):
        raise UnsupportedModel(
            f"cannot read a {kind} of a model of {TASKS_OF_MEMBERS[task]}: it works on answers "
            f"that are no means over trees. Wrap the models inside it one by one."
        )
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
    """The step from a member's predictions to probabilities of all classes."""
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
        # Calibrators take the margin where a model has one, otherwise its probabilities.
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
    """The model with the inverse transformation of the target inside the expectation."""
    if inside.n_responses != 1:
        raise UnsupportedModel(
            "cannot read a TransformedTargetRegressor of several targets; train one for each."
        )
    transformer = model.transformer_

    def inverse(values: Floats) -> Floats:
        if not values.size:
            return values
        inverted = transformer.inverse_transform(values.reshape(-1, 1))
        return np.asarray(inverted, dtype=np.float64).reshape(values.shape)

    line = _line(inverse)
    if line is not None and inside.link.linear:
        slope, shift = line
        base = slope * inside.base + shift / inside.link.scale
        return replace(
            inside, tree_weight=slope * inside.tree_weight, base=base, recipe=UNKNOWN_RECIPE
        )
    function = getattr(transformer, "inverse_func", None)
    name = getattr(function, "__name__", "")
    known = isinstance(function, np.ufunc) and name in STEPS
    step = Step(name) if known else Step("own", function=inverse)
    return _mixed([inside], np.ones(1), [(step,)], None)


def _line(function: Any) -> tuple[float, float] | None:
    """Slope and intercept of a linear function, None for any other."""
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
    """A weighted sum of the members' predictions after these steps.

    Where margins are only added up, the weights go into the trees, and expectations are as exact as
    those of one model. Otherwise every member keeps margins of its own.
    """
    alike = len({(one.n_outputs, one.value.shape[1]) for one in inside}) == 1
    if alike and all(one.link.linear for one in inside) and not any(steps):
        scaled = [w * one.link.scale for w, one in zip(weights.tolist(), inside, strict=True)]
        base = np.sum([w * one.base for w, one in zip(scaled, inside, strict=True)], axis=0)
        return _side_by_side(inside, [0] * len(inside), scaled, base, IDENTITY, classes)
    starts = np.cumsum([0, *(one.n_outputs for one in inside)]).tolist()
    parts = tuple(
        Member(start, start + one.n_outputs, weight, one.link, own_steps)
        for one, start, weight, own_steps in zip(
            inside, starts[:-1], weights.tolist(), steps, strict=True
        )
    )
    width = len(classes) if classes else inside[0].n_responses
    # All leaves have the same number of values. Where a member's have fewer, they are padded
    # with zeros, which go to spare outputs that nothing reads.
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
    """All trees in one ensemble; a member's trees serve outputs from its ``starts`` on."""
    parts = [nodes_of(vars(one)) for one in inside]
    n_nodes = np.cumsum([0, *(len(one.feature) for one in inside)])[:-1].tolist()
    n_words = np.cumsum([0, *(len(one.sets) for one in inside)])[:-1].tolist()
    width = max(one.value.shape[1] for one in inside)

    def joined(name: str, shifts: Sequence[Any] | None = None) -> Any:
        arrays = [getattr(part, name) for part in parts]
        if shifts is not None:
            arrays = [array + shift for array, shift in zip(arrays, shifts, strict=True)]
        return np.concatenate(arrays)

    nodes = Nodes(
        **{
            name: joined(name)
            for name in ("feature", "threshold", "missing_left", "native_leaf", "sets")
        },
        **{name: joined(name, n_nodes) for name in ("roots", "left", "right")},
        value=np.vstack([np.pad(p.value, ((0, 0), (0, width - p.value.shape[1]))) for p in parts]),
        set_start=np.where(joined("set_start") < 0, -1, joined("set_start", n_words)),
        tree_output=joined("tree_output", starts),
        tree_weight=np.concatenate(
            [w * one.tree_weight for w, one in zip(weights, inside, strict=True)]
        ),
    )
    precisions = {one.precision for one in inside}
    return Ensemble.build(
        nodes,
        columns=inside[0].columns,
        base=base,
        library=" and ".join(dict.fromkeys(one.library for one in inside)),
        precision="float32" if "float32" in precisions else "float64",
        link=link,
        classes=classes,
    )
