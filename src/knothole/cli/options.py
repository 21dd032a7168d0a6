"""What several commands take, and training tables read the way all of them do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from knothole.cli.console import say
from knothole.cli.matching import check_column, match
from knothole.cli.sources import sampled, source
from knothole.errors import InvalidInput
from knothole.estimators import Robust, answers, wrap
from knothole.questions.intervals import KEPT
from knothole.tables.columns import Columns
from knothole.trees.ensemble import Ensemble

Decorator = Callable[[Any], Any]

# What is wrong with a file is said where it is opened.
FILE = click.Path(path_type=Path, readable=False)
#: Densities by their name on the command line.
DENSITIES = {
    "auto": "auto",
    "factorized": "Factorized",
    "mixture": "Mixture",
    "latent-tree": "LatentTree",
    "gaussian-mixture": "GaussianMixture",
}

model_argument = click.argument("model", type=FILE)
seed_option = click.option("--seed", default=0, show_default=True, help="Seed of what is random.")
pickle_option = click.option(
    "--allow-pickle",
    is_flag=True,
    help="Open a pickled scikit-learn model (.joblib, .pkl). A pickle can run any code: only for "
    "files you trust.",
)
drop_option = click.option(
    "--drop", multiple=True, metavar="COLUMN", help="Column that is no feature; may be repeated."
)
density_option = click.option(
    "--density",
    type=click.Choice(list(DENSITIES)),
    default="auto",
    show_default=True,
    help="The density p(X); auto tries several and keeps the best on held-out rows.",
)
blocks_option = click.option(
    "--blocks", is_flag=True, help="Take one-hot columns named prefix_level as one variable each."
)
calibrate_option = click.option(
    "--calibrate",
    "calibration",
    type=FILE,
    metavar="FILE",
    help="Rows with the target that MODEL was not trained on: from them knothole predict "
    "--interval knows how far the target may be. They are kept in the output.",
)


def rows_option(default: int, what: str) -> Decorator:
    """``--rows``: how many rows are kept in memory."""
    return click.option(
        "--rows",
        type=click.IntRange(min=2),
        default=default,
        show_default=True,
        help=f"Most rows to {what}; a larger file is sampled at random.",
    )


def density_named(name: str, seed: int) -> Any:
    """What :func:`knothole.wrap` takes as density."""
    import knothole

    if name == "auto":
        return "auto"
    return getattr(knothole, DENSITIES[name])(random_state=seed)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows from a file: the model's columns, and the target where it was asked for."""

    table: pd.DataFrame
    target: NDArray[Any] | None


def read_rows(
    path: Path,
    ensemble: Ensemble,
    *,
    columns: Columns | None = None,
    target: str | None,
    drop: Sequence[str] = (),
    rows: int,
    seed: int = 0,
) -> Rows:
    """Rows of a file over a model's columns; those whose target is not known are left out.

    ``columns`` describe them better than the ensemble where the model has been wrapped.
    """
    table = source(path)
    for name in drop:
        check_column(table, name, "--drop")
    if target is not None:
        check_column(table, target, "--target")
    leave_out = [*drop, *([] if target is None else [target])]
    found = match(ensemble.columns if columns is None else columns, table, leave_out)
    names = found.names if target is None else [*found.names, target]
    frame, total = sampled(table, names, found.described, rows, seed)
    if len(frame) < total:
        say(f"{path}: {len(frame):,} of {total:,} rows, chosen at random.")
    if target is None:
        return Rows(found.table(frame), None)
    known = frame[target].notna().to_numpy()
    if not known.any():
        raise InvalidInput(f"{path}: the target {target!r} is empty in every row.")
    if not known.all():
        say(f"{path}: {int((~known).sum()):,} rows without a target are left out.")
    frame = frame[known].reset_index(drop=True)
    return Rows(found.table(frame), _targets(frame[target], ensemble, path))


def _targets(values: pd.Series[Any], ensemble: Ensemble, path: Path) -> NDArray[Any]:
    """Numbers for a regressor, for a classifier its own labels, however the file spells them."""
    lists = answers.class_lists(ensemble)
    if not answers.is_classifier(ensemble) or len(lists) > 1:
        try:
            return np.asarray(pd.to_numeric(values), dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InvalidInput(
                f"{path}: the target {values.name!r} must hold numbers: the model is a regressor "
                f"({error})."
            ) from error
    spelled = {spelling(label): label for label in lists[0]}
    texts = values.map(spelling)
    unknown = texts[~texts.isin(list(spelled))]
    if len(unknown):
        raise InvalidInput(
            f"{path}: the target {values.name!r} holds {unknown.iloc[0]!r}; the model's classes "
            f"are {lists[0]}. Write them as the model has them."
        )
    return np.array([spelled[text] for text in texts])


def spelling(label: Any) -> str:
    """How a label is written, the same for 1, 1.0 and "1".

    Examples
    --------
    >>> spelling(1), spelling("1.0"), spelling("yes"), spelling(True)
    ('1', '1', 'yes', 'True')
    """
    text = str(label)
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if number.is_integer() else str(number)


def learn(
    model: Any,
    rows: Rows,
    density: str,
    *,
    blocks: bool,
    seed: int,
    holes: Literal["auto", "all"] = "auto",
) -> Robust:
    """What :func:`knothole.wrap` makes of a model and its training rows."""
    return wrap(
        model,
        rows.table,
        rows.target,
        density_named(density, seed),
        blocks="auto" if blocks else None,
        holes=holes,
        random_state=seed,
    )


def calibrated(robust: Robust, path: Path | None, target: str | None, seed: int) -> Robust:
    """The model with the intervals that a file's rows give it, where there is one."""
    if path is None:
        return robust
    if target is None:
        raise InvalidInput(
            "--calibrate: needs the column the model predicts; name it with --target."
        )
    found = read_rows(
        path, robust.ensemble_, columns=robust.columns_, target=target, rows=KEPT, seed=seed
    )
    return robust.calibrate(found.table, found.target)


def takes_target(path: Path, target: str) -> str | None:
    """The name of the target where the file has it."""
    return target if target in source(path).names else None
