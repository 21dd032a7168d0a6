"""Tables of probabilities: in a module of their own, since importing it imports pandas."""

from typing import Any

import pandas as pd


class _OfFrames(type):
    """Lets ``isinstance`` accept any DataFrame, as pandas' own comparisons require."""

    def __instancecheck__(cls, other: Any) -> bool:
        return isinstance(other, pd.DataFrame)


class Shares(pd.DataFrame, metaclass=_OfFrames):
    """A DataFrame whose ``[:, i]`` is a column, as scikit-learn indexes probabilities.

    Examples
    --------
    >>> Shares([[0.25, 0.75]], columns=["no", "yes"])[:, 1].tolist()
    [0.75]
    """

    _constructor = pd.DataFrame  # results of operations are plain DataFrames

    def __getitem__(self, key: Any) -> Any:
        by_place = isinstance(key, tuple) and isinstance(key[0], slice)
        return self.to_numpy()[key] if by_place else super().__getitem__(key)

    def __reduce__(self) -> Any:
        return pd.DataFrame, (pd.DataFrame(self),)
