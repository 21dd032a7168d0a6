"""Which loss a model is tuned by."""

from __future__ import annotations

from knothole.errors import UnsupportedModel
from knothole.leaves.losses.base import Loss
from knothole.leaves.losses.curved import Huber, Logistic, PseudoHuber, Softmax, Squared
from knothole.leaves.losses.pinball import Pinball
from knothole.trees.ensemble import Ensemble

# By the name of the link.
LOG_LOSSES: dict[str, type[Loss]] = {"sigmoid": Logistic, "softmax": Softmax}
# By their names in recipes.
HUBER = {"Huber": Huber, "pseudo-Huber": PseudoHuber}


def loss_of(ensemble: Ensemble) -> Loss:
    """The loss that a model was trained on, as its link and its recipe tell it.

    The squared error where they tell nothing, and for leaves that are frequencies of classes.

    Examples
    --------
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> from knothole.trees.read import read
    >>> tree = DecisionTreeRegressor(criterion="absolute_error").fit([[0.0], [1.0]], [0.0, 1.0])
    >>> loss_of(read(tree))
    Pinball(scale=1.0, levels=(0.5,))
    """
    link, recipe = ensemble.link, ensemble.recipe
    if link.name in LOG_LOSSES:
        return LOG_LOSSES[link.name](link.scale)
    if link.name == "blend":
        raise UnsupportedModel(
            "a model made of models (votes, calibrated probabilities, a transformed target) cannot "
            "be tuned as a whole: its loss is not that of its leaves. Wrap and tune the models "
            "inside it one by one."
        )
    if not link.linear:
        trained = f", trained on {recipe.loss!r}," if recipe.loss else ""
        raise _unserved(
            f"with a {link.name!r} link (Poisson, gamma, Tweedie){trained}",
            "the loss has no quadratic bound",
        )
    if ensemble.classes is not None:
        return Squared(link.scale)
    if recipe.loss in HUBER:
        if recipe.delta is None:
            raise _unserved("of a Huber loss", "it does not say where its loss becomes linear")
        return HUBER[recipe.loss](link.scale, recipe.delta / link.scale)
    if recipe.loss:
        raise _unserved(
            f"that was trained on {recipe.loss!r}",
            "leaves are found for squared errors, absolute errors, quantiles, Huber losses and "
            "log losses",
        )
    return Pinball(link.scale, recipe.levels) if recipe.levels else Squared(link.scale)


def _unserved(what: str, why: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"a model {what} cannot be tuned: {why}. Train a model on weighted completions instead: "
        f"knothole.expand."
    )
