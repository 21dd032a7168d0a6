"""Tables of probabilities; a module of its own, as the class is one of pandas."""

from typing import Any

import pandas as pd


class _OfFrames(type):
    """Any DataFrame passes for one of such a class, as pandas' own comparisons ask."""

    def __instancecheck__(cls, other: Any) -> bool:
        return isinstance(other, pd.DataFrame)


class Shares(pd.DataFrame, metaclass=_OfFrames):
    """A DataFrame of which ``[:, i]`` is a column too, as scikit-learn takes it of probabilities.

    Examples
    --------
    >>> Shares([[0.25, 0.75]], columns=["no", "yes"])[:, 1].tolist()
    [0.75]
    """

    _constructor = pd.DataFrame  # what is made of it is nothing special

    def __getitem__(self, key: Any) -> Any:
        by_place = isinstance(key, tuple) and isinstance(key[0], slice)
        return self.to_numpy()[key] if by_place else super().__getitem__(key)

    def __reduce__(self) -> Any:
        return pd.DataFrame, (pd.DataFrame(self),)
