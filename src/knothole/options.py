"""What every question about rows takes besides: how they are read, and on how many cores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from knothole.columns.encoding import Unseen
from knothole.columns.read import Absent
from knothole.compiled.threads import thread_count
from knothole.errors import InvalidInput

#: Tables that are answered by arrays.
Arrays = NDArray[Any] | list[Any]


class ReadOptions(TypedDict, total=False):
    """How rows are read, by name."""

    unseen: Unseen
    absent: Absent


class RowOptions(ReadOptions, total=False):
    """Also on how many cores they are answered; ``threads`` is the same as ``n_jobs``."""

    n_jobs: int | None
    threads: int | None


class AnswerOptions(RowOptions, total=False):
    """Also what is answered."""

    quantiles: Sequence[float] | None
    corrected: bool


class Options(NamedTuple):
    """Options once read."""

    unseen: Unseen
    absent: Absent
    threads: int | None

    @classmethod
    def of(cls, given: ReadOptions | RowOptions, known: Any = RowOptions) -> Options:
        """From those that a caller gave; jobs are counted as scikit-learn does, -1 for all cores.

        Examples
        --------
        >>> Options.of({"n_jobs": 2, "absent": "hole"})
        Options(unseen='error', absent='hole', threads=2)
        """
        strange = [name for name in given if name not in known.__optional_keys__]
        if strange:
            raise TypeError(f"got an unexpected keyword argument {strange[0]!r}")
        threads: Any = given.get("threads")
        n_jobs: Any = given.get("n_jobs")
        if n_jobs is not None:
            if threads is not None or not isinstance(n_jobs, int | np.integer) or n_jobs == 0:
                raise InvalidInput(
                    f"n_jobs must be a whole number, -1 for all cores, or None, and threads is "
                    f"the same: pass one of them; got n_jobs={n_jobs!r}, threads={threads!r}."
                )
            threads = int(n_jobs) if n_jobs > 0 else max(1, thread_count() + 1 + int(n_jobs))
        return cls(given.get("unseen", "error"), given.get("absent", "error"), threads)
