"""The part of :class:`Robust` that answers what users ask after the prediction."""

from __future__ import annotations

from typing import Any

import numpy as np

from knothole.questions.impute import imputed
from knothole.reach.expectation import Expectation
from knothole.tables.encoding import Unseen
from knothole.tables.holes import Holes


class Asking:
    """Why an answer is what it is, what to find out next, and what the holes may be."""

    expectation_: Expectation
    holes_: Any

    def impute(
        self,
        X: Any,
        draws: int | None = None,
        holes: Holes | None = None,
        *,
        unseen: Unseen = "error",
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
        unseen : {"error", "hole"}

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
        matrix = expectation.columns.matrix(X, unseen)
        values, marked = expectation.hole_rule.read(matrix, self.holes_ if holes is None else holes)
        own = expectation.columns.evidence(values, marked)
        evidence = expectation.density.extended(own, None)
        where = np.isnan(values) if marked is None else marked
        return imputed(X, expectation.density, evidence, where, draws, expectation.seed)
