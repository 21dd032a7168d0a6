"""Simulate missing values in tables: Rubin's three mechanisms, and outages of whole columns.

=========  ==========================================================================
MCAR       entries go missing completely at random
MAR        whether an entry goes missing depends on columns that stay observed
MNAR       whether an entry goes missing depends on its own value
outage     whole columns are missing
=========  ==========================================================================

Every mechanism has three functions: one returns a table with missing values (``mar``), one only the
mask (``mar_mask``, True where an entry goes missing) and one the probabilities that the mask is
drawn from (``mar_probability``). The probabilities meet the rate exactly: in every column that can
go missing, those of its observed entries average to ``rate``. A mask differs from it by chance
alone. Entries that are already missing stay so and do not count.

By default each column goes missing by itself, which for a one-hot table is masking *after*
encoding. With ``one_hot`` (a mapping, or "auto"; see :class:`~knothole.columns.columns.Columns`)
all dummies of a group go missing together, as if values had gone missing *before* encoding.

For a mechanism that differs between training and deployment, make two calls. For the same one in
both, use the same ``mechanism`` seed and pass the first table as ``reference=`` to the second call,
which then uses the first table's means, quantiles and intercepts.
"""

from knothole.missingness.masks import *  # noqa: F403
from knothole.missingness.masks import __all__ as __all__
