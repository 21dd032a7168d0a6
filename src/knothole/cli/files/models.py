"""Model files: those of the libraries, pickled scikit-learn models, and knothole's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sklearn.utils import get_tags

from knothole.columns.columns import Columns
from knothole.errors import DamagedFile, InvalidInput
from knothole.files import check_regular
from knothole.out_of_core.base import parts_of
from knothole.out_of_core.sample import sample
from knothole.robust import Robust
from knothole.storage import load
from knothole.trees.ensemble import Ensemble
from knothole.trees.pipelines.read import is_composed, read_over
from knothole.trees.readers.registry import files_of, reading_of

PICKLES = (".joblib", ".pkl", ".pickle")


@dataclass(frozen=True, eq=False)
class OpenedModel:
    """A model that was opened: ``robust`` of ``knothole wrap``, or ``native``, a library's own."""

    robust: Robust | None
    native: Any  # as knothole.wrap takes it
    ensemble: Ensemble
    columns: Columns  # better described than the ensemble's where the model has been wrapped
    takes_nan: bool = True  # whether the library itself does


def open_model(path: Path, allow_pickle: bool, train: Path) -> OpenedModel:
    """A model of either kind; whether a library's own is read right is checked by wrapping.

    What a pipeline's columns are, the training rows show.
    """
    if _is_wrapped(path):
        robust = load(path)
        return OpenedModel(robust, None, robust.ensemble_, robust.columns_)
    native = _unpickled(path, allow_pickle) if path.suffix.lower() in PICKLES else path
    if is_composed(native):
        parts = parts_of(train)
        assert parts is not None  # those of a path
        ensemble = read_over(native, sample(parts, 0).shown, "all")
        takes_nan = bool(get_tags(native).input_tags.allow_nan)
        return OpenedModel(None, native, ensemble, ensemble.columns, takes_nan)
    reading = reading_of(native)
    return OpenedModel(None, native, reading.ensemble, reading.ensemble.columns, reading.takes_nan)


def load_wrapped(path: Path) -> Robust:
    """A model of ``knothole wrap``."""
    if not _is_wrapped(path):
        raise DamagedFile(
            f"{path}: not a file of knothole wrap. A library's own model is wrapped first: "
            f"knothole wrap {path} TRAIN."
        )
    return load(path)


def _is_wrapped(path: Path) -> bool:
    """Whether a file is one of ``knothole wrap``: a zip archive."""
    check_regular(path)
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def _unpickled(path: Path, allow_pickle: bool) -> Any:
    if not allow_pickle:
        raise InvalidInput(
            f"{path}: a pickle can run any code when it is opened. If you made it or trust who "
            f"did, pass --allow-pickle."
        )
    import joblib

    try:
        return joblib.load(path)
    except Exception as error:  # a damaged pickle can raise anything
        raise DamagedFile(
            f"{path}: cannot be unpickled ({type(error).__name__}: {error}). Save the model again "
            f"with joblib.dump."
        ) from error


def check_native_path(model: Any, path: Path) -> None:
    """Refuse a name that the model's library would not take for one of its files."""
    files = None if is_composed(model) else files_of(model)
    allowed = PICKLES if files is None else files.SUFFIXES
    if path.suffix.lower() not in allowed:
        raise InvalidInput(f"{path}: its name must end in {' or '.join(allowed)}.")


def save_native(model: Any, path: Path) -> None:
    """Write a model as its own library does."""
    files = None if is_composed(model) else files_of(model)
    if files is None:
        import joblib

        joblib.dump(model, path)
    else:
        files.save(model, path)
