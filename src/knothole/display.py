"""What a :class:`Robust` looks like: one line in a terminal, a box in a notebook."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from knothole.robust import Robust


def text(robust: Robust) -> str:
    """One line: which model, which density, how it was chosen."""
    sentences = [_model(robust), _density(robust), *_choice(robust), *_tuning(robust)]
    return f"Robust({'; '.join(sentences)})"


def html(robust: Robust) -> str:
    """A box in the style of scikit-learn's diagrams, with the tables to unfold."""
    parts = [
        _line("model", _model(robust)),
        _line("density", _density(robust)),
        *(_line("chosen", sentence) for sentence in _choice(robust)),
        _line("answers", _how(robust)),
        *(_line("leaves", sentence) for sentence in _tuning(robust)),
    ]
    if robust.selection_ is not None:
        parts.append(_folded("candidates", robust.selection_))
    if robust.nan_meaning_ is not None and len(robust.nan_meaning_):
        parts.append(_folded("columns with NaN in training", robust.nan_meaning_))
    style = files("knothole").joinpath("robust.css").read_text("utf-8")
    return (
        f"<style>{style}</style><div class='knothole-box' role='group' aria-label='Robust'>"
        f"<div class='knothole-title'>Robust</div><dl>{''.join(parts)}</dl></div>"
        f"<pre class='knothole-plain' hidden>{escape(text(robust))}</pre>"
    )


def _line(name: str, sentence: str) -> str:
    return f"<dt>{escape(name)}</dt><dd>{escape(sentence)}</dd>"


def _folded(title: str, table: pd.DataFrame) -> str:
    body = table.to_html(index=False, border=0, na_rep="", float_format=lambda x: f"{x:.4g}")
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def _model(robust: Robust) -> str:
    ensemble = robust.ensemble_
    return (
        f"{robust.model_name_} ({ensemble.library}), {_count(ensemble.n_trees, 'tree')} over "
        f"{_count(len(ensemble.columns), 'column')}"
    )


def _density(robust: Robust) -> str:
    density: Any = robust.density_
    name = type(getattr(density, "density", density)).__name__
    for attribute, unit in (("states_", "state"), ("weights_", "component")):
        size = getattr(density, attribute, None)
        if size is not None and name != "Factorized":
            return f"{name} with {_count(size if np.isscalar(size) else len(size), unit)}"
    return name


def _choice(robust: Robust) -> list[str]:
    """How good the density is among those that were tried."""
    table = robust.selection_
    if table is None:
        return []
    chosen = table[table["chosen"]].iloc[0]
    sentence = f"best of {len(table)}, score {chosen['score']:.4g}"
    behind = table[~table["chosen"] & np.isfinite(table["behind"].astype(float))]
    if len(behind):
        second = behind.sort_values("behind").iloc[0]
        sentence += f", {second['behind']:.2g} ± {second['error']:.1g} ahead of {second['name']}"
    return [sentence]


def _tuning(robust: Robust) -> list[str]:
    summary = robust.tuning_
    if summary is None:
        return []
    return [
        f"tuned ({summary.method}), {summary.objective} {summary.loss} {summary.before:.4g} -> "
        f"{summary.after:.4g}"
    ]


def _how(robust: Robust) -> str:
    expectation = robust.expectation_
    how = "exact" if expectation.exact else "from completions, with a standard error"
    if not expectation.ensemble.link.linear:
        return f"margins {how}; predictions from completions"
    return how


def _count(n: Any, unit: str) -> str:
    return f"{n:,} {unit}{'' if n == 1 else 's'}"
