"""Options of refitting, and the summary that it returns."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from knothole.checks import check_choice, check_number
from knothole.errors import InvalidInput
from knothole.progress import Verbose
from knothole.threads import threads_of

Method = Literal["auto", "tree", "forest", "boosting"]
Objective = Literal["auto", "expected", "deployed"]

#: Options that are one of a few strings.
CHOICES: dict[str, tuple[str, ...]] = {
    "method": get_args(Method),
    "objective": get_args(Objective),
}


@dataclass(frozen=True, eq=False, kw_only=True)
class RefitOptions:
    """How leaves are refitted: the keyword arguments of :meth:`knothole.Robust.refit_leaves`.

    Parameters
    ----------
    ridge : float or "auto"
        Lambda, in rows: what a leaf adds to the margin is drawn to 0, and the leaves of models
        without a base score to the mean (:mod:`knothole.leaves.problem`). "auto" is 0 for
        trees that are averaged, whose leaves may hold one row (except for a single classification
        tree), and for quantiles, whose ridge is so many rows at the start; otherwise 1.
    method : {"auto", "tree", "forest", "boosting"}
        "tree": each tree predicts y by itself (Prop. 2); for averaged forests, and for a single
        tree. "forest": all leaves at once (Prop. 3). "boosting": each tree given the ones before
        it (Prop. 4), at the model's own learning rate. "auto": "tree" where that is possible,
        "boosting" for trees that are added up. "forest" has the least expected loss on the
        training rows, but it overfits many trees that were grown for small steps: it forgets
        these steps.
    objective : {"auto", "expected", "deployed"}
        "expected" is the paper's: the expected loss. "deployed" goes on from there towards the
        least loss of expected predictions (:mod:`knothole.leaves.deployed`), for "tree" and
        "boosting" of regressions; trees with more than 1,024 leaves keep the leaves of the least
        expected loss. "auto" is "deployed" where that is possible and ``condition_on_target`` is
        True.
    learning_rate : float or "auto"
        Part of its best values that each tree takes on, for "boosting". "auto" is the rate that
        the model was trained with, as its library tells it, or else its leaves: from complete
        training rows the leaves that come out are then those of the model itself. It is raised,
        up to 1, where the expected loss would otherwise rise: with few trees, small steps do not
        get as far on rows with missing values. Where nothing tells it, it is chosen by
        cross-validation. The paper has 1.
    condition_on_target : bool
        Whether missing values of training rows are integrated under p(x_m | x_o, y), with a
        density over (X, y) that serves for this alone: the model's own density if that was fitted
        with a target, otherwise one like it that is fitted here. Predictions go on without y,
        under p(X). False is the paper's p(x_m | x_o).
    nan_policy : {"lost", "native"}
        What missing values of training rows mean. "lost": all are integrated over, here and in
        what is returned; a density that has "not recorded" as a state is learned anew without,
        unless the model was wrapped with ``nan_policy="lost"``. "native": in columns where the
        density has that state, a training row's missing value has it.
    verbose : bool or "auto"
        Whether to show progress on the error stream; "auto": where it is a terminal or this a
        notebook, and it takes more than two seconds.
    n_jobs : int, optional
        Threads, counted as scikit-learn does; by default all cores. The result does not depend
        on it.

    Examples
    --------
    >>> RefitOptions(ridge=2.0).changed(method="boosting").ridge
    2.0
    >>> RefitOptions().changed(rigde=2.0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    knothole.errors.InvalidInput: refit_leaves has no option 'rigde'; its options are ridge, ...
    """

    ridge: float | Literal["auto"] = "auto"
    method: Method = "auto"
    objective: Objective = "auto"
    learning_rate: float | Literal["auto"] = "auto"
    condition_on_target: bool = True
    nan_policy: Literal["lost", "native"] = "lost"
    verbose: Verbose = "auto"
    n_jobs: int | None = None

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            check_choice(name, getattr(self, name), allowed)
        check_choice("nan_policy", self.nan_policy, ("lost", "native"))
        check_number("ridge", self.ridge, also=["auto"])
        check_number("learning_rate", self.learning_rate, above=0, most=1, also=["auto"])
        check_choice("verbose", self.verbose, ("auto", True, False))

    @property
    def threads(self) -> int | None:
        """Number of threads for ``n_jobs``; None for the default."""
        return threads_of(self.n_jobs)

    def changed(self, **options: Any) -> RefitOptions:
        """These options with some of them changed."""
        known = [field.name for field in fields(self)]
        for name in options:
            if name not in known:
                raise InvalidInput(
                    f"refit_leaves has no option {name!r}; its options are {', '.join(known)}."
                )
        return replace(self, **options)


@dataclass(frozen=True, eq=False, kw_only=True)
class RefitSummary:
    """What refitting did.

    Attributes
    ----------
    method : {"tree", "forest", "boosting"}
    loss : {"squared error", "cross-entropy", "log loss", "pinball loss", "Huber loss", \
"pseudo-Huber loss"}
        The pinball loss of a median is half the absolute error.
    before, after : float
        The loss of a row, of the old and the new leaves, without the ridge: that of expected
        predictions where the ``objective`` is "deployed"; otherwise the expected loss
        under the density, of the whole model or (mean over trees) of each by itself. The deployed
        error of old leaves on the rows that they were trained on may be the lower one. Without a
        ridge "tree" and "forest" never raise the expected loss (a ridge may: what they minimise
        is the loss and the ridge together). "boosting" may, above all at a learning rate that was
        given, because it does not go on from the old leaves: each tree is fitted anew, given only
        those before it, and is not looked at again.
    error : float
        Standard error of ``after``, 0 where it is exact: from draws that took no part, or from
        the standard errors of the deployed predictions.
    exact : bool
        Whether missing values were integrated exactly all the way, not by draws.
    unreached : int array
        Leaves that no row reaches. They keep their value if the ridge is 0.
    conditioned : {"none", "given", "labels", "values", "scores"}
        How the density knew y: not at all; the density passed in had a target; as classes; as
        values; as normal scores.
    learning_rate : float
        Part of its best values that each tree took on, the largest if outputs differ; always 1
        except for "boosting".
    objective : {"expected", "deployed"}
        Which loss was lowered in the end.
    moved : int
        Trees whose leaves have moved on from the least expected loss.
    complete : bool
        Whether no training row had a missing value: then refitting has nothing to gain.
    """

    method: str
    loss: str
    before: float
    after: float
    error: float = 0.0
    exact: bool
    unreached: NDArray[np.intp] = field(repr=False)
    conditioned: str = "none"
    learning_rate: float = 1.0
    objective: str = "expected"
    moved: int = 0
    complete: bool = False
