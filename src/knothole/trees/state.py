"""The state of an ensemble: what files hold of it, a header for JSON and arrays.

Every file with trees has this form, of whatever library they are: a wrapped model's, and that of a
correction.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.checks import check_type, require
from knothole.columns.columns import columns_from, describe_columns, describe_level, level_from
from knothole.errors import InvalidInput
from knothole.trees.curves import curves_from, describe_curves
from knothole.trees.ensemble import Ensemble, Recipe, nodes_of
from knothole.trees.links import describe_link, link_from

# Data types of the arrays in a file.
DTYPES = {
    **dict.fromkeys(("roots", "feature", "left", "set_start"), np.dtype(np.int32)),
    **dict.fromkeys(("native_leaf", "tree_output"), np.dtype(np.int32)),
    **dict.fromkeys(
        ("threshold", "value", "tree_weight", "base", "sentinel"), np.dtype(np.float64)
    ),
    "missing_left": np.dtype(np.bool_),
    "sets": np.dtype(np.uint64),
}


def describe_ensemble(ensemble: Ensemble) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """An ensemble as a dictionary for JSON, and arrays; the inverse of :func:`ensemble_from`."""
    if problem := overflow_of(ensemble):
        raise InvalidInput(f"{problem}: such a model cannot be saved. Train it on a smaller scale.")
    header = {
        "columns": describe_columns(ensemble.columns),
        "link": describe_link(ensemble.link),
        "classes": _describe_classes(ensemble.classes),
        "library": ensemble.library,
        "precision": ensemble.precision,
        "recipe": vars(ensemble.recipe),
    }
    arrays = {name: getattr(ensemble, name) for name in DTYPES}
    if not ensemble.curves:
        return header, arrays
    header["curves"], of_curves = describe_curves(ensemble.curves)
    return header, arrays | of_curves


def ensemble_from(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Ensemble:
    """Build it as a reader does, so that broken trees are refused."""
    _check_trees(header, arrays)
    leaf = arrays["feature"] < 0
    number = arrays["left"][leaf]
    all_of_them = np.array_equal(np.sort(number), np.arange(len(arrays["value"])))
    require(all_of_them, "left must number the leaves, each once")
    ensemble = Ensemble.build(
        nodes_of(arrays),
        columns=columns_from(header["columns"]),
        base=arrays["base"],
        library=header["library"],
        precision=header["precision"],
        link=link_from(header["link"], len(arrays["base"])),
        classes=_classes_from(header["classes"]),
        sentinel=arrays["sentinel"],
    ).trained_by(Recipe.of(**header["recipe"]))
    problem = overflow_of(ensemble)
    require(not problem, problem)
    if "curves" not in header:
        return ensemble
    in_order = np.array_equal(ensemble.native_leaf, arrays["native_leaf"])
    require(in_order, "leaves that have curves must be numbered as they are met")
    return ensemble.with_curves(curves_from(header["curves"], arrays, ensemble.n_leaves))


def overflow_of(ensemble: Ensemble) -> str:
    """Why margins, predictions or their squares could overflow float64; "" if they cannot.

    Sums the lowest and the highest leaf of every tree, whether or not one row can reach them all.
    """
    ends = np.tile(ensemble.base, (2, 1))
    with np.errstate(all="ignore"):
        value = ensemble.value * ensemble.tree_weight[ensemble.leaf_tree][:, None]
        for end, extreme in zip(ends, (np.minimum, np.maximum), strict=True):
            of_trees = extreme.reduceat(value, ensemble.leaf_start[:-1], axis=0)
            for width in range(value.shape[1]):
                np.add.at(end, ensemble.tree_output + width, of_trees[:, width])
        for what, numbers in (("margins", ends), ("predictions", ensemble.link(ends.copy()))):
            if not np.isfinite(np.square(numbers)).all():
                return f"squares of {what} from {numbers[0]} to {numbers[1]} are not finite"
    return ""


def _check_trees(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    """Refuse what :meth:`Ensemble.build` would overlook or misread."""
    for name, dtype in DTYPES.items():
        array = arrays[name]
        wanted = (dtype, 2 if name in ("value", "sentinel") else 1)
        fits = (array.dtype, array.ndim) == wanted
        require(fits, f"trees.{name} must be {dtype}, not {array.dtype} of shape {array.shape}")
    require(arrays["value"].shape[1], "leaves must have values")
    require(len(arrays["native_leaf"]) == len(arrays["value"]), "native_leaf must be by leaf")
    require(header["precision"] in ("float32", "float64"), "precision must be of floats")
    check_type("library", header["library"], str)
    targets = _classes_from(header["classes"])
    if targets is not None:
        sizes = [len(one) for one in (targets if isinstance(targets[0], tuple) else (targets,))]
        outputs = link_from(header["link"], len(arrays["base"])).responses(len(arrays["base"]))
        fits = sum(sizes) == outputs or (outputs == 1 and sizes == [2])
        require(fits and min(sizes) > 0, f"{sizes} classes, but {outputs} outputs")


def _describe_classes(classes: Any) -> Any:
    """Class labels with their types, as levels are stored; a list of lists for several targets."""
    if classes is None:
        return None
    if classes and isinstance(classes[0], tuple):
        return {"targets": [_describe_classes(each) for each in classes]}
    return [describe_level(label, "(class)") for label in classes]


def _classes_from(description: Any) -> Any:
    if description is None:
        return None
    if isinstance(description, dict):
        return tuple(_classes_from(each) for each in description["targets"])
    return tuple(level_from(label) for label in description)
