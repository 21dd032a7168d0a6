"""The HTML report: one file with everything in it, and nothing fetched from anywhere."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import pandas as pd

from knothole import __version__
from knothole.densities.names import name_of
from knothole.errors import MissingExtra
from knothole.inspection.acquisition import NOTHING
from knothole.report import displays, style
from knothole.report.evaluation import Asked, Evaluation
from knothole.report.methods import KNOTHOLE, NATIVE
from knothole.robust import say_missing


@dataclass(frozen=True)
class Table:
    """A table of text: a header, rows, and which row stands out."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marked: int | None = None


def render(evaluation: Evaluation, title: str, lead: str = "") -> str:
    """The report as HTML.

    Parameters
    ----------
    evaluation : Evaluation
        What was measured.
    title : str
        The headline.
    lead : str
        A sentence or two below it.
    """
    try:
        import jinja2
    except ImportError as error:
        raise MissingExtra("the report needs jinja2: pip install 'knothole[report]'.") from error
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    source = resources.files("knothole.report").joinpath("page.html").read_text(encoding="utf-8")
    return environment.from_string(source).render(
        title=title, lead=lead, version=__version__, **_content(evaluation)
    )


def _content(evaluation: Evaluation) -> dict[str, Any]:
    """What the page says, and what it draws with."""
    robust, robustness = evaluation.case.robust, evaluation.robustness
    return {
        "evaluation": evaluation,
        "density": name_of(robust.density_),
        "displays": displays,
        "uri": _uri,
        "facts": headline(evaluation),
        # The metric that is easiest to grasp first.
        "errors": [(name, error_table(evaluation, name)) for name in reversed(robustness.errors)],
        "coverage_table": _coverage_table(evaluation),
        "asked_table": _asked_table(evaluation.asked),
        "selection": None if robust.selection_ is None else _selection_table(robust.selection_),
        "nan_policy": say_missing(robust),
        "timings": _timings_table(evaluation),
    }


def headline(evaluation: Evaluation) -> list[tuple[str, str, str]]:
    """Three numbers at the rate nearest to one half: each, what it is, and how it is drawn."""
    robustness = evaluation.robustness
    metric, errors = list(robustness.errors.items())[-1]
    place = int(np.argmin(np.abs(np.asarray(robustness.rates) - 0.5)))
    own, labels = errors[KNOTHOLE], robustness.labels
    name = "of answers wrong" if metric == "error rate" else metric
    facts = [(number(own[0].mean(), metric), f"{name} with nothing missing", "complete")]
    if NATIVE in errors:
        text = f"{labels[NATIVE]}, {share(robustness.rates[place])} of entries missing"
        facts.append((number(errors[NATIVE][place].mean(), metric), text, "native"))
    text = f"{labels[KNOTHOLE]}, the same rows, the same model"
    return [*facts, (number(own[place].mean(), metric), text, "knothole")]


def share(value: float) -> str:
    """A share in percent.

    Examples
    --------
    >>> share(0.25)
    '25 %'
    """
    return f"{100 * value:.0f} %"


def number(value: float, metric: str = "") -> str:
    """A number as a reader wants it: three digits, shares in percent.

    Examples
    --------
    >>> number(0.1234, "error rate"), number(12345.6), number(0.01234)
    ('12.3 %', '12,346', '0.0123')
    """
    if metric == "error rate":
        return f"{100 * value:.1f} %"
    if not np.isfinite(value):
        return "–"
    size = abs(value)
    if size < 1:
        return f"{value:#.3g}"
    return f"{value:,.{2 - (size >= 10) - (size >= 100)}f}"


def number_or_nothing(value: float, largest: float) -> str:
    """A number, unless it is nothing beside the largest of its kind.

    Examples
    --------
    >>> number_or_nothing(1.1e-07, 0.3), number_or_nothing(0.01, 0.3)
    ('about 0', '0.0100')
    """
    return "about 0" if abs(value) <= NOTHING * largest else number(value)


def error_table(evaluation: Evaluation, metric: str) -> Table:
    """Mean error of each method at each rate."""
    robustness = evaluation.robustness
    table = robustness.table(metric)
    header = ("missing", *(share(rate) for rate in robustness.rates))
    rows = tuple(
        (robustness.labels.get(str(name), str(name)), *(number(value, metric) for value in row))
        for name, row in zip(table.index, table.to_numpy(), strict=True)
    )
    return Table(header, rows, marked=list(table.index).index(KNOTHOLE))


def _coverage_table(evaluation: Evaluation) -> Table:
    found = evaluation.coverage
    header = ("promised", *(share(level) for level in found.levels))
    rows = tuple(
        (f"{share(rate)} missing", *(share(part) for part in covered))
        for rate, covered in found.covered.items()
    )
    return Table(header, rows)


def _asked_table(asked: Asked) -> Table:
    header = ("variable", "adds, where known", "gain of knowing it, where missing")
    both = zip(asked.adds.index, asked.adds, asked.gains.reindex(asked.adds.index), strict=True)
    most = asked.adds.abs().max(), asked.gains.abs().max()
    rows = tuple(
        (str(name), number_or_nothing(adds, most[0]), number_or_nothing(gain, most[1]))
        for name, adds, gain in both
    )
    return Table(header, rows[:12])


def _selection_table(selection: pd.DataFrame) -> Table:
    header = ("density", f"held-out {selection['metric'].iloc[0]}", "seconds to learn", "")
    rows = []
    for row in selection.to_dict("records"):
        cells = (number(row[name]) for name in ("value", "seconds"))
        rows.append((str(row["name"]), *cells, str(row.get("note") or "")))
    chosen = [place for place, yes in enumerate(selection["chosen"]) if yes]
    return Table(header, tuple(rows), chosen[0] if chosen else None)


def _timings_table(evaluation: Evaluation) -> Table:
    robustness = evaluation.robustness
    rows = []
    for name, seconds in robustness.seconds.items():
        learning = robustness.learning.get(name, np.nan)
        rows.append((robustness.labels.get(name, name), duration(learning), duration(seconds)))
    return Table(("method", "to learn", "per 1,000 rows"), tuple(rows), marked=0)


def duration(seconds: float) -> str:
    """Seconds for readers.

    Examples
    --------
    >>> duration(0.00012), duration(0.25), duration(12.3)
    ('< 1 ms', '250 ms', '12.3 s')
    """
    if not np.isfinite(seconds):
        return "–"
    if seconds < 0.001:
        return "< 1 ms"
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _uri(display: displays.Display[Any], width: float, height: float) -> str:
    """A figure, in inches, as SVG in a data URI: in an image of its own no two ids can clash."""
    buffer = io.BytesIO()
    figure = display.drawn(width, height)
    with style.look():
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()
