"""What several commands take, and training tables read the way all of them do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray

from knothole.cli.console import say
from knothole.cli.files import (
    DECIMAL,
    SEPARATOR,
    Match,
    OpenedModel,
    check_column,
    match,
    source,
)
from knothole.columns.columns import Column
from knothole.columns.read import listed
from knothole.densities.names import CHOICES
from knothole.errors import InvalidInput
from knothole.out_of_core.files import CHUNK, TableFile, sampled

if TYPE_CHECKING:
    import pandas as pd

    from knothole.missingness.inference import NanPolicy
    from knothole.out_of_core.partitions import Partitions
    from knothole.progress import Verbose
    from knothole.robust import Robust
    from knothole.trees.ensemble import Ensemble

Decorator = Callable[[Any], Any]

# What is wrong with a file is said where it is opened.
FILE = click.Path(path_type=Path, readable=False)

model_argument = click.argument("model", type=FILE)
conformalize_option = click.option(
    "--conformalize",
    "held_out",
    type=FILE,
    metavar="FILE",
    help="Rows with the target that MODEL was not trained on. knothole predict --interval (for "
    "classifiers --set) needs them; they are stored in the output.",
)


all_option = click.option(
    "--all",
    "every",
    is_flag=True,
    help="Learn from every row of TRAIN, however many: settings are chosen on 200,000 rows, then "
    "all rows train the density, read in chunks without more memory.",
)
USE_ALL = " --all learns from every row."
cost_option = click.option(
    "--cost",
    "costs",
    multiple=True,
    metavar="VARIABLE=COST",
    help="What finding out a variable costs; 1 for those not named. May be repeated.",
)
group_option = click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="NAME=COLUMN,COLUMN",
    help="Columns that become known together and count as one; may be repeated.",
)


def _separator(context: click.Context, _: click.Parameter, value: str | None) -> None:
    """Keep --sep for :func:`source`."""
    if value is None:
        return
    separator = {"tab": "\t", "\\t": "\t"}.get(value, value)
    if len(separator) != 1:
        raise click.BadParameter(f"must be one character or the word tab; got {value!r}.")
    context.meta[SEPARATOR] = separator


def _decimal(context: click.Context, _: click.Parameter, value: str) -> None:
    """Keep --decimal for :func:`source`."""
    context.meta[DECIMAL] = value


csv_options = (
    click.option(
        "--sep",
        metavar="CHARACTER",
        callback=_separator,
        expose_value=False,
        help="What separates the fields of CSV files that are read, such as ';' or tab; by default "
        "a comma, in .tsv a tab.",
    ),
    click.option(
        "--decimal",
        type=click.Choice([".", ","]),
        default=".",
        show_default=True,
        callback=_decimal,
        expose_value=False,
        help="Decimal mark in CSV files that are read.",
    ),
)


def costs_of(given: Sequence[str]) -> dict[str, float]:
    """What ``--cost`` says.

    Examples
    --------
    >>> costs_of(["blood sample=30"])
    {'blood sample': 30.0}
    """
    found = {}
    for text in given:
        name, _, value = text.rpartition("=")
        try:
            found[name] = float(value if name else "")
        except ValueError:
            raise InvalidInput(
                f"--cost: must be VARIABLE=COST, such as age=1; got {text!r}."
            ) from None
    return found


def groups_of(given: Sequence[str]) -> dict[str, list[str]]:
    """What ``--group`` says.

    Examples
    --------
    >>> groups_of(["blood=glucose,insulin"])
    {'blood': ['glucose', 'insulin']}
    """
    found = {}
    for text in given:
        name, _, columns = text.partition("=")
        if not (name and columns):
            raise InvalidInput(
                f"--group: must be NAME=COLUMN,COLUMN, such as blood=glucose,insulin; got {text!r}."
            )
        found[name] = columns.split(",")
    return found


def choice_option(name: str, choices: Iterable[str], text: str) -> Decorator:
    """An option that is one of a few words, by default the first."""
    words = list(choices)
    return click.option(
        name, type=click.Choice(words), default=words[0], show_default=True, help=text
    )


@dataclass(frozen=True)
class Learning:
    """How p(X) is learned from a file; see :func:`learning_options`."""

    drop: tuple[str, ...]
    auxiliary: tuple[str, ...]
    density: str
    one_hot: bool
    rows: int
    seed: int
    allow_pickle: bool


def learning_options(rows: int, what: str) -> Decorator:
    """Options of all commands that may learn p(X), which come as one ``learning``.

    ``rows`` is how many rows of a file are kept in memory by default, and ``what`` they are for.
    """
    given = (
        click.option(
            "--drop",
            multiple=True,
            metavar="COLUMN",
            help="Column that is no feature; may be repeated.",
        ),
        click.option(
            "--auxiliary",
            multiple=True,
            metavar="COLUMN",
            help="Column that is not a feature of the model but is informative about its "
            "features. Later tables may have it or not. May be repeated.",
        ),
        choice_option(
            "--density",
            CHOICES,
            "The density p(X); auto tries several and keeps the best on held-out rows.",
        ),
        click.option(
            "--one-hot",
            is_flag=True,
            help="Take one-hot columns named prefix_level as one variable each.",
        ),
        click.option(
            "--rows",
            type=click.IntRange(min=2),
            default=rows,
            show_default=True,
            help=f"Most rows to {what}; a larger file is sampled at random.",
        ),
        click.option("--seed", default=0, show_default=True, help="Seed of what is random."),
        click.option(
            "--allow-pickle",
            is_flag=True,
            help="Open a pickled scikit-learn model (.joblib, .pkl). A pickle can run any code: "
            "only for files you trust.",
        ),
    )

    return gathered("learning", Learning, (*given, *csv_options))


def gathered(name: str, kind: Any, given: Sequence[Decorator]) -> Decorator:
    """Options that come to a command as one argument: a dataclass with a field for each."""

    def decorate(command: Any) -> Any:
        @wraps(command)
        def called(**options: Any) -> Any:
            own = {field: options.pop(field) for field in kind.__dataclass_fields__}
            return command(**{name: kind(**own)}, **options)

        for option in reversed(given):
            called = option(called)
        return called

    return decorate


def read_rows(
    path: Path, model: OpenedModel, target: str | None, learning: Learning, hint: str = ""
) -> tuple[pd.DataFrame, NDArray[Any] | None]:
    """Rows of a file over a model's columns, and their targets if the column of these is named.

    Rows whose target is not known are left out; ``hint`` is said where rows are sampled.
    """
    table, found, names, described = _matched(path, model, target, learning)
    frame, total = sampled(table, names, described, learning.rows, learning.seed)
    if len(frame) < total:
        say(f"{table.shown}: {len(frame):,} of {total:,} rows, chosen at random.{hint}")
    if target is None:
        return found.table(frame, learning.auxiliary), None
    known = frame[target].notna().to_numpy()
    if not known.any():
        raise InvalidInput(f"{table.shown}: the target {target!r} is empty in every row.")
    if not known.all():
        say(f"{table.shown}: {int((~known).sum()):,} rows without a target are left out.")
    frame = frame[known].reset_index(drop=True)
    y = _targets(frame[target], model.ensemble, table.shown)
    return found.table(frame, learning.auxiliary), y


def parts_of_file(
    path: Path, model: OpenedModel, target: str | None, learning: Learning
) -> Partitions:
    """All rows of a file as :func:`read_rows` has them, so many at a time."""
    table, found, names, described = _matched(path, model, target, learning)

    from knothole.out_of_core.partitions import Partitions

    def tables() -> Iterator[tuple[pd.DataFrame, NDArray[Any] | None, None]]:
        for chunk, _ in table.chunks(names, described, CHUNK):
            if target is None:
                yield found.table(chunk, learning.auxiliary), None, None
            else:
                known = chunk[chunk[target].notna()]
                y = _targets(known[target], model.ensemble, table.shown)
                yield found.table(known, learning.auxiliary), y, None

    return Partitions.of(tables)


def _matched(
    path: Path, model: OpenedModel, target: str | None, learning: Learning
) -> tuple[TableFile, Match, list[str], list[Column]]:
    """A file, where the model's columns are in it, the columns to read, and what they hold."""
    table = source(path)
    for name in learning.drop:
        check_column(table, name, "--drop")
    for name in learning.auxiliary:
        check_column(table, name, "--auxiliary")
        if name in learning.drop:
            raise InvalidInput(f"--auxiliary {name}: --drop {name} leaves the same column out.")
        if model.robust is not None:
            raise InvalidInput(
                f"--auxiliary {name}: the model has been wrapped already, with the columns it "
                f"has; wrap the library's own file with --auxiliary."
            )
    targets = [] if target is None else [target]
    for name in targets:
        check_column(table, name, "--target")
    used = set(model.columns.names if model.columns.named else ())
    for option, given in (("--auxiliary", learning.auxiliary), ("--drop", learning.drop)):
        for name in used & set(given):
            raise InvalidInput(f"{option} {name}: the model itself uses this column.")
    found = match(model.columns, table, [*learning.drop, *learning.auxiliary, *targets])
    names = list(dict.fromkeys([*found.names, *learning.auxiliary, *targets]))
    numbers = [] if _has_labels(model.ensemble) else targets
    table.numeric |= set(numbers)
    return table, found, names, [*found.described, *map(Column, [*learning.auxiliary, *numbers])]


def _has_labels(ensemble: Ensemble) -> bool:
    """Whether targets are labels, and not numbers."""
    from knothole.trees.classes import class_lists, is_classifier

    return is_classifier(ensemble) and len(class_lists(ensemble)) == 1


def _targets(values: pd.Series[Any], ensemble: Ensemble, where: str) -> NDArray[Any]:
    """Numbers for a regressor, for a classifier its own labels, however the file spells them."""
    from knothole.trees.classes import class_lists

    if not _has_labels(ensemble):
        return np.asarray(values, dtype=np.float64)
    labels = class_lists(ensemble)[0]
    spelled = {spelling(label): label for label in labels}
    texts = values.map(spelling)
    unknown = texts[~texts.isin(list(spelled))]
    if len(unknown):
        raise InvalidInput(
            f"{where}: the target {values.name!r} holds {unknown.iloc[0]!r}; the model's classes "
            f"are {listed(labels)}. Write them as the model has them."
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
    model: OpenedModel,
    table: Any,
    target: NDArray[Any] | None,
    learning: Learning,
    nan_policy: NanPolicy = "infer",
) -> Robust:
    """What :func:`knothole.wrap` makes of a library's own model and its training rows."""
    from knothole.wrapping import wrap

    return wrap(
        model.native,
        table,
        target,
        learning.density,
        one_hot="auto" if learning.one_hot else None,
        nan_policy=nan_policy,
        auxiliary=learning.auxiliary,
        random_state=learning.seed,
        verbose=stages(),
    )


def stages() -> Verbose:
    """How progress is shown: a bar on a terminal, elsewhere a line for each stage."""
    return "auto" if sys.stderr.isatty() else True


def check_held_out(path: Path | None, target: str | None) -> None:
    """Refuse, before any work is done, a file for ``--conformalize`` that cannot serve."""
    if path is None:
        return
    if target is None:
        raise InvalidInput(
            "--conformalize: needs the column the model predicts; name it with --target."
        )
    check_column(source(path), target, "--target")


def conformalized(
    robust: Robust, path: Path | None, target: str | None, learning: Learning
) -> Robust:
    """The model with the intervals or sets that a file's rows give it, where there is one."""
    if path is None:
        return robust
    from knothole.inspection.conformal import KEPT

    model = OpenedModel(robust, None, robust.ensemble_, robust.columns_)
    own = replace(learning, drop=(), auxiliary=(), rows=KEPT)
    table, y = read_rows(path, model, target, own)
    return robust.conformalize(table, y)
