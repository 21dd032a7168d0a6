"""What a fitted model of scikit-learn is made of: steps, members, and trees at the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from knothole.errors import UnsupportedModel
from knothole.trees.libraries.registry import not_fitted

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
    for base in type(model).__mro__:
        if base.__module__.partition(".")[0] == "sklearn":
            if base.__name__ in REFUSED:
                raise UnsupportedModel(f"cannot read a {base.__name__}: {REFUSED[base.__name__]}.")
            if base.__name__ in KINDS:
                return base.__name__
    return None


def members(model: Any) -> list[tuple[Steps, Any]]:
    """The models inside one that holds models, and the steps that rows take to each."""
    kind = kind_of(model)
    try:
        check_is_fitted(model)
    except NotFittedError as error:
        raise not_fitted(model) from error
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
