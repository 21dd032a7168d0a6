"""Model files: those of the libraries, pickled scikit-learn models, and knothole's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from knothole.errors import DamagedFile, InvalidInput
from knothole.estimators import Robust, load
from knothole.trees import libraries

PICKLES = (".joblib", ".pkl", ".pickle")
# Suffixes of the libraries' own files, by top-level package of the model.
FORMATS = {"xgboost": (".json", ".ubj"), "lightgbm": (".txt",), "catboost": (".cbm", ".json")}


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


def reading_of(model: Any) -> libraries.Reading:
    """What a model of :func:`open_model` is once read; not checked, which wrapping does."""
    if isinstance(model, Path):
        return libraries.read_file(model)
    reading: libraries.Reading = libraries.module_for(model, "read").read(model)
    return reading


def check_native_path(model: Any, path: Path) -> None:
    """Refuse a name that the model's library would not take for one of its files."""
    allowed = _suffixes(model)
    if path.suffix.lower() not in allowed:
        raise InvalidInput(f"{path}: its name must end in {' or '.join(allowed)}.")


def save_native(model: Any, path: Path) -> None:
    """Write a model as its own library does."""
    package = type(model).__module__.partition(".")[0]
    if package not in FORMATS:
        import joblib

        joblib.dump(model, path)
    elif package == "catboost":
        model.save_model(str(path), format=path.suffix.lower().removeprefix("."))
    elif package == "lightgbm":
        getattr(model, "booster_", model).save_model(str(path))
    else:
        model.save_model(str(path))


def _suffixes(model: Any) -> tuple[str, ...]:
    if not isinstance(model, Path):
        return FORMATS.get(type(model).__module__.partition(".")[0], PICKLES)
    with model.open("rb") as file:
        return FORMATS.get(libraries.sniff(file.read(4096)) or "", PICKLES)
