"""Tables as Markdown."""

from __future__ import annotations

import numpy as np
import pandas as pd


def table(frame: pd.DataFrame, text_columns: int = 1) -> str:
    """A table of texts; the first columns, of names, are left-aligned.

    Examples
    --------
    >>> print(table(pd.DataFrame({"peer": ["median"], "error": ["1.2"]})))
    | peer | error |
    | :--- | ---: |
    | median | 1.2 |
    """
    header = [str(name) for name in frame.columns]
    rule = [":---" if place < text_columns else "---:" for place in range(len(header))]
    lines = [header, rule, *([str(value) for value in row] for row in frame.to_numpy())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float, digits: int = 4) -> str:
    """A number with so many significant digits, never in powers of ten; "" for NaN.

    Examples
    --------
    >>> number(0.0123456), number(65912.3), number(float("inf")), number(1.0)
    ('0.01235', '65912', 'failed', '1.000')
    """
    if np.isnan(value):
        return ""
    if np.isinf(value):
        return "failed"
    magnitude = int(np.floor(np.log10(abs(value)))) if value else 0
    return f"{value:.{max(0, digits - 1 - magnitude)}f}"


def percent(share: float) -> str:
    """Whole percent, never rounded up to a goal that was missed.

    Examples
    --------
    >>> percent(0.8499), percent(0.85)
    ('84 %', '85 %')
    """
    return f"{int(100 * share + 1e-9)} %"


def p_value(value: float) -> str:
    """A p-value; "" for NaN.

    Examples
    --------
    >>> p_value(0.0312), p_value(1e-7)
    ('0.031', '< 0.0001')
    """
    if np.isnan(value):
        return ""
    return "< 0.0001" if value < 1e-4 else f"{value:.2g}"
