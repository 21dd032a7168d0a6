"""``Robust``: a tree model and a density, answering rows with holes as the model would."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from knothole import display, storage
from knothole.answers import Answers, class_lists, is_classifier
from knothole.columns.columns import Columns, Evidence
from knothole.columns.holes import Holes
from knothole.densities.base import Density
from knothole.errors import InvalidInput
from knothole.expectation.expectation import Expectation
from knothole.inspection.correction.corrected import Corrected, Correction
from knothole.inspection.intervals import Calibration
from knothole.leaves.in_parts import check_options
from knothole.leaves.options import TuningOptions
from knothole.leaves.solvers import TuningSummary
from knothole.leaves.tune import tune
from knothole.options import AnswerOptions, Arrays, Options, RowOptions
from knothole.out_of_core.base import parts_of
from knothole.out_of_core.lazy import lazily
from knothole.out_of_core.sample import sample
from knothole.sides.asking import Asking
from knothole.sides.calibrating import Calibrating
from knothole.sides.frozen import Frozen, for_classifiers
from knothole.trees.ensemble import Ensemble
from knothole.trees.pipelines.parts import last
from knothole.trees.pipelines.read import is_composed, write_over
from knothole.trees.readers.registry import files_of
from knothole.trees.readers.sklearn.bootstrap import bootstrap_counts
from knothole.trees.write import write

if TYPE_CHECKING:
    import pandas as pd

    from knothole.serve import Serving


class Robust(Frozen, Calibrating, Asking):
    """A fitted tree model that integrates over what it is not told; made by :func:`wrap`.

    All methods take a table with the model's columns, by name in any order where there are names,
    and some further arguments. ``holes`` says which NaN are holes: "auto" (see
    :attr:`nan_meaning_`), "all", or a boolean mask (rows, columns). ``unseen`` says what a category
    is that training did not have, ``absent`` what a column is that the table does not have:
    "error" or "hole". ``n_jobs`` (or ``threads``) is the number of threads, -1 for all cores.

    A table of pandas (with its index), polars or Arrow in gives one of the same library out;
    anything else gives arrays. A Dask DataFrame or Array gives lazy ones, whose partitions are
    asked on the workers.

    To scikit-learn it is a fitted regressor or classifier that stays as it is: ``fit`` does
    nothing, and tools for inspection, model selection, calibration and thresholds take it.

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
    nan_meaning_ : pandas.DataFrame
        The columns that had NaN in training, and whether NaN is integrated over there or taken as
        the model's own value; with what integrating gains in the loss, where it was measured.
    holes_ : {"auto", "all"}
        What ``holes`` is by default.
    tuning_ : TuningSummary or None
        What :meth:`tune` did.
    calibration_ : Calibration or None
        What :meth:`calibrate` learned.
    correction_ : pandas.DataFrame or None
        What correcting expected predictions gains, as a share of their squared (or log) loss
        against the model's own output, on rows held out: where other columns determine what is
        missing, where a column is gone, and where other holes are; the number of trees, the
        ``share`` of their step that is taken, whether they were ``kept``, and ``why`` not. None
        where no correction was looked for.
    """

    def __init__(
        self,
        expectation: Expectation,
        model: Any = None,
        *,
        name: str | None = None,
        selection: pd.DataFrame | None = None,
        nan_meaning: pd.DataFrame | None = None,
        holes: Literal["auto", "all"] = "auto",
        tuning: TuningSummary | None = None,
        calibration: Calibration | None = None,
        correction: Correction | None = None,
        correction_table: pd.DataFrame | None = None,
    ) -> None:
        self.expectation_ = expectation
        self.selection_ = selection
        self.nan_meaning_ = nan_meaning
        self.holes_ = holes
        self.tuning_ = tuning
        self.calibration_ = calibration
        self.correction_ = correction_table
        self.learned_correction = correction
        self._answering = expectation
        if correction is not None:
            self._answering = Corrected.by(expectation, correction)
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
        self.require_classifier("classes_")
        lists = [np.asarray(labels) for labels in class_lists(self.ensemble_)]
        return lists[0] if len(lists) == 1 else lists

    # ---- predictions ---------------------------------------------------------------------------

    def answers(
        self,
        X: Any,
        holes: Holes | None = None,
        *,
        corrected: bool = True,
        **options: Unpack[RowOptions],
    ) -> Answers:
        """All that can be said about some rows, which are encoded once for everything asked.

        ``corrected=False`` leaves out what :func:`wrap` has learned to correct: it is then the
        paper's E_p[f given x_o].

        Returns
        -------
        Answers
            With ``prediction``, ``std``, ``quantiles(levels)``, ``margin``, and for a classifier
            ``probabilities`` and ``probabilities_std``; after :meth:`calibrate`
            ``interval(coverage)``.
        """
        how = Options.of(options)
        evidence = self._evidence(X, holes, how)
        expectation = self._answering if corrected else self.expectation_
        calibration = self.calibration_ if expectation is self._answering else None
        return Answers(expectation, evidence, X, how.threads, calibration)

    @overload
    def predict(
        self, X: Arrays, holes: Holes | None = None, **options: Unpack[AnswerOptions]
    ) -> NDArray[Any]: ...
    @overload
    def predict(
        self, X: pd.DataFrame, holes: Holes | None = None, **options: Unpack[AnswerOptions]
    ) -> pd.Series[Any] | pd.DataFrame: ...
    @overload
    def predict(
        self, X: Arrays, holes: Holes | None = None, *, return_std: Literal[True],
        return_error: bool = False, **options: Unpack[AnswerOptions],
    ) -> tuple[NDArray[Any], ...]: ...  # fmt: skip
    @overload
    def predict(
        self, X: Any, holes: Holes | None = None, *, return_std: bool = False,
        return_error: bool = False, **options: Unpack[AnswerOptions],
    ) -> Any: ...  # fmt: skip

    @lazily
    def predict(
        self,
        X: Any,
        holes: Holes | None = None,
        *,
        return_std: bool = False,
        return_error: bool = False,
        quantiles: Sequence[float] | None = None,
        corrected: bool = True,
        **options: Unpack[RowOptions],
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
        return_error : bool
            Whether to return also the standard error of every answer, after them: 0 where it is
            exact, otherwise that of the draws it comes from. For a classifier that of the
            predicted label's probability.
        quantiles : sequence of float, optional
            Return these quantiles of the prediction instead, (rows, quantiles). They are about
            the holes alone: where the model's answer would be, were the holes known. How far y
            may be is answered by :meth:`predict_interval`.
        corrected : bool
            False leaves out the correction (:attr:`correction_`), if there is one.
        **options
            ``unseen``, ``absent`` and ``n_jobs``; see the class.

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
        if quantiles is not None and (return_std or is_classifier(self.ensemble_)):
            raise InvalidInput(
                "quantiles: they are returned alone, and for regressors only; leave out "
                "return_std, or use predict_proba(return_std=True) for a classifier."
            )
        found = self.answers(X, holes, corrected=corrected, **options)
        if quantiles is not None:
            both = found.quantiles(quantiles)
            return both if return_error else both[0]
        parts = [found.prediction]
        parts += [found.std] if return_std else []
        parts += [found.errors] if return_error else []
        parts += [found.std_errors] if return_std and return_error else []
        return _alone(parts)

    @for_classifiers
    @lazily
    def predict_proba(
        self,
        X: Any,
        holes: Holes | None = None,
        *,
        return_std: bool = False,
        return_error: bool = False,
        corrected: bool = True,
        **options: Unpack[RowOptions],
    ) -> Any:
        """Expected probabilities of the classes, (rows, classes), and if asked more.

        ``return_std`` adds the standard deviation that the holes cause, ``return_error`` the
        standard errors of what is returned, after it. A classifier of several targets has lists
        of tables, as in scikit-learn. ``corrected=False`` leaves out the correction
        (:attr:`correction_`), if there is one.
        """
        found = self.answers(X, holes, corrected=corrected, **options)
        parts = [found.probabilities]
        parts += [found.probabilities_std] if return_std else []
        parts += [found.probabilities_errors] if return_error else []
        parts += [found.probabilities_std_errors] if return_std and return_error else []
        return _alone(parts)

    @lazily
    def margin(
        self,
        X: Any,
        holes: Holes | None = None,
        *,
        return_error: bool = False,
        corrected: bool = False,
        **options: Unpack[RowOptions],
    ) -> Any:
        """Expected margin (Prop. 1): (rows,), or (rows, outputs) where there are several.

        With ``return_error`` also its standard error, 0 where the density allows exact answers.
        A correction moves predictions, and margins with ``corrected=True`` where they are the same.
        """
        if corrected and (is_classifier(self.ensemble_) or not self.ensemble_.link.linear):
            raise InvalidInput(
                "corrected: predictions are corrected, and margins of this model are none; ask "
                "predict or predict_proba, or leave out corrected=True."
            )
        if corrected:
            return self.predict(X, holes, return_error=return_error, **options)
        margin, error = self.answers(X, holes, **options).margin
        return (margin, error) if return_error else margin

    def reach(
        self,
        X: Any,
        holes: Holes | None = None,
        **options: Unpack[RowOptions],
    ) -> sparse.csr_matrix:
        """Probability that each row reaches each leaf, sparse (rows, leaves)."""
        how = Options.of(options)
        evidence = self._evidence(X, holes, how)
        return self.expectation_.reach(evidence, threads=how.threads)

    def score(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        holes: Holes | None = None,
        **options: Unpack[RowOptions],
    ) -> float:
        """R squared of a regressor's predictions, accuracy of a classifier's."""
        from sklearn.metrics import accuracy_score, r2_score

        measure = accuracy_score if is_classifier(self.ensemble_) else r2_score
        found = self.predict(X, holes, **options)
        return float(measure(y, found, sample_weight=sample_weight))

    # ---- new leaves --------------------------------------------------------------------------

    def tune(self, X: Any, y: Any, options: TuningOptions | None = None, **changes: Any) -> Robust:
        """A model whose leaf values suit rows with holes.

        For models that were trained on such rows. The leaves of one that was trained on complete
        rows have been learned from more than rows with holes can tell, and where columns tell
        little of each other forests may lose: compare both on rows held out.

        Parameters
        ----------
        X : table
            Training rows, with holes. Of a Dask DataFrame or Array, or of the path of CSV or
            Parquet files, 200,000 rows, drawn evenly from all, are what everything is chosen by;
            leaves are then solved for with sums over all rows.
        y : array (rows,)
            Their targets or labels; a Dask Series or Array, where ``X`` is one of Dask, and the
            name of a column where it is a path. So it is with ``sample_weight``.
        options : TuningOptions, optional
        **changes
            Options by name, instead of those in ``options``: ``ridge``, ``method``,
            ``objective``, ``learning_rate``, ``condition_on_target``, ``holes``, ``samples``,
            ``sample_weight`` and others; see :class:`knothole.TuningOptions`.

        Returns
        -------
        Robust
            With new leaves and :attr:`tuning_`. A calibration and a correction belong to the old
            leaves and are left behind: :meth:`calibrate` what is returned.

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
        expectation, options = self.expectation_, (options or TuningOptions()).changed(**changes)
        parts, drawn = parts_of(X, y, options.sample_weight, self.columns_), None
        if parts is not None:
            check_options(options)
            drawn = sample(parts, options.seed)
            drawn.tell(options.verbose is True)
            X, y, options = drawn.table, drawn.y, options.changed(sample_weight=drawn.weight)
        if options.samples == "bootstrap":
            counts = bootstrap_counts(last(self._model), len(y))
            options = options.changed(samples="whole", counts=counts)
        if options.integrate is None:
            options = options.changed(integrate=expectation.integrate)
        matrix = self.columns_.matrix(X, options.unseen)
        tuned = tune(self.ensemble_, self.density_, matrix, y, options, drawn)
        if tuned.density is not self.density_ or options.integrate is not expectation.integrate:
            expectation = expectation.under(tuned.density, options.integrate)
        return Robust(
            expectation.with_values(tuned.ensemble.value),
            self._model,
            name=self.model_name_,
            selection=self.selection_,
            nan_meaning=self.nan_meaning_,
            holes=options.holes if isinstance(options.holes, str) else self.holes_,
            tuning=tuned.summary,
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
        model = self._model if model is None else model
        if model is None:
            raise InvalidInput(
                "to_native: a loaded file does not hold the library's own model; pass the model "
                "that was wrapped, to_native(model)."
            )
        if isinstance(model, (str, os.PathLike)):
            model = files_of(model).load(Path(model))
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

    # ---- shared --------------------------------------------------------------------------------

    def _evidence(self, X: Any, holes: Holes | None, how: Options) -> Evidence:
        matrix = self.columns_.matrix(X, how.unseen, how.absent)
        marked = self.holes_ if holes is None else self.columns_.mask(holes, X)
        absent = self.columns_.absent(X) if how.absent == "hole" else ()
        return self.expectation_.evidence_of(matrix, marked, absent=absent)

    def __repr__(self) -> str:
        return display.text(self)

    def _repr_html_(self) -> str:
        return display.html(self)


def _alone(parts: list[Any]) -> Any:
    """One thing by itself, several as a tuple."""
    return parts[0] if len(parts) == 1 else tuple(parts)


def _name(model: Any) -> str:
    if isinstance(model, (str, os.PathLike)):
        return Path(model).name
    if isinstance(model, dict):
        return "trees of your own"
    end = last(model)
    inside = "" if end is model else f" of {type(end).__name__}"
    return f"{type(model).__name__}{inside}"
