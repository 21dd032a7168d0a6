"""Model files: those of the libraries, pickled scikit-learn models, and knothole's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from knothole.errors import DamagedFile, InvalidInput
from knothole.estimators import Robust, load
from knothole.trees.libraries.registry import files_of

PICKLES = (".joblib", ".pkl", ".pickle")


def is_wrapped(path: Path) -> bool:
    """Whether a file is one of ``knothole wrap``: a zip archive."""
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def load_wrapped(path: Path) -> Robust:
    """A model of ``knothole wrap``."""
    if not is_wrapped(path):
        raise DamagedFile(
            f"{path}: not a file of knothole wrap. A library's own model is wrapped first: "
            f"knothole wrap {path} TRAIN."
        )
    return load(path)


def open_model(path: Path, allow_pickle: bool) -> Any:
    """What :func:`knothole.wrap` takes: the path of a library's file, or an unpickled model."""
    if path.suffix.lower() not in PICKLES:
        return path
    if not allow_pickle:
        raise InvalidInput(
            f"{path}: a pickle can run any code when it is opened. If you made it or trust who "
            f"did, pass --allow-pickle."
        )
    import joblib

    with path.open("rb"):  # says what is wrong with the place itself
        pass
    try:
        return joblib.load(path)
    except Exception as error:  # a damaged pickle can raise anything
        raise DamagedFile(
            f"{path}: cannot be unpickled ({type(error).__name__}: {error}). Save the model again "
            f"with joblib.dump."
        ) from error


def check_native_path(model: Any, path: Path) -> None:
    """Refuse a name that the model's library would not take for one of its files."""
    files = files_of(model)
    allowed = PICKLES if files is None else files.SUFFIXES
    if path.suffix.lower() not in allowed:
        raise InvalidInput(f"{path}: its name must end in {' or '.join(allowed)}.")


def save_native(model: Any, path: Path) -> None:
    """Write a model as its own library does."""
    files = files_of(model)
    if files is None:
        import joblib

        joblib.dump(model, path)
    else:
        files.save(model, path)
