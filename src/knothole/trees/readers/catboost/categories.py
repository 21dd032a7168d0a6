"""Categories as CatBoost knows them: by a hash of their text, never by the text itself.

A value is a string, or an integer written out; its hash is the lower half of its CityHash64. A CTR
table is keyed by that hash, scrambled once more, which can be undone. So the categories that a
model knows can be told from its file, but not what they are called: they appear as
:class:`~knothole.columns.columns.HashedLevel` until :func:`name_levels` meets them in a table.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.columns.city_hash import hash_of
from knothole.columns.columns import named_by
from knothole.errors import DamagedFile
from knothole.trees.ensemble import Ensemble

# Of the scrambling of CTR keys.
SCRAMBLE = 0x4906BA494954CB65


def hashes_of_keys(keys: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Hashes of categories from the keys of a CTR table."""
    inverse = pow(SCRAMBLE, -2, 2**64)
    with np.errstate(over="ignore"):
        wide = (keys * np.uint64(inverse)).view(np.int64)
    narrow = wide.astype(np.int32)
    if not np.array_equal(narrow, wide):
        raise DamagedFile("catboost: a CTR table has a key that no category leads to.")
    return narrow.view(np.uint32)


def name_levels(ensemble: Ensemble, table: Any) -> Ensemble:
    """The ensemble with its categories called what they are called in its training table.

    A model of CatBoost does not say what its categories are, only their hashes; the table does.
    Categories of the table that the model does not know are not added;
    :meth:`knothole.columns.columns.Columns.describe` does that. A model of another library comes
    back as it is.
    """
    if ensemble.library != "catboost":
        return ensemble
    return replace(ensemble, columns=named_by(ensemble.columns, table, hash_of))
