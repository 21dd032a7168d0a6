"""The part of :class:`Robust` that says how far y may be from its predictions."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, Self, Unpack

from knothole.answers import Answers, require_regressor
from knothole.columns.evidence import Evidence
from knothole.columns.holes import Holes
from knothole.errors import InvalidInput
from knothole.expectation.expectation import Expectation
from knothole.inspection.intervals import Calibration
from knothole.options import Options, RowOptions
from knothole.out_of_core.lazy import lazily


class Calibrating:
    """Intervals for y, once rows that the model was not trained on have been seen."""

    expectation_: Expectation
    _answering: Expectation
    calibration_: Calibration | None
    answers: Callable[..., Answers]
    _evidence: Callable[..., Evidence]

    def calibrate(
        self,
        X: Any,
        y: Any,
        holes: Holes | None = None,
        **options: Unpack[RowOptions],
    ) -> Self:
        """A copy that knows how far y lies from its predictions, for :meth:`predict_interval`.

        Parameters
        ----------
        X : table
            Rows that the model was *not* trained on, like those it will be asked about. They may
            have holes; but rows without serve every pattern of holes, others only those that
            include theirs. Of more than 5,000 rows as many are drawn and kept (and saved).
        y : array (rows,)
            Their targets. Where the model has several outputs, these are taken for quantiles of
            y, and intervals start from the lowest and the highest.
        holes : "auto", "all" or mask, optional
        **options
            ``unseen``, ``absent`` and ``n_jobs``; see the class.

        Returns
        -------
        Robust
            With ``calibration_``.

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
        >>> calibrated = robust.calibrate(X[500:], y[500:])
        >>> known, partly = calibrated.predict_interval([[1.0, 1.0], [1.0, np.nan]])
        >>> bool(np.ptp(known) < np.ptp(partly))
        True
        """
        ensemble = self.expectation_.original
        require_regressor(ensemble, "calibrate")
        if ensemble.n_responses > 1 and not ensemble.recipe.levels:
            raise InvalidInput(
                f"calibrate: the model has {ensemble.n_responses} targets, and intervals are for "
                f"one; wrap and calibrate a model for each target."
            )
        how = Options.of(options)
        evidence = self._evidence(X, holes, how)
        calibrated = copy(self)
        calibrated.calibration_ = Calibration.learned(self._answering, evidence, y, how.threads)
        return calibrated

    @lazily
    def predict_interval(
        self,
        X: Any,
        coverage: float = 0.9,
        holes: Holes | None = None,
        **options: Unpack[RowOptions],
    ) -> Any:
        """An interval that y is in with this probability, whatever the row's pattern of holes.

        After :meth:`calibrate`. The promise is about rows like the calibration rows, and it holds
        for each pattern, not only on average over them: for patterns with 200 or more calibration
        rows of their own whatever made the holes, for others if holes come about by chance
        (:mod:`knothole.inspection.intervals` has the argument).

        A pattern that is asked about for the first time costs predictions for up to 1,000
        calibration rows. Of a one-hot block that is known in part, nothing is taken as known.

        Parameters
        ----------
        X : table
        coverage : float
            Probability that y is in the interval, between 0 and 1.
        holes : "auto", "all" or mask, optional
        **options
            ``unseen``, ``absent`` and ``n_jobs``; see the class.

        Returns
        -------
        float64 (rows, 2), or DataFrame with the columns "low" and "high"

        Raises
        ------
        InvalidInput
            Where there are too few calibration rows for the coverage.

        Warns
        -----
        FewCalibrationRows
            Where so few calibration rows fit that this set's coverage may be 5 points off.
        """
        require_regressor(self.expectation_.original, "predict_interval")
        return self.answers(X, holes, **options).interval(coverage)
