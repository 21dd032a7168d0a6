"""Missing values filled with draws from p(x_m | x_o), in a table like the one that was given.

``Imputer`` is a scikit-learn transformer that needs no model; :meth:`knothole.Robust.impute` calls
:func:`imputed` with the density of a wrapped one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from knothole.arrays import Mask
from knothole.checks import check_whole
from knothole.columns.columns import Columns, OneHotGroups
from knothole.columns.evidence import Evidence, without_nullable
from knothole.columns.outputs import filled, long
from knothole.columns.read import read_table
from knothole.densities.base import Density, drawn_rows
from knothole.densities.names import from_name
from knothole.densities.select import default_candidates, select
from knothole.errors import InvalidInput


class Imputer(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Fill missing values with draws from the density; for models of any kind.

    Numbers stay in the range they have in training. Where a column has few different numbers, draws
    are among these, as categories are among their levels. The same row is always filled with the
    same values, wherever it stands in a table.

    Parameters
    ----------
    density : str, Density, or sequence of densities
        What missing values are drawn from, by name as in :func:`knothole.wrap`. Of several, the one
        that explains masked held-out rows best.
    columns : Columns, optional
        Description of the columns; inferred from the table by default.
    one_hot : "auto" or mapping, optional
        One-hot groups; see :func:`knothole.wrap`.
    random_state : int, RandomState or None
        Seed of the density and of draws.

    Attributes
    ----------
    density_ : Density
    selection_ : pandas.DataFrame or None
        How candidates did; None where the density was given.

    Examples
    --------
    >>> import knothole as kh
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 1)) + 0.1 * rng.normal(size=(300, 2))
    >>> imputer = kh.Imputer(kh.Mixture(8, random_state=0)).fit(X)
    >>> whole = imputer.transform([[2.0, np.nan]])
    >>> bool(whole[0, 0] == 2.0 and 1 < whole[0, 1] < 3)
    True
    """

    def __init__(
        self,
        density: Any = "auto",
        *,
        columns: Columns | None = None,
        one_hot: OneHotGroups | None = None,
        random_state: Any = 0,
    ) -> None:
        self.density, self.columns, self.one_hot = density, columns, one_hot
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn p(X) from a table with missing values.

        Parameters
        ----------
        X : table
        y : ignored
        sample_weight : array (rows,), optional
        """
        table = read_table(self._checked(X, reset=True))
        columns = (
            Columns.infer(table, one_hot=self.one_hot) if self.columns is None else self.columns
        )
        columns = without_nullable(columns)
        matrix = columns.matrix(table)
        columns = columns.with_values(matrix)
        self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
        candidates, self.selection_ = self.density, None
        if isinstance(candidates, str) and candidates == "auto":
            candidates = default_candidates(columns, self.random_state)
        elif isinstance(candidates, str):
            candidates = from_name(candidates, self.random_state)
        if isinstance(candidates, (Sequence, Mapping)):
            chosen = select(
                candidates, matrix, columns, sample_weight=sample_weight,
                random_state=self.random_state,
            )  # fmt: skip
            self.density_, self.selection_ = chosen.density, chosen.selection_
        elif isinstance(candidates, Density):
            fresh: Density = clone(candidates)
            self.density_ = fresh.fit_matrix(matrix, columns, sample_weight=sample_weight)
        else:
            raise InvalidInput(
                f"density must be 'auto', a density such as knothole.Mixture(), or a sequence of "
                f"them; got {candidates!r}."
            )
        return self

    def transform(self, X: Any) -> Any:
        """The table with missing values filled, of its own class; see ``set_output`` for others."""
        check_is_fitted(self)
        return self.impute(X)

    def impute(self, X: Any, n_draws: int | None = None) -> Any:
        """:meth:`transform`, or several draws of each row; see :meth:`knothole.Robust.impute`."""
        check_is_fitted(self)
        table = self._checked(X, reset=False)
        columns = self.density_.columns_
        matrix = columns.matrix(table)
        evidence = self.density_.extended(columns.evidence(matrix), None)
        return imputed(table, self.density_, evidence, np.isnan(matrix), n_draws, self.seed_)

    def _checked(self, X: Any, reset: bool) -> Any:
        """Tables with columns as they are, all others as arrays."""
        if hasattr(X, "columns"):
            validate_data(self, X, skip_check_array=True, reset=reset)
            return X
        return validate_data(self, X, dtype=None, ensure_all_finite="allow-nan", reset=reset)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "density_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = tags.input_tags.string = True
        return tags


def imputed(
    table: Any, density: Any, evidence: Evidence, missing_mask: Mask, n_draws: int | None, seed: int
) -> Any:
    """A table with its missing values drawn: once, or ``n_draws`` times, one under the other.

    Parameters
    ----------
    table : table
        With the density's columns.
    density : Density
    evidence : Evidence
        What its rows say.
    missing_mask : bool (rows, columns)
        Which entries to fill.
    n_draws : int, optional
    seed : int
    """
    check_whole("n_draws", n_draws, also=[None], way_out="None completes each row once.")
    points = drawn_rows(density, evidence, n_draws or 1, seed)
    columns: Columns = density.columns_
    own = points[:, :, : len(columns.variables)]
    done = [
        filled(table, columns, columns.to_known_values(columns.decode(own[:, k])), missing_mask)
        for k in range(own.shape[1])
    ]
    return done[0] if n_draws is None else long(done)
