"""``Robust``: a tree model and a density, answering rows with missing values as the model would."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from html import escape
from importlib.resources import files
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Union, overload

import numpy as np
from numpy.typing import NDArray

from knothole import storage
from knothole.arrays import Floats
from knothole.checks import check_choice, check_number
from knothole.columns.columns import Columns, Evidence
from knothole.columns.evidence import checked_lost
from knothole.columns.outputs import like, pandas_index
from knothole.columns.read import Absent, HandleUnknown, class_of, listed
from knothole.densities.base import Density
from knothole.densities.held_out import sample_rows
from knothole.densities.names import name_of
from knothole.errors import ColumnMismatch, InvalidInput, NotFitted, UnknownRate
from knothole.expectation.expectation import Expectation
from knothole.expectation.tolerance import check_tol
from knothole.missingness.inference import (
    LossPrior,
    NanPolicy,
    Reading,
    learn_rates,
    reasons,
)
from knothole.out_of_core.lazy import lazily
from knothole.threads import threads_of
from knothole.trees.classes import (
    by_class,
    class_lists,
    flat,
    is_classifier,
    label,
    of_label,
    output_labels,
    probabilities,
    require_target,
)
from knothole.trees.curves import HAZARD, SURVIVAL
from knothole.trees.ensemble import Ensemble
from knothole.trees.libraries import library_of, reader_of

# What answers arrays needs numpy and the core alone: other methods import what they need.
if TYPE_CHECKING:
    import pandas as pd
    from scipy import sparse

    from knothole.inspection.acquisition import Acquisition
    from knothole.inspection.conformal import Conformal
    from knothole.inspection.correction import Correction
    from knothole.inspection.shapley import Explanation, Groups
    from knothole.leaves.options import RefitOptions, RefitSummary
    from knothole.serve import Serving

F = TypeVar("F", bound=Callable[..., Any])
# Rows that loss rates are learned from, at most.
DEPLOYED_ROWS = 5000

#: Tables that are answered by arrays.
Arrays = NDArray[Any] | list[Any]
#: A table, or what makes it once it is asked for: :func:`load` does without pandas.
Table = Union["pd.DataFrame", Callable[[], "pd.DataFrame"], None]
Quantiles = Sequence[float] | float | Literal["mean"] | None


class _ForClassifiers:
    def __init__(self, method: Any) -> None:
        self._method = method

    def __get__(self, robust: Any, owner: Any = None) -> Any:
        if robust is None:
            return self._method
        robust._require_classifier(self._method.__name__)
        return MethodType(self._method, robust)


def for_classifiers(method: F) -> F:
    """Decorate a method that a wrapped regressor does not have: ``hasattr`` is False.

    As scikit-learn's ``available_if``, but the error says what to use instead.
    """
    return _ForClassifiers(method)  # type: ignore[return-value]


class _ForTask:
    def __init__(self, method: Any, task: str) -> None:
        self._method, self._task = method, task

    def __get__(self, robust: Any, owner: Any = None) -> Any:
        if robust is None:
            return self._method
        if robust.ensemble_.recipe.task != self._task:
            raise AttributeError(
                f"{self._method.__name__}: the wrapped {robust.model_name_} is no "
                f"{TASKS[self._task]}; use predict."
            )
        return MethodType(self._method, robust)


def for_task(task: str) -> Callable[[F], F]:
    """Decorate a method that only models of a task have (:class:`.Recipe`), likewise."""
    return lambda method: _ForTask(method, task)  # type: ignore[return-value]


class _Made:
    """An attribute that is a table, or what makes it: then it is made when it is asked for."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    def __get__(self, robust: Any, owner: Any = None) -> Any:
        if robust is None:
            return self
        table = getattr(robust, self._name)
        if callable(table):
            table = table()
            setattr(robust, self._name, table)
        return table

    def __set__(self, robust: Any, table: Table) -> None:
        setattr(robust, self._name, table)


# What models of a task are called.
TASKS = {"anomaly": "isolation forest", "survival": "survival forest"}
# Decision functions this close to 0 are so by rounding alone: the library has 0, and an inlier.
ROUNDING = 1e-12


class Robust:
    """A fitted tree model that answers rows with missing values by its expected prediction.

    Made by :func:`wrap`. All methods take a table with the model's columns, in any order where they
    have names, or what :meth:`encode` made of a table. They share these arguments:

    - ``lost``, booleans (rows, columns), marks missing values that are known to have been lost, in
      columns where they may also mean "not recorded" (see :attr:`nan_policy_`);
    - ``handle_unknown``, "error" or "missing", says what a category is that training did not have;
    - ``absent``, "error" or "missing", says what a column is that the table does not have;
    - ``n_jobs`` is the number of threads, -1 for all cores.

    Auxiliary columns (see :func:`wrap`) may be absent from tables and from the ``lost`` mask.

    Answers to tables of pandas (with their index), polars and Arrow are tables of the same library;
    answers to anything else are arrays. A Dask DataFrame or Array gives a lazy one, which is
    computed on the workers.

    To scikit-learn it is a fitted regressor or classifier whose ``fit`` does nothing, so that its
    tools for inspection, model selection, calibration and thresholds take it.

    Attributes
    ----------
    ensemble_ : Ensemble
        The model's trees.
    density_ : Density
        What missing values are integrated under.
    columns_ : Columns
        The columns, as the training table showed them.
    selection_ : pandas.DataFrame or None
        How the candidates for the density did; None where the density was given.
    nan_policy_ : {"infer", "lost", "native"}
        What a missing value means in a column that had missing values in training: see
        :func:`wrap`.
    loss_prior_ : LossPrior or None
        The prior of which values are lost; None where a missing value carries no information, or
        where loss rates were learned (:meth:`adapt`).
    prior_selection_ : pandas.DataFrame or None
        How such priors did on held-out rows, where one was chosen by y.
    refit_ : RefitSummary or None
        What :meth:`refit_leaves` did.
    conformal_ : Conformal or None
        What :meth:`conformalize` learned.
    correction_ : pandas.DataFrame or None
        What correcting expected predictions gains, as a share of their squared (or log) loss
        against the model's own output, on rows held out: where other columns determine what is
        missing, where a column is gone, and where other missing values are; the number of trees,
        the ``share`` of their step that is taken, whether they were ``kept``, and ``why`` not. None
        where no correction was looked for.
    """

    selection_ = _Made()
    prior_selection_ = _Made()
    correction_ = _Made()

    def __init__(
        self,
        expectation: Expectation,
        model: Any = None,
        *,
        name: str | None = None,
        selection: Table = None,
        prior_selection: Table = None,
        refit: RefitSummary | None = None,
        conformal: Conformal | None = None,
        correction: Correction | None = None,
        correction_table: Table = None,
    ) -> None:
        self.expectation_ = expectation
        self.selection_ = selection
        self.prior_selection_ = prior_selection
        self.refit_ = refit
        self.conformal_ = conformal
        self.correction_ = correction_table
        self.learned_correction = correction
        self._corrected = expectation
        if correction is not None:
            from knothole.inspection.correction import Corrected

            self._corrected = Corrected.by(expectation, correction)
        self.model_name_ = _name(model) if name is None else name
        self._model = model

    @property
    def ensemble_(self) -> Ensemble:
        """The model's trees."""
        return self.expectation_.original

    @property
    def density_(self) -> Density:
        """What missing values are integrated under."""
        return self.expectation_.density

    @property
    def columns_(self) -> Columns:
        """The columns, as the training table showed them."""
        return self.expectation_.columns

    @property
    def nan_policy_(self) -> NanPolicy:
        """What a missing value means in a column that had missing values in training."""
        return self.expectation_.reading.policy

    @property
    def loss_prior_(self) -> LossPrior | None:
        """What is taken to be lost before a row is seen."""
        return self.expectation_.reading.prior

    @property
    def loss_rates_(self) -> dict[str, float] | None:
        """How often each variable is lost, where :meth:`adapt` has learned it."""
        rates = self.expectation_.reading.rates
        if rates is None:
            return None
        names = [variable.name for variable in self.columns_.variables]
        return dict(zip(names, rates.tolist(), strict=True))

    @property
    def classes_(self) -> Any:
        """Labels of a classifier; a list of them for several targets."""
        self._require_classifier("classes_")
        lists = [np.asarray(labels) for labels in class_lists(self.ensemble_)]
        return lists[0] if len(lists) == 1 else lists

    # ---- predictions ---------------------------------------------------------------------------

    def encode(
        self,
        X: Any,
        lost: Any = None,
        *,
        handle_unknown: HandleUnknown = "error",
        absent: Absent = "error",
    ) -> Evidence:
        """What is known of each row: to ask several questions of rows that are encoded once.

        Examples
        --------
        >>> import knothole as kh
        >>> from sklearn.tree import DecisionTreeRegressor
        >>> model = DecisionTreeRegressor().fit([[0.0], [1.0]], [2.0, 3.0])
        >>> robust = kh.wrap(model, [[0.0], [1.0]] * 10, density=kh.Factorized())
        >>> rows = robust.encode([[np.nan]])
        >>> robust.predict(rows), robust.predict(rows, quantiles=[0.0, 1.0])
        (array([2.5]), array([[2., 3.]]))
        """
        if isinstance(X, Evidence):
            return X
        columns = self.columns_
        matrix = columns.matrix(X, handle_unknown, absent)
        mask = None if lost is None else checked_lost(columns.mask(lost, X), matrix, columns.names)
        return self.expectation_.evidence_of(matrix, mask, absent=self._absent(X, absent))

    def _absent(self, X: Any, absent: Absent) -> Sequence[int]:
        """Columns that a table may lack, and does."""
        may = absent == "missing" or self.columns_.auxiliary.any()
        return self.columns_.absent(X) if may else ()

    @overload
    def predict(
        self, X: Arrays, lost: Any = None, *,
        quantiles: Quantiles = None, corrected: bool = True,
        handle_unknown: HandleUnknown = "error", absent: Absent = "error",
        n_jobs: int | None = None,
    ) -> NDArray[Any]: ...  # fmt: skip
    @overload
    def predict(
        self, X: pd.DataFrame, lost: Any = None, *,
        quantiles: Quantiles = None, corrected: bool = True,
        handle_unknown: HandleUnknown = "error", absent: Absent = "error",
        n_jobs: int | None = None,
    ) -> pd.Series[Any] | pd.DataFrame: ...  # fmt: skip
    @overload
    def predict(
        self, X: Arrays, lost: Any = None, *,
        return_std: Literal[True], return_error: bool = False,
        quantiles: Quantiles = None, corrected: bool = True,
        handle_unknown: HandleUnknown = "error", absent: Absent = "error",
        n_jobs: int | None = None,
    ) -> tuple[NDArray[Any], ...]: ...  # fmt: skip
    @overload
    def predict(
        self, X: Any, lost: Any = None, *,
        return_std: bool = False, return_error: bool = False,
        quantiles: Quantiles = None, corrected: bool = True,
        handle_unknown: HandleUnknown = "error", absent: Absent = "error",
        n_jobs: int | None = None,
    ) -> Any: ...  # fmt: skip

    @lazily
    def predict(
        self,
        X: Any,
        lost: Any = None,
        *,
        return_std: bool = False,
        return_error: bool = False,
        quantiles: Quantiles = None,
        corrected: bool = True,
        handle_unknown: HandleUnknown = "error",
        absent: Absent = "error",
        n_jobs: int | None = None,
    ) -> Any:
        """Expected prediction given what is observed: shape and meaning of the model's ``predict``.

        A row without missing values has the model's own prediction.

        An isolation forest has -1 for rows whose expected score is below its threshold, 1 for
        others; a quantile forest quantiles of y; a survival forest the expected risk.

        Parameters
        ----------
        X : table
        lost : bool (rows, columns), optional
            Missing values that are known to have been lost; see the class.
        return_std : bool
            Whether to return also the standard deviation that the missing values cause; for a
            classifier that of the predicted label's probability, for an isolation forest of the
            score, for a quantile forest of the mean of y.
        return_error : bool
            Whether to return also the standard error of every answer, after them: 0 where it is
            exact, otherwise that of the draws it comes from. For a classifier that of the
            predicted label's probability.
        quantiles : sequence of float, optional
            Return these quantiles of what the model predicts instead, (rows, quantiles). A model
            that predicts a number says nothing of how far y is from it: its quantiles are about
            missing values alone, where the model's answer would be were they known. (How far y
            may be is answered by :meth:`predict_interval`.) A quantile forest predicts a
            distribution of y, and has the quantiles of that, averaged over missing values; as in
            its library a single number or "mean" will do, one quantile has the shape (rows,), and
            without any the model's ``default_quantiles`` are returned.
        corrected : bool
            False leaves out the correction (:attr:`correction_`), if there is one.
        handle_unknown, absent, n_jobs
            See the class.

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
        task = self.ensemble_.recipe.task
        labels = is_classifier(self.ensemble_) or task == "anomaly"
        if quantiles is not None and labels:
            raise InvalidInput(
                "quantiles: they are for regressors only; use predict_proba(return_std=True) for a "
                "classifier and score_samples(return_std=True) for an isolation forest."
            )
        if quantiles is not None and return_std:
            raise InvalidInput("quantiles: they are returned alone; leave out return_std.")
        evidence = self.encode(X, lost, handle_unknown=handle_unknown, absent=absent)
        expectation = self._corrected if corrected else self.expectation_
        threads = threads_of(n_jobs)
        if task == "quantiles":
            return self._predict_quantiles(
                X, evidence, quantiles, return_std, return_error, threads
            )
        if quantiles is not None:
            if isinstance(quantiles, str | float | int):
                raise InvalidInput(
                    f"quantiles must be a sequence of numbers from 0 to 1; got {quantiles!r}."
                )
            values = expectation.quantiles(evidence, quantiles, threads=threads)
            if self.ensemble_.n_responses == 1:
                values = tuple(like(X, each[:, 0], list(quantiles)) for each in values)
            return values if return_error else values[0]
        mean, *beside = _predicted(expectation, evidence, return_std, return_error, threads)
        if is_classifier(self.ensemble_):
            shares = probabilities(self.ensemble_, mean)
            beside = [of_label(shares, by_class(self.ensemble_, each)) for each in beside]
            return _alone([like(X, each) for each in (label(self.ensemble_, shares), *beside)])
        answers = [flat(each) for each in (mean, *beside)]
        if task == "anomaly":
            answers[0] = np.where(answers[0] - self._offset < -ROUNDING, -1, 1)
        return _alone([like(X, each) for each in answers])

    def _predict_quantiles(
        self,
        X: Any,
        evidence: Evidence,
        quantiles: Quantiles,
        return_std: bool,
        return_error: bool,
        threads: int | None,
    ) -> Any:
        """Quantiles of y by a quantile forest, in the shape that its library gives them."""
        levels = _levels(self.ensemble_.recipe.quantiles if quantiles is None else quantiles)

        def shown(values: Floats) -> Any:
            values = values[:, :, 0] if values.shape[2] == 1 else values
            values = values[:, 0] if values.shape[1] == 1 else values
            if values.ndim == 3:
                return values
            named = values.ndim == 2 and len(levels) > 1
            return like(X, values, levels.tolist() if named else None)

        value, error = self.expectation_.quantiles_of_samples(evidence, levels, threads=threads)
        parts = [[shown(value)], [shown(error)]]
        if return_std:
            both = self.expectation_.std(evidence, threads=threads)
            for part, each in zip(parts, both, strict=True):
                part.append(like(X, flat(each)))
        return _alone(parts[0] + parts[1] if return_error else parts[0])

    # ---- anomaly scores, survival ----------------------------------------------------------------

    @property
    def _offset(self) -> float:
        """The score below which a row is an anomaly."""
        offset = self.ensemble_.recipe.offset
        assert offset is not None
        return offset

    @for_task("anomaly")
    @lazily
    def score_samples(
        self,
        X: Any,
        lost: Any = None,
        *,
        return_std: bool = False,
        return_error: bool = False,
        corrected: bool = True,
        handle_unknown: HandleUnknown = "error",
        absent: Absent = "error",
        n_jobs: int | None = None,
    ) -> Any:
        """Expected score of an isolation forest given what is observed: lower, more abnormal.

        As ``IsolationForest.score_samples``, whose value complete rows have. ``return_std`` adds
        the standard deviation that missing values cause, ``return_error`` the standard errors of
        what is returned: the mean depth is linear in the leaves, the score is not, so that it is
        exact where one number is missing under a mixture, and drawn elsewhere.

        Examples
        --------
        >>> import knothole as kh
        >>> from sklearn.ensemble import IsolationForest
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(300, 1)) + 0.1 * rng.normal(size=(300, 2))
        >>> model = IsolationForest(random_state=0).fit(X)
        >>> robust = kh.wrap(model, X, density=kh.Mixture(4, random_state=0))
        >>> usual, unusual = robust.score_samples([[0.0, np.nan], [4.0, np.nan]])
        >>> bool(unusual < usual)
        True
        """
        evidence = self.encode(X, lost, handle_unknown=handle_unknown, absent=absent)
        expectation = self._corrected if corrected else self.expectation_
        parts = _predicted(expectation, evidence, return_std, return_error, threads_of(n_jobs))
        return _alone([like(X, flat(each)) for each in parts])

    @for_task("anomaly")
    @lazily
    def decision_function(
        self,
        X: Any,
        lost: Any = None,
        *,
        return_std: bool = False,
        return_error: bool = False,
        corrected: bool = True,
        handle_unknown: HandleUnknown = "error",
        absent: Absent = "error",
        n_jobs: int | None = None,
    ) -> Any:
        """:meth:`score_samples` less the threshold of the model: below 0 for anomalies."""
        evidence = self.encode(X, lost, handle_unknown=handle_unknown, absent=absent)
        expectation = self._corrected if corrected else self.expectation_
        parts = _predicted(expectation, evidence, return_std, return_error, threads_of(n_jobs))
        parts[0] = parts[0] - self._offset
        return _alone([like(X, flat(each)) for each in parts])

    @for_task("survival")
    @lazily
    def predict_survival_function(
        self,
        X: Any,
        lost: Any = None,
        *,
        times: Sequence[float] | None = None,
        return_error: bool = False,
        handle_unknown: HandleUnknown = "error",
        absent: Absent = "error",
        n_jobs: int | None = None,
    ) -> Any:
        """Expected probability of surviving beyond each time, (rows, times).

        ``times`` are by default those of the model, its ``unique_times_``. Exact where leaf
        probabilities are; ``return_error`` adds standard errors.
        """
        evidence = self.encode(X, lost, handle_unknown=handle_unknown, absent=absent)
        return self._curve(SURVIVAL, X, evidence, times, return_error, threads_of(n_jobs))

    @for_task("survival")
    @lazily
    def predict_cumulative_hazard_function(
        self,
        X: Any,
        lost: Any = None,
        *,
        times: Sequence[float] | None = None,
        return_error: bool = False,
        handle_unknown: HandleUnknown = "error",
        absent: Absent = "error",
        n_jobs: int | None = None,
    ) -> Any:
        """Expected cumulative hazard until each time, (rows, times).

        As :meth:`predict_survival_function` in all else.
        """
        evidence = self.encode(X, lost, handle_unknown=handle_unknown, absent=absent)
        return self._curve(HAZARD, X, evidence, times, return_error, threads_of(n_jobs))

    def _curve(
        self, name: str, X: Any, evidence: Evidence, times: Any, return_error: bool,
        threads: int | None,
    ) -> Any:  # fmt: skip
        from scipy import sparse

        if name not in self.ensemble_.curves:
            raise InvalidInput(
                f"the {name} is not known: the {self.model_name_} was fitted with low_memory=True. "
                f"Fit it with low_memory=False."
            )
        curves = self.ensemble_.curves[name]
        asked = curves.grid if times is None else np.asarray(times, dtype=np.float64)
        if asked.ndim != 1 or not ((asked >= 0) & (asked <= curves.grid[-1])).all():
            raise InvalidInput(
                f"times must be numbers from 0 to {curves.grid[-1]:g}, the last time of the "
                f"model's training; got {times!r}."
            )
        places = np.searchsorted(curves.grid, asked, side="right") - 1

        def answer(probabilities: sparse.csr_matrix) -> Floats:
            return curves.at(sparse.csr_matrix(probabilities @ curves.jumps), places)

        found = self.expectation_.of_curves(evidence, answer, threads=threads)
        parts = [like(X, each, asked.tolist()) for each in found]
        return tuple(parts) if return_error else parts[0]

    @for_classifiers
    @lazily
    def predict_proba(
        self,
        X: Any,
        lost: Any = None,
        *,
        return_std: bool = False,
        return_error: bool = False,
        corrected: bool = True,
        handle_unknown: HandleUnknown = "error",
        absent: Absent = "error",
        n_jobs: int | None = None,
    ) -> Any:
        """Expected probabilities of the classes, (rows, classes), and if asked more.

        ``return_std`` adds the standard deviation that the missing values cause, ``return_error``
        the standard errors of what is returned, after it. A classifier of several targets has lists
        of tables, as in scikit-learn. ``corrected=False`` leaves out the correction
        (:attr:`correction_`), if there is one.
        """
        ensemble = self.ensemble_
        evidence = self.encode(X, lost, handle_unknown=handle_unknown, absent=absent)
        expectation = self._corrected if corrected else self.expectation_
        threads = threads_of(n_jobs)
        mean, *beside = _predicted(expectation, evidence, return_std, return_error, threads)
        parts = [probabilities(ensemble, mean), *(by_class(ensemble, each) for each in beside)]
        return _alone([_class_tables(X, class_lists(ensemble), each) for each in parts])

    @lazily
    def margin(
        self,
        X: Any,
        lost: Any = None,
        *,
        return_error: bool = False,
        handle_unknown: HandleUnknown = "error",
        absent: Absent = "error",
        n_jobs: int | None = None,
    ) -> Any:
        """Expected margin (Prop. 1): (rows,), or (rows, outputs) where there are several.

        With ``return_error`` also its standard error, 0 where the density allows exact answers.
        Corrections apply to predictions; margins are always those under the density.
        """
        evidence = self.encode(X, lost, handle_unknown=handle_unknown, absent=absent)
        mean_and_error = self.expectation_.margin(evidence, threads=threads_of(n_jobs))
        margin, error = (like(X, flat(each)) for each in mean_and_error)
        return (margin, error) if return_error else margin

    def leaf_probabilities(
        self,
        X: Any,
        lost: Any = None,
        *,
        handle_unknown: HandleUnknown = "error",
        absent: Absent = "error",
        n_jobs: int | None = None,
    ) -> sparse.csr_matrix:
        """Probability that each row reaches each leaf, sparse (rows, leaves)."""
        evidence = self.encode(X, lost, handle_unknown=handle_unknown, absent=absent)
        return self.expectation_.leaf_probabilities(evidence, threads=threads_of(n_jobs))

    @lazily
    def lost_probability(
        self,
        X: Any,
        lost: Any = None,
        *,
        handle_unknown: HandleUnknown = "error",
        absent: Absent = "error",
    ) -> Any:
        """The probability that each missing value was recorded, and lost, (rows, columns).

        NaN where a value is observed. It is 1 in columns that had no missing values in training,
        and where ``lost`` says so. In the others it is what the row's observed values, its other
        missing values and :attr:`loss_prior_` make of it; 0 under the policy "native", NaN under a
        density of your own. All columns of a one-hot group have the probability of the group.

        Examples
        --------
        >>> import knothole as kh
        >>> from sklearn.ensemble import HistGradientBoostingRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(400, 2)).round()
        >>> X[X[:, 0] < 0, 1] = np.nan  # the second column is recorded where the first is >= 0
        >>> model = HistGradientBoostingRegressor().fit(X, X[:, 0])
        >>> robust = kh.wrap(model, X, density=kh.Mixture(4, random_state=0))
        >>> usual, unusual = robust.lost_probability([[-1.0, np.nan], [2.0, np.nan]])[:, 1]
        >>> bool(usual < 0.1), bool(unusual > 0.9)
        (True, True)
        """
        columns = self.columns_
        evidence = self.encode(X, lost, handle_unknown=handle_unknown, absent=absent)
        out = np.full((len(evidence.points), len(columns)), np.nan)
        found = self.expectation_.lost_probability(evidence)
        for v, variable in enumerate(columns.variables):
            out[:, list(variable.columns)] = found[:, v : v + 1]
        if not isinstance(X, Evidence):
            out[~np.isnan(columns.matrix(X, handle_unknown, absent))] = np.nan
        return like(X, out, list(columns.names))

    def score(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        lost: Any = None,
        *,
        handle_unknown: HandleUnknown = "error",
        absent: Absent = "error",
        n_jobs: int | None = None,
    ) -> float:
        """R squared of a regressor's predictions, accuracy of a classifier's."""
        from sklearn.metrics import accuracy_score, r2_score

        require_target(self.ensemble_, "score")
        measure = accuracy_score if is_classifier(self.ensemble_) else r2_score
        predicted = self.predict(
            X, lost, handle_unknown=handle_unknown, absent=absent, n_jobs=n_jobs
        )
        return float(measure(y, predicted, sample_weight=sample_weight))

    # ---- intervals and sets for y ----------------------------------------------------------------

    def conformalize(
        self,
        X: Any,
        y: Any,
        lost: Any = None,
        *,
        handle_unknown: HandleUnknown = "error",
        absent: Absent = "error",
        n_jobs: int | None = None,
    ) -> Self:
        """Learn how far y lies from predictions; needed for intervals and sets.

        The copy that is returned has :meth:`predict_interval` (regressors) or :meth:`predict_set`
        (classifiers).

        Parameters
        ----------
        X : table
            Rows that the model was *not* trained on, like those it will be asked about. They may
            have missing values; but complete rows serve every pattern, others only those that
            include theirs. At most 5,000 rows, drawn at random, are kept (and saved).
        y : array (rows,)
            Their targets, or labels. Where a regressor has several outputs, these are taken for
            quantiles of y, and intervals start from the lowest and the highest.
        lost : bool (rows, columns), optional
            Missing values that are known to have been lost; see the class.
        handle_unknown, absent, n_jobs
            See the class.

        Returns
        -------
        Robust
            With ``conformal_``.

        Examples
        --------
        >>> import numpy as np
        >>> import knothole as kh
        >>> from sklearn.tree import DecisionTreeRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(1000, 2))
        >>> y = X.sum(axis=1) + 0.1 * rng.normal(size=1000)
        >>> model = DecisionTreeRegressor(max_depth=6).fit(X[:500], y[:500])
        >>> robust = kh.wrap(model, X[:500], density=kh.Factorized())
        >>> robust = robust.conformalize(X[500:], y[500:])
        >>> known, partly = robust.predict_interval([[1.0, 1.0], [1.0, np.nan]])
        >>> bool(np.ptp(known) < np.ptp(partly))
        True
        """
        from knothole.inspection.conformal import Conformal

        ensemble = self.expectation_.original
        require_target(ensemble, "conformalize")
        targets = len(class_lists(ensemble))
        if not is_classifier(ensemble) and not ensemble.recipe.levels:
            targets = ensemble.n_responses
        if targets > 1:
            raise InvalidInput(
                f"conformalize: the model has {targets} targets, and intervals and sets are for "
                f"one; wrap and conformalize a model for each target."
            )
        evidence = self.encode(X, lost, handle_unknown=handle_unknown, absent=absent)
        conformalized = copy(self)
        conformalized.conformal_ = Conformal.learned(
            self._corrected, evidence, y, threads_of(n_jobs)
        )
        return conformalized

    @lazily
    def predict_interval(
        self,
        X: Any,
        confidence_level: float = 0.9,
        lost: Any = None,
        *,
        handle_unknown: HandleUnknown = "error",
        absent: Absent = "error",
        n_jobs: int | None = None,
    ) -> Any:
        """An interval that y is in with this probability, whatever the row's missing values.

        After :meth:`conformalize`. The promise is about rows like the calibration rows, and it
        holds for each pattern of missing values, not only on average over them: for patterns with
        200 or more calibration rows of their own whatever made values go missing, for others if
        they go missing by chance. Where observed values decide what goes missing, calibration rows
        are weighted by how probable the pattern is for them
        (:mod:`knothole.inspection.conformal` has the argument).

        A pattern that is asked about for the first time costs predictions for up to 1,000
        calibration rows. These do not tell which of their values were lost, so that ``lost`` does
        not change intervals. Of a one-hot group that is known in part, nothing is taken as known.

        Parameters
        ----------
        X : table
        confidence_level : float
            Probability that y is in the interval, between 0 and 1.
        lost : bool (rows, columns), optional
            Missing values that are known to have been lost; see the class.
        handle_unknown, absent, n_jobs
            See the class.

        Returns
        -------
        float64 (rows, 2), or DataFrame with the columns "low" and "high"

        Raises
        ------
        InvalidInput
            Where there are too few calibration rows for the confidence level.

        Warns
        -----
        FewCalibrationRows
            Where so few calibration rows fit that intervals may be 5 points off.
        """
        if is_classifier(self.ensemble_):
            raise InvalidInput(
                "predict_interval: the model is a classifier, and intervals are for numbers; use "
                "predict_set."
            )
        evidence = self.encode(X, lost, handle_unknown=handle_unknown, absent=absent)
        ends = self._conformalized("predict_interval").intervals(
            self._corrected, evidence, confidence_level, threads_of(n_jobs)
        )
        return like(X, ends, ["low", "high"])

    @for_classifiers
    @lazily
    def predict_set(
        self,
        X: Any,
        confidence_level: float = 0.9,
        lost: Any = None,
        *,
        handle_unknown: HandleUnknown = "error",
        absent: Absent = "error",
        n_jobs: int | None = None,
    ) -> Any:
        """The classes that y is one of with this probability, whatever the row's missing values.

        After :meth:`conformalize`; what is said of :meth:`predict_interval` holds here too. A set
        has the classes that are probable enough, and always the most probable one: a model that
        is right more often than the confidence level has sets of one class.

        Parameters
        ----------
        X, confidence_level, lost, handle_unknown, absent, n_jobs
            As for :meth:`predict_interval`.

        Returns
        -------
        bool (rows, classes), or DataFrame with a column for each class
            Whether the class is in the row's set.

        Examples
        --------
        >>> import knothole as kh
        >>> from sklearn.ensemble import RandomForestClassifier
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(1000, 2))
        >>> y = np.where(X[:, 0] < 0, "a", "b")
        >>> model = RandomForestClassifier(10, random_state=0).fit(X[:500], y[:500])
        >>> robust = kh.wrap(model, X[:500], density=kh.Factorized())
        >>> robust.conformalize(X[500:], y[500:]).predict_set([[1.0, 0.0], [np.nan, 0.0]])
        array([[False,  True],
               [ True,  True]])
        """
        evidence = self.encode(X, lost, handle_unknown=handle_unknown, absent=absent)
        within = self._conformalized("predict_set").sets(
            self._corrected, evidence, confidence_level, threads_of(n_jobs)
        )
        return like(X, within, class_lists(self.ensemble_)[0])

    def _conformalized(self, what: str) -> Conformal:
        if self.conformal_ is None:
            raise NotFitted(
                f"{what}: call robust.conformalize(X, y) first, with rows that the model was not "
                f"trained on, and use what it returns."
            )
        return self.conformal_

    # ---- explanations, acquisition, imputation --------------------------------------------------

    @lazily
    def explain(
        self,
        X: Any,
        groups: Groups | None = None,
        *,
        of: Literal["prediction", "margin"] = "prediction",
        tol: float | None = 0.02,
        lost: Any = None,
        handle_unknown: HandleUnknown = "error",
        absent: Absent = "error",
        n_jobs: int | None = None,
    ) -> Explanation:
        """Why each answer is what it is: conditional Shapley values of the expected prediction.

        A column's value is what knowing it adds to the expected prediction, averaged over all
        orders in which the row's columns can become known. The values of a row add up to
        E[f given the row] - E[f]. Missing values remain missing and have the value 0, except where
        training had missing values, too: there "not recorded" may tell something. A column that the
        model does not use has a value where it tells of others.

        Parameters
        ----------
        X : table
        groups : mapping from a name to columns, optional
            Columns that become known together and have one value. A one-hot group is one anyway.
        of : {"prediction", "margin"}
            What to take apart: for a classifier the probabilities of its classes (of the second
            one where there are two), or the margins before the link.
        tol : float, optional
            The standard error that values may have, as a share of the spread of the model's
            outputs. Where a row has few columns and the density is exact, values are exact. None
            for what the first orders and draws give.
        lost : bool (rows, columns), optional
            Missing values that are known to have been lost; see the class.
        handle_unknown, absent, n_jobs
            See the class.

        Returns
        -------
        Explanation
            With ``values``, ``errors``, ``base``, ``data``, ``lost_probability``; ``table()``,
            ``bar()``, ``beeswarm()``, and ``to_shap()`` for shap's own plots.

        Examples
        --------
        >>> import knothole as kh
        >>> from sklearn.tree import DecisionTreeRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(300, 1)) + 0.1 * rng.normal(size=(300, 2))
        >>> model = DecisionTreeRegressor(max_depth=4).fit(X * [1, 0], X[:, 0])
        >>> robust = kh.wrap(model, X, density=kh.Mixture(8, random_state=0))
        >>> first, second = robust.explain([[1.0, 1.0]]).values[0]
        >>> bool(first > 0.3 and second > 0.3)  # not used, but it tells of the first
        True
        """
        import pandas as pd

        from knothole.inspection.shapley import Explanation, Players, explain

        check_choice("of", of, ("prediction", "margin"))
        expectation = self.expectation_
        evidence = self.encode(X, lost, handle_unknown=handle_unknown, absent=absent)
        players = Players.of(expectation, groups)
        values, errors, base = explain(
            expectation, evidence, players, margins=of == "margin", tol=check_tol(tol),
            threads=threads_of(n_jobs),
        )  # fmt: skip
        one = values.shape[2] == 1
        said = players.described(evidence, expectation.columns)
        names, index = list(players.names), pandas_index(X)
        gone = players.of_variables(expectation.lost_probability(evidence))
        return Explanation(
            values[:, :, 0] if one else values,
            errors[:, :, 0] if one else errors,
            float(base[0]) if one else base,
            pd.DataFrame(said, index=index, columns=names, dtype=object),
            players.codes(evidence),
            output_labels(expectation.original, values.shape[2]),
            pd.DataFrame(gone, index=index, columns=names),
            of if of == "margin" or not is_classifier(expectation.original) else "probability",
        )

    @lazily
    def acquire(
        self,
        X: Any,
        cost: Mapping[str, float] | None = None,
        groups: Groups | None = None,
        *,
        criterion: Literal["brier", "entropy"] | None = None,
        budget: float | None = None,
        stop: float | None = None,
        lost: Any = None,
        handle_unknown: HandleUnknown = "error",
        absent: Absent = "error",
    ) -> Acquisition:
        """What to find out next: the expected gain of knowing each missing value.

        For a regressor the gain is what knowing the missing value is expected to take off the
        variance of the prediction that is due to missing values, the square of ``predict(X,
        return_std=True)[1]``; for a classifier, off the Brier score of its probabilities, or their
        entropy.

        Parameters
        ----------
        X : table
        cost : mapping from names to numbers above 0, optional
            What finding out a column, one-hot group or group costs; 1 where nothing is said.
        groups : mapping from a name to columns, optional
            Columns that are found out together, such as what one blood sample tells.
        criterion : {"brier", "entropy"}, optional
            For classifiers; by default the Brier score.
        budget : float, optional
            Plan what to find out for so much: one value after the other, each by what it
            adds to those before, for each unit of cost.
        stop : float, optional
            For classifiers: how sure the predicted label must be to remain, between 0 and 1. Rows
            where it is have no best one.
        lost : bool (rows, columns), optional
            Missing values that are known to have been lost; see the class.
        handle_unknown, absent
            See the class.

        Returns
        -------
        Acquisition
            With ``gain``, ``error``, ``per_cost``, ``best``, ``change``, ``plan``, ``table()``.

        Examples
        --------
        >>> import knothole as kh
        >>> from sklearn.tree import DecisionTreeRegressor
        >>> X = np.array([[a, b] for a in (0.0, 1.0) for b in (0.0, 1.0)] * 10)
        >>> model = DecisionTreeRegressor().fit(X, 4 * X[:, 0] + X[:, 1])
        >>> robust = kh.wrap(model, X, density=kh.Factorized())
        >>> found = robust.acquire([[np.nan, np.nan]])
        >>> found.best[0], found.gain.round(2).to_numpy().tolist()
        ('x0', [[4.0, 0.25]])
        >>> robust.acquire([[np.nan, np.nan]], cost={"x0": 20.0}).best[0]
        'x1'
        """
        from knothole.inspection.acquisition import Gains, acquisition, costs
        from knothole.inspection.shapley import Players

        ensemble = self.expectation_.original
        sure = is_classifier(ensemble)
        if criterion not in ((None, "brier", "entropy") if sure else (None,)):
            raise InvalidInput(
                f"criterion must be 'brier' or 'entropy' for a classifier, and is left out for a "
                f"regressor; got {criterion!r}."
            )
        if stop is not None and not (sure and 0 < stop < 1):
            raise InvalidInput(
                f"stop must be between 0 and 1, and is for classifiers; got {stop!r}. For a "
                f"regressor look at the gains, or give a budget."
            )
        check_number("budget", budget, above=0, also=[None])
        players = Players.of(self.expectation_, groups)
        gains = Gains(
            self.expectation_,
            self.encode(X, lost, handle_unknown=handle_unknown, absent=absent),
            players,
            (criterion or "brier") if sure else "variance",
            sure and [len(names) for names in class_lists(ensemble)] == [2],
        )  # fmt: skip
        index = pandas_index(X)
        index = range(len(gains.evidence.points)) if index is None else index
        return acquisition(gains, costs(cost, players.names), budget, stop, index)

    @lazily
    def impute(
        self,
        X: Any,
        n_draws: int | None = None,
        lost: Any = None,
        *,
        not_recorded: bool = False,
        handle_unknown: HandleUnknown = "error",
        absent: Absent = "error",
    ) -> Any:
        """Complete rows: every missing value is drawn from p(missing values | observed values).

        Observed values come back bit for bit. A draw is not a best guess: draws vary as much as the
        truth may, so that the spread of a result over many draws shows how uncertain it is.
        Numbers with few different values in training are drawn from those values.

        Parameters
        ----------
        X : table
        n_draws : int, optional
            How many draws of each row; by default one.
        lost : bool (rows, columns), optional
            Missing values that are known to have been lost; only with ``not_recorded``, as all
            are taken as lost without it.
        not_recorded : bool
            True: in columns that had missing values in training, "not recorded" may be drawn too
            (unless ``lost`` says otherwise), and stays NaN. False: every missing value is filled.
        handle_unknown, absent
            See the class.

        Returns
        -------
        table
            Like ``X``: of its class, with its types, levels and columns. With ``n_draws`` a long
            table: all rows once, then all again, and a first column ``draw`` with the number of the
            draw.

        Notes
        -----
        Draws depend on what a row says and on the seed of :func:`wrap`: rows that say the same
        have the same draws, wherever they stand.

        Examples
        --------
        >>> import pandas as pd
        >>> import knothole as kh
        >>> from sklearn.tree import DecisionTreeRegressor
        >>> table = pd.DataFrame({"rooms": [2, 3, 4, 5] * 20, "size": [40.0, 60, 85, 120] * 20})
        >>> model = DecisionTreeRegressor().fit(table, table["size"])
        >>> robust = kh.wrap(model, table, density=kh.Mixture(4, random_state=0))
        >>> rows = pd.DataFrame({"rooms": [2, None], "size": [None, 120.0]})
        >>> robust.impute(rows)["rooms"].tolist()
        [2.0, 5.0]
        >>> robust.impute(rows, n_draws=2)["draw"].tolist()
        [0, 0, 1, 1]
        """
        from knothole.imputer import imputed

        check_choice("not_recorded", not_recorded, (True, False))
        expectation, columns = self.expectation_, self.columns_
        matrix = columns.matrix(X, handle_unknown, absent)
        mask = None if lost is None else checked_lost(columns.mask(lost, X), matrix, columns.names)
        evidence = expectation.evidence_of(
            matrix, mask if not_recorded else np.isnan(matrix), absent=self._absent(X, absent)
        )
        missing = np.isnan(evidence.points)
        where = np.zeros((len(missing), len(columns)), dtype=np.bool_)
        for v, variable in enumerate(columns.variables):
            members = list(variable.columns)
            where[:, members] = missing[:, v : v + 1] & np.isnan(matrix[:, members])
        return imputed(X, expectation.density, evidence, where, n_draws, expectation.seed)

    # ---- deployment --------------------------------------------------------------------------

    def adapt(
        self, X_deployed: Any, *, handle_unknown: HandleUnknown = "error", absent: Absent = "error"
    ) -> Robust:
        """Learn how often each column is lost from rows of the deployment; no y is needed.

        For data in which some columns fail more often than others. The returned model uses each
        column's own rate to infer whether a missing value was lost or not recorded.

        Parameters
        ----------
        X_deployed : table
            Rows of the deployment, a few hundred at least. At most 5,000, drawn at random, are
            used.
        handle_unknown, absent
            See the class.

        Returns
        -------
        Robust
            With ``loss_rates_``. Intervals and a correction belong to the old rates and are left
            behind.

        Warns
        -----
        UnknownRate
            Names the columns whose rate the rows cannot tell: "not recorded" is as probable there
            as "lost", whatever the rate.

        Examples
        --------
        >>> import knothole as kh
        >>> from sklearn.ensemble import HistGradientBoostingRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(500, 2))
        >>> X[:5, 0] = np.nan  # not recorded
        >>> model = HistGradientBoostingRegressor(max_iter=5).fit(X, X[:, 1])
        >>> robust = kh.wrap(model, X, density=kh.Mixture(2, random_state=0))
        >>> deployed = X[100:].copy()
        >>> deployed[rng.random(400) < 0.5, 0] = np.nan  # lost
        >>> bool(abs(robust.adapt(deployed).loss_rates_["x0"] - 0.5) < 0.1)
        True
        """
        expectation, columns = self.expectation_, self.columns_
        if expectation.reading.policy != "infer" or not columns.nullable.any():
            raise InvalidInput(
                "adapt: loss rates have no effect on this model, because its training table had no "
                "missing values or its nan_policy is not 'infer'; use it as it is, or wrap the "
                "model with nan_policy='infer' and a training table that has missing values."
            )
        matrix = columns.matrix(X_deployed, handle_unknown, absent)
        matrix = matrix[sample_rows(len(matrix), most=DEPLOYED_ROWS)]
        if not len(matrix):
            raise InvalidInput("adapt: X_deployed has no rows.")
        not_there = self._absent(X_deployed, absent)
        plain = replace(expectation, reading=Reading(prior=None))
        evidence = plain.evidence_of(matrix, absent=not_there)
        variables = columns.variables
        evidence, unknown, _ = reasons(evidence, variables, absent=not_there)
        rates, unsure = learn_rates(expectation.density, evidence, unknown, variables)
        if unsure.any():
            names = [v.name for v, flag in zip(variables, unsure, strict=True) if flag]
            warnings.warn(
                f"adapt: these rows do not tell how often {listed(names)} is lost: missing values "
                f"there are as probable lost as not recorded. If you know which values were lost, "
                f"pass a mask to predict (lost=).",
                UnknownRate,
                stacklevel=2,
            )
        return Robust(
            replace(expectation, reading=Reading(prior=None, rates=rates)),
            self._model,
            name=self.model_name_,
            selection=self.selection_,
            prior_selection=self.prior_selection_,
            refit=self.refit_,
        )

    # ---- new leaves --------------------------------------------------------------------------

    def refit_leaves(
        self,
        X: Any,
        y: Any,
        options: RefitOptions | None = None,
        *,
        sample_weight: Any = None,
        **changes: Any,
    ) -> Robust:
        """Refit leaf values on training rows with missing values.

        For models that were trained on such rows. A model that was trained on complete rows may
        become worse, above all a forest of columns that depend little on each other: compare both
        on held-out rows.

        Unless you pass ``nan_policy="native"``, the result averages over every missing value
        (``nan_policy_`` is "lost"), whatever the policy was before.

        Parameters
        ----------
        X : table
            Training rows, with missing values. Of a Dask DataFrame or Array, or the path of CSV or
            Parquet files, 200,000 rows drawn at random decide all choices; leaves are then refitted
            with sums over all rows.
        y : array (rows,)
            Their targets or labels. Where ``X`` is a Dask collection, a Dask Series or Array; where
            it is a path, the name of a column. The same holds for ``sample_weight``.
        options : RefitOptions, optional
        sample_weight : array (rows,), optional
        **changes
            Options by name, instead of those in ``options``: ``ridge``, ``method``,
            ``objective``, ``learning_rate``, ``condition_on_target``, ``nan_policy``,
            ``verbose`` and ``n_jobs``; see :class:`knothole.RefitOptions`.

        Returns
        -------
        Robust
            With new leaves and :attr:`refit_`, without the correction and the intervals of the old
            leaves: call :meth:`conformalize` again.

        Examples
        --------
        >>> import knothole as kh
        >>> from sklearn.tree import DecisionTreeRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(300, 2))
        >>> y = X.sum(axis=1)
        >>> X[rng.random(X.shape) < 0.3] = np.nan
        >>> model = DecisionTreeRegressor(max_depth=3, random_state=0).fit(X, y)
        >>> robust = kh.wrap(model, X, density=kh.Mixture(4, random_state=0), nan_policy="lost")
        >>> refitted = robust.refit_leaves(X, y)
        >>> refitted.refit_.after < refitted.refit_.before
        True
        """
        from knothole.leaves.options import RefitOptions
        from knothole.leaves.refit import refit
        from knothole.out_of_core.partitions import partitions_of, sample

        if not isinstance(self.density_, Density):
            raise InvalidInput(
                "refit_leaves: needs leaf probabilities, which a density of your own does not "
                "have; wrap the model with one of knothole's, such as density='auto'."
            )
        require_target(self.ensemble_, "refit_leaves")
        if self.ensemble_.curves:
            raise InvalidInput(
                f"refit_leaves: the leaves of a {self.model_name_} are samples of y, not numbers "
                f"to be found anew. Train it on weighted draws instead: knothole.expand."
            )
        expectation, options = self.expectation_, (options or RefitOptions()).changed(**changes)
        parts, drawn = partitions_of(X, y, sample_weight, self.columns_), None
        if parts is not None:
            drawn = sample(parts, seed=0)
            drawn.tell(options.verbose is True)
            X, y, sample_weight = drawn.table, drawn.y, drawn.weight
        lacking = [self.columns_.names[i] for i in self._absent(X, "error")]
        if lacking:
            raise ColumnMismatch(
                f"refit_leaves: X lacks the auxiliary columns {listed(lacking)}, which the model "
                f"was wrapped with. Pass a table that has them, or wrap the model without them."
            )
        matrix = self.columns_.matrix(X)
        refitted = refit(
            self.ensemble_, self.density_, matrix, y, options,
            sample_weight=sample_weight, drawn=drawn,
        )  # fmt: skip
        if refitted.density is not self.density_:
            expectation = expectation.under(refitted.density)
        if options.nan_policy != expectation.reading.policy:
            reading = Reading(options.nan_policy)
            expectation = replace(expectation, reading=reading)
        complete = (drawn is None or drawn.whole) and not np.isnan(matrix).any()
        return Robust(
            expectation.with_values(refitted.ensemble.value),
            self._model,
            name=self.model_name_,
            selection=self.selection_,
            refit=replace(refitted.summary, complete=complete),
        )

    # ---- the model's own library, and files -----------------------------------------------------

    def to_native(self, model: Any = None) -> Any:
        """A copy of the wrapped model with this one's leaf values, of the library's own class.

        It knows nothing of the density, nor of the correction.

        Parameters
        ----------
        model : object or path, optional
            The model that was wrapped; needed after :func:`load`, which does not keep it.
        """
        from knothole.trees.pipelines.composed import is_composed, write_over
        from knothole.trees.read import write

        model = self._model if model is None else model
        if model is None:
            raise InvalidInput(
                "to_native: a loaded file does not hold the library's own model; pass the model "
                "that was wrapped, to_native(model)."
            )
        if isinstance(model, (str, os.PathLike)):
            model = reader_of(library_of(model)).load(Path(model))
        return (write_over if is_composed(model) else write)(model, self.ensemble_)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything that predictions need to one file, without pickle."""
        storage.save(self, path)

    def whatif(self, **options: Any) -> Serving:
        """Serve a page on which this model is asked with unknown inputs, beside the session.

        Parameters
        ----------
        **options
            ``port``, ``host``, ``names``, ``token``, ``cost`` and ``browser`` of
            :func:`knothole.serve.whatif`.

        Returns
        -------
        Serving
            With its ``url``, and ``stop()``.

        Examples
        --------
        >>> import knothole as kh
        >>> from sklearn.tree import DecisionTreeRegressor
        >>> X = np.array([[0.0], [1.0]] * 10)
        >>> robust = kh.wrap(DecisionTreeRegressor().fit(X, X[:, 0]), X, density=kh.Factorized())
        >>> serving = robust.whatif()
        >>> serving.url.startswith("http://127.0.0.1:")
        True
        >>> serving.stop()
        """
        from knothole.serve import whatif

        return whatif(self, **options).start()

    # ---- what scikit-learn sees: an estimator that is fitted and stays as it is ------------------

    def fit(self, X: Any, y: Any = None, **options: Any) -> Self:
        """Do nothing: the model is fitted. scikit-learn's tools ask that there be a ``fit``."""
        return self

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """An empty dictionary: a fitted model has no parameters to set."""
        return {}

    @property
    def n_features_in_(self) -> int:
        """How many columns."""
        return len(self.columns_)

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """Names of the columns, where they have names."""
        if not self.columns_.named:
            raise AttributeError("feature_names_in_: the model's columns have no names.")
        return np.array(self.columns_.names, dtype=object)

    def _require_classifier(self, what: str) -> None:
        """Refuse what only classifiers have."""
        if not is_classifier(self.ensemble_):
            raise AttributeError(
                f"{what}: the wrapped {self.model_name_} is no classifier; use predict."
            )

    def __sklearn_clone__(self) -> Self:
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, RegressorTags, Tags, TargetTags

        ensemble = self.ensemble_
        classifier = is_classifier(ensemble)
        several = len(class_lists(ensemble)) > 1 if classifier else ensemble.n_responses > 1
        kind = "outlier_detector" if ensemble.recipe.task == "anomaly" else "regressor"
        return Tags(
            estimator_type="classifier" if classifier else kind,
            target_tags=TargetTags(required=False, multi_output=several),
            transformer_tags=None,
            classifier_tags=ClassifierTags() if classifier else None,
            regressor_tags=RegressorTags() if not classifier and kind == "regressor" else None,
            input_tags=InputTags(allow_nan=True, categorical=True, string=True),
        )

    # ---- shared --------------------------------------------------------------------------------

    def __repr__(self) -> str:
        sentences = [
            _say_model(self), _say_density(self), *_say_choice(self), *_say_prior(self),
            *_say_correction(self), *_say_refit(self), *_say_conformal(self),
        ]  # fmt: skip
        return f"Robust({'; '.join(sentences)})"

    def _repr_html_(self) -> str:
        """A box in the style of scikit-learn's diagrams, with the tables to unfold."""
        parts = [
            _line("model", _say_model(self)),
            _line("density", _say_density(self)),
            *(_line("chosen", sentence) for sentence in _say_choice(self)),
            _line("answers", _say_how(self)),
            *(_line("missing values", said) for said in [say_missing(self)] if said),
            *(_line("correction", sentence) for sentence in _say_correction(self)),
            *(_line("leaves", sentence) for sentence in _say_refit(self)),
            *(_line("conformal", sentence) for sentence in _say_conformal(self)),
        ]
        if self.selection_ is not None:
            parts.append(_folded("candidates", self.selection_))
        if self.prior_selection_ is not None:
            parts.append(_folded("what missing values mean", self.prior_selection_))
        style = files("knothole").joinpath("robust.css").read_text("utf-8")
        return (
            f"<style>{style}</style><div class='knothole-box' role='group' aria-label='Robust'>"
            f"<div class='knothole-title'>Robust</div><dl>{''.join(parts)}</dl></div>"
            f"<pre class='knothole-plain' hidden>{escape(repr(self))}</pre>"
        )


def _predicted(
    expectation: Expectation,
    evidence: Evidence,
    return_std: bool,
    return_error: bool,
    threads: int | None,
) -> list[Floats]:
    """The expected prediction; if asked its spread, then the standard errors of both."""
    mean, mean_error = expectation.predict(evidence, threads=threads)
    values, errors = [mean], [mean_error]
    if return_std:
        std, std_error = expectation.std(evidence, threads=threads)
        values, errors = [mean, std], [mean_error, std_error]
    return values + errors if return_error else values


def _levels(quantiles: Any) -> Floats:
    """Levels of quantiles, none for the mean."""
    if isinstance(quantiles, str) and quantiles == "mean":
        return np.empty(0)
    try:
        levels = np.atleast_1d(np.asarray(quantiles, dtype=np.float64))
    except (TypeError, ValueError):
        levels = np.array([np.nan])
    if levels.ndim != 1 or not ((levels >= 0) & (levels <= 1)).all():
        raise InvalidInput(
            f"quantiles must be a number from 0 to 1, several of them, or 'mean'; got "
            f"{quantiles!r}."
        )
    return levels


def _class_tables(X: Any, lists: tuple[list[Any], ...], values: list[Floats]) -> Any:
    """Numbers of each target's classes as tables like ``X``; one table for one target."""
    tables = [like(X, each, names) for names, each in zip(lists, values, strict=True)]
    if class_of(tables[0]) == ("pandas", "DataFrame"):
        from knothole.columns.shares import Shares

        tables = list(map(Shares, tables))
    return tables[0] if len(tables) == 1 else tables


def _alone(parts: list[Any]) -> Any:
    """One thing by itself, several as a tuple."""
    return parts[0] if len(parts) == 1 else tuple(parts)


def _name(model: Any) -> str:
    if isinstance(model, (str, os.PathLike)):
        return Path(model).name
    if isinstance(model, dict):
        return "trees of your own"
    from knothole.trees.pipelines.composed import last

    end = last(model)
    inside = "" if end is model else f" of {type(end).__name__}"
    return f"{type(model).__name__}{inside}"


def _line(name: str, sentence: str) -> str:
    return f"<dt>{escape(name)}</dt><dd>{escape(sentence)}</dd>"


def _folded(title: str, table: pd.DataFrame) -> str:
    body = table.to_html(index=False, border=0, na_rep="", float_format=lambda x: f"{x:.4g}")
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def _say_model(robust: Robust) -> str:
    ensemble = robust.ensemble_
    auxiliary = int(ensemble.columns.auxiliary.sum())
    beside = f", and {_count(auxiliary, 'auxiliary column')}" if auxiliary else ""
    return (
        f"{robust.model_name_} ({ensemble.library}), {_count(ensemble.n_trees, 'tree')} over "
        f"{_count(len(ensemble.columns) - auxiliary, 'column')}{beside}"
    )


def _say_density(robust: Robust) -> str:
    density: Any = robust.density_
    name = name_of(getattr(density, "density", density))
    for attribute, unit in (("states_", "state"), ("weights_", "component")):
        size = getattr(density, attribute, None)
        if size is not None and name != "independent":
            return f"{name} with {_count(size if np.isscalar(size) else len(size), unit)}"
    return name


def _say_choice(robust: Robust) -> list[str]:
    """How good the density is among those that were tried."""
    table = robust.selection_
    if table is None:
        return []
    chosen = table[table["chosen"]].iloc[0]
    if not np.isfinite(chosen["score"]):
        return [f"first of {len(table)} candidates, which too few rows could compare"]
    sentence = f"best of {len(table)} with a held-out {chosen['metric']} of {chosen['value']:.4g}"
    behind = table[~table["chosen"] & np.isfinite(table["behind"].astype(float))]
    if len(behind):
        second = behind.sort_values("behind").iloc[0]
        sentence += f" (next: {second['name']}, {second['value']:.4g})"
    return [sentence]


def say_missing(robust: Robust) -> str | None:
    """What missing values mean in columns that had some in training; None where none had."""
    if not robust.columns_.nullable.any():
        return None
    if robust.nan_policy_ == "native":
        return "The model takes them as it learned to: they were not recorded."
    (prior,) = _say_prior(robust)
    return (
        f"Whether they were not recorded, as in training, or lost is inferred row by row; {prior}."
    )


def _say_prior(robust: Robust) -> list[str]:
    """What is taken to be lost before a row is seen, where that is inferred."""
    if not robust.columns_.nullable.any() or robust.nan_policy_ != "infer":
        return []
    reading = robust.expectation_.reading
    prior, before = reading.prior, "none: a missing value is taken to be uninformative"
    if reading.rates is not None:
        before = "each column has a loss rate of its own, learned from deployment rows"
    elif prior is not None:
        chances = {
            "nothing was lost": prior.nothing,
            "a single column was lost": prior.column,
            f"values were lost at a rate of Beta({prior.a:g}, {prior.b:g})": prior.scattered,
        }
        before = ", ".join(f"{what}: {p:.0%}" for what, p in chances.items() if p > 0)
    by_y = robust.prior_selection_ is not None and reading.rates is None
    return [f"prior of losses{', chosen on held-out rows' if by_y else ''}: {before}"]


def _say_conformal(robust: Robust) -> list[str]:
    if robust.conformal_ is None:
        return []
    return [f"conformalized with {len(robust.conformal_.points):,} rows"]


def _say_refit(robust: Robust) -> list[str]:
    summary = robust.refit_
    if summary is None:
        return []
    if summary.complete:
        return [
            f"leaves refitted ({summary.method}) on rows without missing values: nothing to gain"
        ]
    of = "of deployed predictions" if summary.objective == "deployed" else "expected under p"
    return [
        f"leaves refitted ({summary.method}): {summary.loss} {of} {summary.before:.4g} -> "
        f"{summary.after:.4g}"
    ]


def _say_correction(robust: Robust) -> list[str]:
    """What the correction gains, or why there is none."""
    table = robust.correction_
    if table is None:
        return []
    kept = table[table["kept"].astype(bool)]
    if not len(kept):
        return [f"no correction: {str(table['why'].iloc[-1]).partition(';')[0]}"]
    gains = kept["gain"].astype(float)
    if not np.isfinite(gains).any():
        return ["corrected"]
    best = kept.loc[gains.idxmax()]
    at = "for" if best["missing"] == "determined by others" else "with"
    return [
        f"corrected for {_count(len(kept), 'kind')} of missing values, held-out loss up to "
        f"{100 * gains.max():.0f} % lower ({at} {best['missing']})"
    ]


def _say_how(robust: Robust) -> str:
    expectation = robust.expectation_
    how = "exact" if expectation.exact else "from draws, with a standard error"
    if not expectation.ensemble.link.linear:
        return f"margins {how}; predictions from draws"
    return how


def _count(n: Any, unit: str) -> str:
    return f"{n:,} {unit}{'' if n == 1 else 's'}"
