"""How values go missing: in which rows, by which mechanism, at which rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
from sklearn.inspection import permutation_importance

from benchmarks.suite.datasets import Dataset
from knothole import missingness
from knothole.errors import InvalidInput
from knothole.report.methods import Task

Kind = Literal["mcar", "mar", "mnar", "outage"]


@dataclass(frozen=True)
class Mechanism:
    """How entries go missing.

    Parameters
    ----------
    kind : {"mcar", "mar", "mnar", "outage"}
        See :mod:`knothole.missingness.masks`.
    rate : float
        Share of entries, for all but outages.
    place : int
        For outages: which column, 0 the most important.

    Examples
    --------
    >>> Mechanism("mcar", 0.3).name, Mechanism("outage", place=1).name
    ('MCAR 30 %', 'outage of column 2')
    """

    kind: Kind
    rate: float = 0.0
    place: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("mcar", "mar", "mnar", "outage"):
            raise InvalidInput(
                f"kind must be 'mcar', 'mar', 'mnar' or 'outage'; got {self.kind!r}."
            )

    @property
    def name(self) -> str:
        """For tables."""
        if self.kind == "outage":
            return f"outage of column {self.place + 1}"
        return f"{self.kind.upper()} {self.rate:.0%}".replace("%", " %")

    def make_missing(
        self, table: pd.DataFrame, seed: int, reference: pd.DataFrame, columns: Sequence[str],
        mechanism: int,
    ) -> pd.DataFrame:  # fmt: skip
        """Make values missing in a table.

        Parameters
        ----------
        table : DataFrame
            It is not changed.
        seed : int
            Of the draws.
        reference : DataFrame
            Training table, which fixes means and intercepts.
        columns : sequence of str
            Names in order of importance.
        mechanism : int
            Seed of what is random in the mechanism itself.
        """
        incomplete: pd.DataFrame
        if self.kind == "outage":
            incomplete = missingness.outage(table, [columns[self.place]])
        elif self.kind == "mcar":
            incomplete = missingness.mcar(table, self.rate, seed)
        else:
            apply: Callable[..., Any] = getattr(missingness, self.kind)
            incomplete = apply(table, self.rate, seed, reference=reference, mechanism=mechanism)
        return incomplete


@dataclass(frozen=True)
class Scenario:
    """Missing values at deployment, and in training where there is a mechanism for it too."""

    deployment: Mechanism
    training: Mechanism | None = None

    @property
    def name(self) -> str:
        """For tables, and to tell scenarios apart."""
        if self.training is None:
            return self.deployment.name
        return f"{self.deployment.name}, trained with {self.training.name}"


_MCAR = tuple(Mechanism("mcar", rate) for rate in (0.1, 0.3, 0.5))
_MAR = Mechanism("mar", 0.3)
_MNAR = Mechanism("mnar", 0.3)

#: A complete training table, missing values at deployment only.
DEPLOYMENT = tuple(
    Scenario(mechanism)
    for mechanism in (*_MCAR, _MAR, *(Mechanism("outage", place=place) for place in range(3)))
)
#: Missing values in training and deployment, by one mechanism.
SAME = tuple(Scenario(mechanism, mechanism) for mechanism in (*_MCAR, _MAR))
#: Missing values in training and deployment, by two.
CHANGED = (
    Scenario(_MCAR[1], _MAR),
    Scenario(_MAR, _MCAR[1]),
    Scenario(_MCAR[2], _MCAR[0]),
    Scenario(_MCAR[1], _MNAR),
)
#: Them all, by name.
SETTINGS: Mapping[str, tuple[Scenario, ...]] = {
    "deployment": DEPLOYMENT,
    "same": SAME,
    "changed": CHANGED,
}


def by_importance(model: Any, part: Dataset, seed: int) -> list[str]:
    """Columns of a dataset, those first whose permutation hurts the model most."""
    found = permutation_importance(
        model,
        part.table,
        part.target,
        scoring="neg_mean_squared_error" if part.task is Task.REGRESSION else "neg_log_loss",
        n_repeats=3,
        random_state=seed,
    )
    order = (-found.importances_mean).argsort(kind="stable")
    return [str(part.table.columns[i]) for i in order]
