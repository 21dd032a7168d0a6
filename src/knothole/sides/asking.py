"""The part of :class:`Robust` that answers what users ask after the prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Unpack

import numpy as np
import pandas as pd

from knothole.answers import class_lists, is_classifier, output_labels
from knothole.checks import check_choice
from knothole.columns.evidence import Evidence
from knothole.columns.holes import Holes
from knothole.columns.outputs import pandas_index
from knothole.errors import InvalidInput
from knothole.expectation.expectation import Expectation
from knothole.expectation.tolerance import check_tol
from knothole.inspection.acquire import Acquisition, Asked, acquisition, costs
from knothole.inspection.explain import explain
from knothole.inspection.explanation import Explanation
from knothole.inspection.impute import imputed
from knothole.inspection.players import Groups, Players
from knothole.options import Options, ReadOptions, RowOptions
from knothole.out_of_core.lazy import lazily


class Asking:
    """Why an answer is what it is, what to find out next, and what the holes may be."""

    expectation_: Expectation
    holes_: Any
    _evidence: Callable[..., Evidence]

    @lazily
    def explain(
        self,
        X: Any,
        groups: Groups | None = None,
        *,
        of: Literal["prediction", "margin"] = "prediction",
        tol: float | None = 0.02,
        holes: Holes | None = None,
        **options: Unpack[RowOptions],
    ) -> Explanation:
        """Why each answer is what it is: conditional Shapley values of the expected prediction.

        A column's value is what knowing it adds to the expected prediction, averaged over all
        orders in which the row's columns can become known. The values of a row add up to
        E[f given the row] - E[f]. Holes remain holes and have the value 0. A column that the model
        does not use has a value where it tells of others.

        Parameters
        ----------
        X : table
        groups : mapping from a name to columns, optional
            Columns that become known together and have one value. A one-hot block is one anyway.
        of : {"prediction", "margin"}
            What to take apart: for a classifier the probabilities of its classes (of the second
            one where there are two), or the margins before the link.
        tol : float, optional
            The standard error that values may have, as a share of the spread of the model's
            outputs. Where a row has few columns and the density is exact, values are exact. None
            for what the first orders and draws give.
        holes : "auto", "all" or mask, optional
        **options
            ``unseen``, ``absent`` and ``n_jobs``; see the class.

        Returns
        -------
        Explanation
            With ``values``, ``errors``, ``base``, ``data``; ``table()``, ``bar()``,
            ``beeswarm()``, and ``to_shap()`` for shap's own plots.

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
        check_choice("of", of, ("prediction", "margin"))
        expectation = self.expectation_
        how = Options.of(options)
        evidence = self._evidence(X, holes, how)
        players = Players.of(expectation, groups)
        found = explain(
            expectation, evidence, players, margins=of == "margin", tol=check_tol(tol),
            threads=how.threads,
        )  # fmt: skip
        one = found.values.shape[2] == 1
        said = players.described(evidence, expectation.columns)
        return Explanation(
            found.values[:, :, 0] if one else found.values,
            found.errors[:, :, 0] if one else found.errors,
            float(found.base[0]) if one else found.base,
            pd.DataFrame(said, index=pandas_index(X), columns=list(players.names), dtype=object),
            players.codes(evidence),
            output_labels(expectation.original, found.values.shape[2]),
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
        holes: Holes | None = None,
        **options: Unpack[ReadOptions],
    ) -> Acquisition:
        """What to find out next: the expected gain of knowing each hole.

        For a regressor the gain is what knowing the hole is expected to take off the variance of
        the prediction that is due to holes, the square of ``predict(X, return_std=True)[1]``; for
        a classifier, off the Brier score of its probabilities, or their entropy.

        Parameters
        ----------
        X : table
        cost : mapping from names to numbers above 0, optional
            What finding out a column (or block, or group) costs; 1 where nothing is said.
        groups : mapping from a name to columns, optional
            Columns that are found out together, such as what one blood sample tells.
        criterion : {"brier", "entropy"}, optional
            For classifiers; by default the Brier score.
        budget : float, optional
            Plan what to find out for so much: one hole after the other, each by what it adds to
            those before, for each unit of cost.
        stop : float, optional
            For classifiers: how sure the predicted label must be to remain, between 0 and 1. Rows
            where it is have no best hole.
        holes : "auto", "all" or mask, optional
        **options
            ``unseen`` and ``absent``; see the class.

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
        if budget is not None and not budget > 0:
            raise InvalidInput(f"budget must be above 0; got {budget!r}.")
        players = Players.of(self.expectation_, groups)
        asked = Asked(
            self.expectation_, self._evidence(X, holes, Options.of(options, ReadOptions)), players,
            (criterion or "brier") if sure else "variance",
            sure and [len(names) for names in class_lists(ensemble)] == [2],
        )  # fmt: skip
        index = pandas_index(X)
        index = range(len(asked.evidence.points)) if index is None else index
        return acquisition(asked, costs(cost, players.names), budget, stop, index)

    @lazily
    def impute(
        self,
        X: Any,
        draws: int | None = None,
        holes: Holes | None = None,
        **options: Unpack[ReadOptions],
    ) -> Any:
        """Plausible rows: every hole is drawn from p(what is missing | what is known).

        What was observed comes back bit for bit. A draw is no best guess: it varies as much as
        the truth does, so that what is computed of many draws shows how sure it is.

        Parameters
        ----------
        X : table
        draws : int, optional
            How many draws of each row; by default one.
        holes : "auto", "all" or mask, optional
        **options
            ``unseen`` and ``absent``; see the class.

        Returns
        -------
        table
            Like ``X``: of its class, with its types, levels and columns. With ``draws`` a long
            one: all rows once, then all again, and a first column ``draw`` with the number of the
            draw. Where NaN is a value of the model's own (``nan_meaning_``), "not recorded" may be
            what is drawn, and is NaN.

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
        >>> robust.impute(rows, draws=2)["draw"].tolist()
        [0, 0, 1, 1]
        """
        expectation = self.expectation_
        how = Options.of(options, ReadOptions)
        matrix = expectation.columns.matrix(X, how.unseen, how.absent)
        mask = self.holes_ if holes is None else expectation.columns.mask(holes, X)
        absent = expectation.columns.absent(X) if how.absent == "hole" else ()
        values, marked = expectation.hole_rule.read(matrix, mask, absent)
        own = expectation.columns.evidence(values, marked)
        evidence = expectation.density.extended(own, None)
        where = np.isnan(values) if marked is None else marked
        return imputed(X, expectation.density, evidence, where, draws, expectation.seed)
