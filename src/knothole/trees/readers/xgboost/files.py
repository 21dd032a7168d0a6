"""XGBoost's JSON and UBJ files, read as the object that saved one would load it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from knothole.trees.ensemble import Ensemble
from knothole.trees.readers.xgboost import ubjson
from knothole.trees.readers.xgboost.forest import strict
from knothole.trees.readers.xgboost.read import Use, count_of, ensemble_of

SUFFIXES = (".json", ".ubj")
# A count in a file that nothing else there bears out must not be able to exhaust the memory.
MAX_UNPROVEN = 2**16


def begins(head: bytes) -> bool:
    """Whether a file that begins like this may be XGBoost's."""
    return head.startswith(b"{") and (b"learner" in head or b"Config" in head)


def read(path: Path) -> Ensemble:
    """Read a JSON or UBJ file by our own parsers."""
    document = _parsed(path.read_bytes())
    _check_counts(strict.field(document, "learner"))
    return ensemble_of(document, _use(document))


def load(path: Path) -> Any:
    """Let XGBoost load a file, as the object that saved it."""
    import xgboost

    wrappers = {
        "classifier": xgboost.XGBClassifier,
        "regressor": xgboost.XGBRegressor,
        "ranker": xgboost.XGBRanker,
    }
    data = path.read_bytes()
    model = wrappers.get(_estimator_type(_parsed(data)) or "", xgboost.Booster)()
    model.load_model(bytearray(data))  # by content, whatever the file's name ends in
    return model


def save(model: Any, path: Path) -> None:
    """Let XGBoost save a model, in the format that the name ends in."""
    model.save_model(str(path))


def _parsed(data: bytes) -> Any:
    # A JSON object goes on with a key's quotes, perhaps after space; in UBJ a length comes next.
    if data[1:2] in (b'"', b" ", b"\n", b"\r", b"\t"):
        return json.loads(data)
    return ubjson.parse(data)


def _use(document: Any) -> Use:
    kind = _estimator_type(document)
    if kind is None:
        return Use()
    best = document["learner"]["attributes"].get("best_iteration")
    return Use(None if best is None else int(best) + 1, classifier=kind == "classifier")


def _estimator_type(document: Any) -> str | None:
    """The kind of wrapper that saved a file; None for a Booster."""
    note = strict.field(document, "learner").get("attributes", {}).get("scikit_learn")
    return None if note is None else json.loads(note).get("_estimator_type")


def _check_counts(learner: Any) -> None:
    for key in ("num_feature", "num_class", "num_target"):
        count = count_of(learner, key)
        proven = key == "num_feature" and len(learner.get("feature_names") or []) == count
        strict.require(
            count <= MAX_UNPROVEN or proven,
            f"the file says {key} {count} and nothing else in it does; at most {MAX_UNPROVEN} are "
            f"believed. Give the columns names, or read the live model",
        )
