"""The suite: tables by name, what their columns and targets are, and splits of them.

Files are looked for in the folder that ``path`` or the environment variable ``KNOTHOLE_DATA``
names, and are otherwise downloaded where a public source is known (:mod:`.sources`). Either way a
table is what it should be: its content has the checksum noted here, or it is refused.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.model_selection import KFold, StratifiedKFold, train_test_split

from benchmarks.suite import sources
from knothole.columns.columns import Columns
from knothole.errors import DamagedFile, InvalidInput
from knothole.report.methods import Task

#: Environment variable that names the folder with the data.
FOLDER = "KNOTHOLE_DATA"
# Of a class with fewer rows, a split would leave some part without any.
FEWEST_ROWS = 10
# Test rows are a part in so many.
TEST_PARTS = 4


@dataclass(frozen=True)
class Entry:
    """A dataset that is known by name: its task, its file, its content's SHA-256, its target."""

    task: Task
    file: str
    sha256: str
    target: str = "target"


_SUITE = {
    "abalone": (
        Task.REGRESSION,
        "b06dc08339749c318418625d2bca9d79d31a67436a0335f9c905418129c04568",
    ),
    "concrete": (
        Task.REGRESSION,
        "4e9e44ab4bbb6c376e973790ab18440d315813099cbc23aab61c7108dadfeff9",
    ),
    "wine_quality": (
        Task.REGRESSION,
        "26dde7f76b67bf822b57a65dae96a7925a1b99455310354457ee2e73ea6ad0e7",
    ),
    "bike_sharing_hour": (
        Task.REGRESSION,
        "814722c91f17bfa572ec8d1eebf4ecd23ae9fdb3ffe574c2f883fca148ad9bce",
    ),
    "energy_heating": (
        Task.REGRESSION,
        "2d04ed91c65849b861111ff576cd749c6336c612138056bbcb4f6caf8eb7aab8",
    ),
    "california_housing": (
        Task.REGRESSION,
        "c9aa306801cfab58524c7a115039cd49694d93b6b61261ac23a7a3ba005a4073",
    ),
    "delta_ailerons": (
        Task.REGRESSION,
        "4b3bcf26763add07ac6bb48d8ea4e5559f14066141ac3c6684f0c7ed0b58aae1",
    ),
    "kin8nm": (
        Task.REGRESSION,
        "239699ff08272cf9a1fd23d40ae3f23a8cb260090f52d87939a37de2a929dcc7",
    ),
    "adult": (
        Task.BINARY,
        "b3e329cbea759e4bb08ead4ded2ccd0abff2c669622f1b0024214c83fbd787cd",
    ),
    "pima_diabetes": (
        Task.BINARY,
        "7d4d28737a42a318cf6aa81981ad025af8899e34cc0299a18788b9d69696be0d",
    ),
    "titanic": (
        Task.BINARY,
        "4c5231922b5df6370f92f2fa97ffad04a37f12f7913280247fba6720161196e9",
    ),
    "heart_hungarian": (
        Task.BINARY,
        "635c50b3b27a409528c2a3b4129419bd1ac7b358b48ee9720935aa7c9e138fb8",
    ),
    "hypothyroid": (
        Task.MULTICLASS,
        "4e030f2ca25706b9d729cb53c4306d7b6ad57f4a9199666c8ab2ca810a7dfeb5",
    ),
    "credit_approval": (
        Task.BINARY,
        "6d0cbea3cc4a36fba4b2236045d40b8735b4bbc3bc60add6a8f3995c48049297",
    ),
}

#: All datasets that can be loaded by name: the suite, and the paper's.
REGISTRY: Mapping[str, Entry] = {
    name: Entry(task, f"suite/{name}.csv", sha256) for name, (task, sha256) in _SUITE.items()
} | {
    "insurance": Entry(
        Task.REGRESSION,
        "insurance.csv",
        "bf24b412bee5075f277201c613a5e45f2704a9c28bf9fe7e6638b2c05cb4a014",
        target="charges",
    )
}


#: Tables with missing values of their own in more than a row in twenty.
NATURAL = ("adult", "credit_approval", "heart_hungarian", "hypothyroid", "pima_diabetes", "titanic")


@dataclass(frozen=True, eq=False)
class Dataset:
    """A table and its target.

    Attributes
    ----------
    name : str
        As in :data:`REGISTRY`.
    table : DataFrame
        Features; text columns are pandas categories with all levels of the whole table, so that
        every part of a split has the same. NaN are natural missing values.
    target : float64 (rows,) or int64 (rows,)
        Numbers, or positions in ``classes``.
    task : Task
        What is predicted.
    classes : tuple
        Labels of a classification, else empty.
    """

    name: str
    table: pd.DataFrame
    target: NDArray[Any]
    task: Task
    classes: tuple[Any, ...] = ()

    @property
    def columns(self) -> Columns:
        """Names, kinds and levels of the table's columns."""
        return Columns.infer(self.table)

    def __len__(self) -> int:
        return len(self.table)

    def take(self, rows: NDArray[np.intp]) -> Dataset:
        """The dataset with these rows only, in this order."""
        table = self.table.iloc[rows].reset_index(drop=True)
        return replace(self, table=table, target=self.target[rows])


@dataclass(frozen=True, eq=False)
class Split:
    """Three parts of a dataset without a row in common."""

    train: Dataset
    valid: Dataset
    test: Dataset


def names() -> tuple[str, ...]:
    """Names of the suite's datasets, in order; Insurance, of the paper, is not among them."""
    return tuple(_SUITE)


def load(name: str, path: str | os.PathLike[str] | None = None) -> Dataset:
    """Load a dataset by name.

    Parameters
    ----------
    name : str
        One of :data:`REGISTRY`.
    path : path, optional
        Folder with the data, or the dataset's own CSV file. By default the folder that
        ``KNOTHOLE_DATA`` names, and where that is not set, a download.

    Raises
    ------
    InvalidInput
        Where there is no dataset of the name, no file, and no known source to download it from.
    DamagedFile
        Where the content is not what the checksum says.
    """
    if name not in REGISTRY:
        raise InvalidInput(f"name must be one of {', '.join(REGISTRY)}; got {name!r}.")
    entry = REGISTRY[name]
    frame = _read(name, entry, path)
    found = content_sha256(frame)
    if found != entry.sha256:
        raise DamagedFile(
            f"dataset {name!r}: its content must have the SHA-256 {entry.sha256}; got {found}. It "
            f"is another version of the table, or damaged."
        )
    return _prepared(name, entry, frame)


def content_sha256(frame: pd.DataFrame) -> str:
    """Checksum of what a table holds, whatever the line ends or number formats of its file.

    Examples
    --------
    >>> one = pd.DataFrame({"a": [1.5, np.nan]})
    >>> content_sha256(one)[:8], content_sha256(one + 1)[:8]
    ('b534580a', '454f0d43')
    """
    text = frame.to_csv(index=False, lineterminator="\n")
    return hashlib.sha256(text.encode()).hexdigest()


def _read(name: str, entry: Entry, path: str | os.PathLike[str] | None) -> pd.DataFrame:
    given = path if path is not None else os.environ.get(FOLDER)
    if not given:
        return sources.download(name)
    place = Path(given)
    file = place / entry.file if place.is_dir() else place
    if not file.is_file():
        raise InvalidInput(
            f"dataset {name!r}: there is no file {entry.file} in {os.fspath(given)!r}. Pass path= "
            f"the folder that has it, or set {FOLDER} to it."
        )
    return pd.read_csv(file)


def _prepared(name: str, entry: Entry, frame: pd.DataFrame) -> Dataset:
    target = frame.pop(entry.target)
    text = [column for column in frame if not pd.api.types.is_numeric_dtype(frame[column])]
    table = frame.astype(dict.fromkeys(text, "category"))
    if entry.task is Task.REGRESSION:
        return Dataset(name, table, target.to_numpy(dtype=np.float64), entry.task)
    counts = target.value_counts()
    kept = target.isin(counts.index[counts >= FEWEST_ROWS]).to_numpy()
    labels = target[kept].to_numpy()
    classes, codes = np.unique(labels, return_inverse=True)
    table = table[kept].reset_index(drop=True)
    return Dataset(name, table, codes.astype(np.int64), entry.task, tuple(classes.tolist()))


def split(
    dataset: Dataset,
    repeat: int,
    *,
    valid: float = 0.15,
    max_rows: int | None = None,
) -> Split:
    """Split a dataset at random, classes in the same proportions in every part.

    Parameters
    ----------
    dataset : Dataset
        What to split.
    repeat : int
        The same number gives the same split. Repeats 0 to 3 have a quarter of the rows each to
        test on, and none in common; so have 4 to 7, and so on.
    valid : float
        Share of the rows.
    max_rows : int, optional
        Where there are more rows, a random sample of so many is split.
    """
    strata = None if dataset.task is Task.REGRESSION else dataset.target
    rows = np.arange(len(dataset))
    seed, part = divmod(repeat, TEST_PARTS)
    if max_rows is not None and len(rows) > max_rows:
        rows, _ = _parted(rows, strata, max_rows / len(rows), seed)
    kind = KFold if strata is None else StratifiedKFold
    parts = kind(TEST_PARTS, shuffle=True, random_state=seed)
    rest, test = list(parts.split(rows, None if strata is None else strata[rows]))[part]
    train, valid_rows = _parted(rows[rest], strata, 1 - valid / (1 - 1 / TEST_PARTS), repeat)
    return Split(dataset.take(train), dataset.take(valid_rows), dataset.take(rows[test]))


def _parted(
    rows: NDArray[np.intp], strata: NDArray[Any] | None, share: float, seed: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    classes = None if strata is None else strata[rows]
    first, second = train_test_split(rows, train_size=share, stratify=classes, random_state=seed)
    return first, second
