"""``Robust``: a tree model and a density, answering rows with holes as the model would."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy import sparse

from knothole.arrays import Floats
from knothole.densities.base import Density
from knothole.errors import InvalidInput
from knothole.estimators import answers, display, storage
from knothole.estimators.calibrating import Calibrating, Unseen
from knothole.learning.defaults import Method, Objective
from knothole.learning.tune import Report, tune
from knothole.questions.intervals import Calibration
from knothole.reach.expectation import Expectation, Holes, compile
from knothole.tables.columns import Columns, Evidence
from knothole.trees import libraries
from knothole.trees.ensemble import Ensemble
from knothole.trees.libraries.sklearn.bootstrap import bootstrap_counts
from knothole.trees.write import write

if TYPE_CHECKING:
    import pandas as pd


class Robust(Calibrating):
    """A fitted tree model that integrates over what it is not told; made by :func:`wrap`.

    All methods take a table with the model's columns and two further arguments. ``holes`` says
    which NaN are holes: "auto" (see :attr:`readings_`), "all", or a boolean mask (rows, columns).
    ``unseen`` says what a category is that training did not have: an "error", or a "hole".

    A pandas DataFrame in gives a Series or DataFrame out, with the same index; anything else gives
    arrays.

    Attributes
    ----------
    ensemble_ : Ensemble
        The model's trees.
    density_ : Density
        What holes are integrated under.
    columns_ : Columns
        The columns, as the training table showed them.
    selection_ : pandas.DataFrame or None
        How the candidates for the density did; None where the density was given.
    readings_ : pandas.DataFrame
        The columns that had NaN in training, and whether NaN is integrated over there or taken as
        the model's own value; with what integrating gains in the loss, where it was measured.
    holes_ : {"auto", "all"}
        What ``holes`` is by default.
    tuning_ : Report or None
        What :meth:`tune` did.
    calibration_ : Calibration or None
        What :meth:`calibrate` learned.
    """

    def __init__(
        self,
        expectation: Expectation,
        model: Any = None,
        *,
        name: str | None = None,
        selection: pd.DataFrame | None = None,
        readings: pd.DataFrame | None = None,
        holes: Literal["auto", "all"] = "auto",
        tuning: Report | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        self.expectation_ = expectation
        self.selection_ = selection
        self.readings_ = readings
        self.holes_ = holes
        self.tuning_ = tuning
        self.calibration_ = calibration
        self.model_name_ = _name(model) if name is None else name
        self._model = model

    @property
    def ensemble_(self) -> Ensemble:
        """The model's trees."""
        return self.expectation_.original

    @property
    def density_(self) -> Density:
        """What holes are integrated under."""
        return self.expectation_.density

    @property
    def columns_(self) -> Columns:
        """The columns, as the training table showed them."""
        return self.expectation_.columns

    @property
    def classes_(self) -> Any:
        """Labels of a classifier; a list of them for several targets."""
        self._require_classifier("classes_")
        lists = [np.asarray(labels) for labels in answers.class_lists(self.ensemble_)]
        return lists[0] if len(lists) == 1 else lists

    # ---- predictions ---------------------------------------------------------------------------

    def predict(
        self,
        X: Any,
        holes: Holes | None = None,
        *,
        return_std: bool = False,
        quantiles: Sequence[float] | None = None,
        unseen: Unseen = "error",
        threads: int | None = None,
    ) -> Any:
        """Expected prediction given what is observed: shape and meaning of the model's ``predict``.

        A row without holes has the model's own prediction.

        Parameters
        ----------
        X : table
        holes : "auto", "all" or mask, optional
        return_std : bool
            Whether to return also the standard deviation that the holes cause; for a classifier
            that of the predicted label's probability.
        quantiles : sequence of float, optional
            Return these quantiles of the prediction instead, (rows, quantiles). They are about
            the holes alone: where the model's answer would be, were the holes known. How far y
            may be is answered by :meth:`predict_interval`.
        unseen : {"error", "hole"}
        threads : int, optional

        Examples
        --------
        >>> import knothole as kh
        >>> from sklearn.tree import DecisionTreeRegressor
        >>> X = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]] * 10)
        >>> model = DecisionTreeRegressor().fit(X, 2 * X[:, 0] + X[:, 1])
        >>> robust = kh.wrap(model, X, density=kh.Factorized())
        >>> prediction, std = robust.predict([[1.0, np.nan]], return_std=True)
        >>> prediction, std
        (array([2.5]), array([0.5]))
        """
        evidence = self._evidence(X, holes, unseen)
        if quantiles is not None:
            return self._quantiles(X, evidence, quantiles, return_std, threads)
        response, _ = self.expectation_.predict(evidence, threads=threads)
        classifier = answers.is_classifier(self.ensemble_)
        values = answers.labels(self.ensemble_, response) if classifier else answers.flat(response)
        prediction = answers.like(X, values)
        if not return_std:
            return prediction
        std = self.expectation_.std(evidence, threads=threads)
        if classifier:
            std = answers.of_labels(self.ensemble_, response, std)
        return prediction, answers.like(X, answers.flat(std))

    def predict_proba(
        self,
        X: Any,
        holes: Holes | None = None,
        *,
        return_std: bool = False,
        unseen: Unseen = "error",
        threads: int | None = None,
    ) -> Any:
        """Expected probabilities of the classes, (rows, classes), and if asked their spread.

        A classifier of several targets has a list of them, as in scikit-learn.
        """
        self._require_classifier("predict_proba")
        evidence = self._evidence(X, holes, unseen)
        response, _ = self.expectation_.predict(evidence, threads=threads)
        proba = self._by_class(X, answers.probabilities(self.ensemble_, response))
        if not return_std:
            return proba
        std = self.expectation_.std(evidence, threads=threads)
        return proba, self._by_class(X, answers.spreads(self.ensemble_, std))

    def margin(
        self,
        X: Any,
        holes: Holes | None = None,
        *,
        return_error: bool = False,
        unseen: Unseen = "error",
        threads: int | None = None,
    ) -> Any:
        """Expected margin (Prop. 1): (rows,), or (rows, outputs) where there are several.

        With ``return_error`` also its standard error, 0 where the density allows exact answers.
        """
        evidence = self._evidence(X, holes, unseen)
        mean, error = self.expectation_.margin(evidence, threads=threads)
        margin = answers.like(X, answers.flat(mean))
        return (margin, answers.like(X, answers.flat(error))) if return_error else margin

    def reach(
        self,
        X: Any,
        holes: Holes | None = None,
        *,
        unseen: Unseen = "error",
        threads: int | None = None,
    ) -> sparse.csr_matrix:
        """Probability that each row reaches each leaf, sparse (rows, leaves)."""
        return self.expectation_.reach(self._evidence(X, holes, unseen), threads=threads)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R squared of a regressor's predictions, accuracy of a classifier's."""
        from sklearn.metrics import accuracy_score, r2_score

        measure = accuracy_score if answers.is_classifier(self.ensemble_) else r2_score
        return float(measure(y, self.predict(X), sample_weight=sample_weight))

    # ---- new leaves --------------------------------------------------------------------------

    def tune(
        self,
        X: Any,
        y: Any,
        *,
        ridge: float | Literal["auto"] = "auto",
        method: Method = "auto",
        objective: Objective = "auto",
        condition_on_target: bool = True,
        holes: Literal["auto", "all"] = "all",
        samples: Literal["whole", "bootstrap"] = "whole",
        **options: Any,
    ) -> Robust:
        """A model whose leaf values suit rows with holes.

        For models that were trained on such rows. The leaves of one that was trained on complete
        rows have been learned from more than rows with holes can tell, and where columns tell
        little of each other forests may lose: compare both on rows held out.

        Parameters
        ----------
        X : table
            Training rows, with holes.
        y : array (rows,)
            Their targets or labels.
        ridge : float or "auto"
            Weight, in rows, of what leaves are drawn to. "auto" is 0 for trees that are averaged
            (but for a single classification tree), otherwise 1.
        method : {"auto", "tree", "forest", "boosting"}
            Each tree by itself (Prop. 2), all leaves at once (Prop. 3), or each tree given the
            ones before it (Prop. 4), at the rate that the model was trained with. "auto" is the
            first where trees predict by themselves, the last where they are added up.
        objective : {"auto", "expected", "deployed"}
            "expected": leaves minimise the expected loss, as in the paper. "deployed": they go on
            from there towards the least squared error of expected predictions. "auto": "deployed"
            for regressions, if ``condition_on_target``.
        condition_on_target : bool
            Whether training holes are filled from p(x_m | x_o, y), with a density over (X, y)
            that serves for this alone. Predictions go on without y, under p(X).
        holes : {"all", "auto"}
            Which NaN are integrated over, while tuning and by default in what is returned. With
            "all", a density that has "not recorded" as a state is learned anew without; wrapping
            with ``holes="all"`` saves the time.
        samples : {"whole", "bootstrap"}
            Rows that each tree and its density learn from: the whole table, or the tree's own
            bootstrap sample, replayed for forests and bags of scikit-learn. ``X`` and ``y`` are
            then what the model was trained on, in that order, without ``sample_weight``.
        **options
            Further arguments of :func:`knothole.learning.tune.tune`, such as ``sample_weight``,
            ``learning_rate`` or ``draws``.

        Returns
        -------
        Robust
            With new leaves and :attr:`tuning_`.

        Examples
        --------
        >>> import knothole as kh
        >>> from sklearn.tree import DecisionTreeRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(300, 2))
        >>> y = X.sum(axis=1)
        >>> X[rng.random(X.shape) < 0.3] = np.nan
        >>> model = DecisionTreeRegressor(max_depth=3, random_state=0).fit(X, y)
        >>> robust = kh.wrap(model, X, density=kh.Mixture(4, random_state=0), holes="all")
        >>> tuned = robust.tune(X, y)
        >>> tuned.tuning_.after < tuned.tuning_.before
        True
        """
        if not isinstance(self.density_, Density):
            raise InvalidInput(
                "tune: a density of your own cannot be asked for what tuning needs; wrap the model "
                "with one of knothole's, such as density='auto'."
            )
        if samples not in ("whole", "bootstrap"):
            raise InvalidInput(f"samples must be 'whole' or 'bootstrap'; got {samples!r}.")
        if samples == "bootstrap":
            options["counts"] = bootstrap_counts(self._model, len(y), options)
        tuned = tune(
            self.ensemble_, self.density_, X, y, ridge=ridge, method=method,
            objective=objective, condition_on_target=condition_on_target, holes=holes,
            integrate=self.expectation_.integrate, **options,
        )  # fmt: skip
        tol, integrate = self.expectation_.completions.tol, self.expectation_.integrate
        return Robust(
            compile(tuned.ensemble, tuned.density, tol=tol, integrate=integrate),
            self._model,
            name=self.model_name_,
            selection=self.selection_,
            readings=self.readings_,
            holes=holes,
            tuning=tuned.report,
        )

    # ---- the model's own library, and files -----------------------------------------------------

    def to_native(self, model: Any = None) -> Any:
        """A copy of the wrapped model with this one's leaf values, of the library's own class.

        Parameters
        ----------
        model : object or path, optional
            The model that was wrapped; needed after :func:`load`, which does not keep it.
        """
        model = self._model if model is None else model
        if model is None:
            raise InvalidInput(
                "to_native: a loaded file does not hold the library's own model; pass the model "
                "that was wrapped, to_native(model)."
            )
        if isinstance(model, (str, os.PathLike)):
            model = _loaded(Path(model))
        return write(model, self.ensemble_)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything that predictions need to one file, without pickle."""
        storage.save(self, path)

    # ---- shared --------------------------------------------------------------------------------

    def _evidence(self, X: Any, holes: Holes | None, unseen: Unseen) -> Evidence:
        matrix = self.columns_.matrix(X, unseen)
        return self.expectation_.evidence_of(matrix, self.holes_ if holes is None else holes)

    def _quantiles(
        self,
        X: Any,
        evidence: Evidence,
        quantiles: Sequence[float],
        return_std: bool,
        threads: int | None,
    ) -> Any:
        if return_std or answers.is_classifier(self.ensemble_):
            raise InvalidInput(
                "quantiles: they are returned alone, and for regressors only; leave out "
                "return_std, or use predict_proba(return_std=True) for a classifier."
            )
        found = self.expectation_.quantiles(evidence, quantiles, threads=threads)
        if self.ensemble_.n_outputs > 1:
            return found
        return answers.like(X, found[:, 0], list(quantiles))

    def _by_class(self, X: Any, parts: list[Floats]) -> Any:
        lists = answers.class_lists(self.ensemble_)
        tables = [answers.like(X, part, names) for names, part in zip(lists, parts, strict=True)]
        return tables[0] if len(tables) == 1 else tables

    def _require_classifier(self, what: str) -> None:
        if not answers.is_classifier(self.ensemble_):
            raise AttributeError(
                f"{what}: the wrapped {self.model_name_} is no classifier; use predict."
            )

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return display.text(self)

    def _repr_html_(self) -> str:
        return display.html(self)


def _name(model: Any) -> str:
    if isinstance(model, (str, os.PathLike)):
        return Path(model).name
    return type(model).__name__


def _loaded(path: Path) -> Any:
    """A saved model as its library loads it."""
    with path.open("rb") as file:
        name = libraries.sniff(file.read(4096))
    return import_module(f"{libraries.__name__}.{name}.read").load(path)
