"""What a fitted model of scikit-learn is made of: steps, members, and trees at the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from knothole.columns.read import class_names
from knothole.errors import UnsupportedModel
from knothole.trees.libraries import require_fitted

Steps = tuple[Any, ...]

# Classes of scikit-learn that hold other models, by name: nothing is imported to recognise one.
KINDS = (
    "Pipeline", "TransformedTargetRegressor", "CalibratedClassifierCV", "VotingRegressor",
    "VotingClassifier", "BaseSearchCV", "FrozenEstimator",
)  # fmt: skip
# Where those that hold one model have it.
INNER = {
    "TransformedTargetRegressor": "regressor_",
    "BaseSearchCV": "best_estimator_",
    "FrozenEstimator": "estimator",
}
# Those whose answer is not a mean of their members' answers.
REFUSED = {
    "TunedThresholdClassifierCV": "wrap its estimator_, and put the threshold around what wrap "
    "returns: FixedThresholdClassifier(FrozenEstimator(robust), threshold=...)",
    "FixedThresholdClassifier": "wrap its estimator_, and put it around what wrap returns",
    "StackingRegressor": "use a VotingRegressor, or wrap one of its members",
    "StackingClassifier": "use a VotingClassifier(voting='soft'), or wrap one of its members",
}


def kind_of(model: Any) -> str | None:
    """Which of the classes that hold other models it is; None for any other object."""
    for package, name in class_names(model):
        if package == "sklearn" and name in REFUSED:
            raise UnsupportedModel(f"cannot read a {name}: {REFUSED[name]}.")
        if package == "sklearn" and name in KINDS:
            return name
    return None


def members(model: Any) -> list[tuple[Steps, Any]]:
    """The models inside one that holds models, and the steps that rows take to each."""
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
    """The tree models at the ends, from the first to the last, with all steps before each."""
    if kind_of(model) is None:
        yield steps, model
        return
    for further, member in members(model):
        yield from ends(member, (*steps, *further))


def last(model: Any) -> Any:
    """The tree model of a pipeline; of what holds several models, that itself."""
    found = [end for _, end in ends(model)]
    return found[0] if len(found) == 1 else model
