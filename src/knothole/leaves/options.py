"""What tuning can be told: one object that Robust, the command line and meta-estimators share."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from knothole.checks import check_choice, check_number
from knothole.columns.evidence import Holes
from knothole.columns.read import Unseen
from knothole.compiled.threads import threads_of
from knothole.errors import InvalidInput
from knothole.leaves.draw_matrix import DRAWS
from knothole.progress import Verbose

Method = Literal["auto", "tree", "forest", "boosting"]
Objective = Literal["auto", "expected", "deployed"]
RidgeTo = Literal["start", "zero"]
Form = Literal["auto", "values", "scores"]
Samples = Literal["whole", "bootstrap"]
Reach = Literal["auto", "exact", "completions"]

#: Options that are one of a few words.
CHOICES: dict[str, tuple[str, ...]] = {
    "method": get_args(Method),
    "objective": get_args(Objective),
    "ridge_to": get_args(RidgeTo),
    "target_form": get_args(Form),
    "samples": get_args(Samples),
    "reach": get_args(Reach),
    "unseen": get_args(Unseen),
}


@dataclass(frozen=True, eq=False, kw_only=True)
class TuningOptions:
    """How leaves are tuned: the keyword arguments of :meth:`knothole.Robust.tune`.

    What "auto" stands for is in :mod:`knothole.leaves.defaults`.

    Parameters
    ----------
    ridge : float or "auto"
        Lambda, in rows: what a leaf adds to the margin is drawn to 0, and the leaves of models
        without a base score to the mean (:mod:`knothole.leaves.problem`). "auto" is 0 for
        trees that are averaged, whose leaves may hold one row (except for a single classification
        tree), and for quantiles, whose ridge is so many rows at the start; otherwise 1.
    ridge_to : {"start", "zero"}
        "zero" draws the leaves of all trees to 0, as the paper has it: those of a single tree are
        then sum_n y_n r_n / (lambda + sum_n r_n), with y less a base score. Not for leaves that
        are probabilities.
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
        "boosting" of regressions; trees with more than 1,024 leaves stay behind.
        "auto" is "deployed" where that is possible and ``condition_on_target`` is True.
    learning_rate : float or "auto"
        Part of its best values that each tree takes on, for "boosting". "auto" is the rate that
        the model was trained with, as its library tells it, or else its leaves: from complete
        training rows the leaves that come out are then those of the model itself. It is raised,
        up to 1, where the expected loss would otherwise rise: with few trees, small steps do not
        get as far on rows with holes. Where nothing tells it, it is chosen by cross-validation.
        The paper has 1.
    condition_on_target : bool
        Whether training holes are filled from p(x_m | x_o, y), with a density over (X, y) that
        serves for this alone: the model's own density if that was fitted with a target, otherwise
        one like it that is fitted here. Predictions go on without y, under p(X). False is the
        paper's p(x_m | x_o).
    target_form : {"auto", "values", "scores"}
        How a numeric target is given to that density: as it is, or as normal scores. "auto" goes
        by held-out log p(x_o | y).
    holes : {"all", "auto"} or bool array (rows, columns)
        Which NaN are integrated over, while tuning and (unless it is a mask) by default in what
        is returned. With "all", a density that has "not recorded" as a state is learned anew
        without; wrapping with ``holes="all"`` saves the time.
    unseen : {"error", "hole"}
        What becomes of categories that the model has never seen.
    integrate : bool array (columns,), optional
        Columns in which ``holes="auto"`` integrates; by default as the model was wrapped.
    samples : {"whole", "bootstrap"}
        Rows that each tree and its density learn from: the whole table, or the tree's own
        bootstrap sample, replayed for forests and bags of scikit-learn. X and y are then what
        the model was trained on, in that order, without ``sample_weight``.
    counts : int array (trees, rows), optional
        How often each row is in each tree's own sample, where "bootstrap" cannot tell.
    sample_weight : array (rows,), optional
        Weights of the rows.
    reach : {"auto", "exact", "completions"}
        How holes are integrated. "auto" is exact where the density allows and pairs of trees
        are few; losses that are not squares need completions, but for trees by themselves.
    draws : int
        Completions of each row, a multiple of 64, for the expected loss. Deployed predictions
        have as many as they always have.
    seed : int
        Of completions.
    verbose : bool or "auto"
        Whether to show progress on the error stream; "auto": where it is a terminal or this a
        notebook, and it takes more than two seconds.
    n_jobs : int, optional
        Threads, counted as scikit-learn does; by default all cores. The result does not depend
        on it.

    Examples
    --------
    >>> TuningOptions(ridge=2.0).changed(method="boosting").ridge
    2.0
    >>> TuningOptions().changed(rigde=2.0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    knothole.errors.InvalidInput: tune has no option 'rigde'; its options are ridge, ridge_to, ...
    """

    ridge: float | Literal["auto"] = "auto"
    ridge_to: RidgeTo = "start"
    method: Method = "auto"
    objective: Objective = "auto"
    learning_rate: float | Literal["auto"] = "auto"
    condition_on_target: bool = True
    target_form: Form = "auto"
    holes: Holes = "all"
    unseen: Unseen = "error"
    integrate: NDArray[np.bool_] | None = None
    samples: Samples = "whole"
    counts: NDArray[np.integer[Any]] | None = None
    sample_weight: Any = None
    reach: Reach = "auto"
    draws: int = DRAWS
    seed: int = 0
    verbose: Verbose = "auto"
    n_jobs: int | None = None

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            check_choice(name, getattr(self, name), allowed)
        if isinstance(self.holes, str) and self.holes not in ("all", "auto"):
            raise InvalidInput(f"holes must be 'all', 'auto' or a mask; got {self.holes!r}.")
        check_number("ridge", self.ridge, also=["auto"])
        check_number("learning_rate", self.learning_rate, above=0, most=1, also=["auto"])
        check_choice("verbose", self.verbose, ("auto", True, False))
        if self.draws < DRAWS or self.draws % DRAWS:
            raise InvalidInput(f"draws must be a multiple of {DRAWS}; got {self.draws!r}.")
        for name in ("counts", "sample_weight"):
            if self.samples == "bootstrap" and getattr(self, name) is not None:
                raise InvalidInput(
                    f"samples='bootstrap': {name} cannot be given as well; how much a row counts "
                    f"is how often it was drawn."
                )

    @property
    def threads(self) -> int | None:
        """How many threads ``n_jobs`` stands for; None for the default."""
        return threads_of(self.n_jobs)

    def changed(self, **options: Any) -> TuningOptions:
        """These options with some of them changed."""
        known = [field.name for field in fields(self)]
        for name in options:
            if name not in known:
                raise InvalidInput(
                    f"tune has no option {name!r}; its options are {', '.join(known)}."
                )
        return replace(self, **options)
