"""Make entries of tables missing: in the three senses of Rubin, and whole columns that fail.

=========  ==========================================================================
MCAR       an entry goes missing by chance alone
MAR        whether it does depends on columns that stay observed
MNAR       whether it does depends on the entry itself
outage     whole columns are gone
=========  ==========================================================================

Every mechanism comes three times: as a table with missing values (``mar``), as the mask alone
(``mar_mask``, True where an entry goes missing) and as the probabilities the mask is drawn from
(``mar_probability``). The rate is exact in those: in every column that can go missing, the
probabilities of the entries that were there average to ``rate``, so a mask differs from it by
chance alone. Entries that are missing already stay so and do not count.

By default each column goes missing by itself, which for a one-hot table is masking *after*
encoding. With ``one_hot`` (a mapping, or "auto"; see :class:`~knothole.columns.columns.Columns`)
all dummies of a one-hot group go missing together, as if the values had gone missing *before*
encoding.

A mechanism that differs between training and deployment is two calls. One that is the same is two
calls with the same ``mechanism`` seed, the second with ``reference=`` the first table, from which
means, quantiles and intercepts are then taken.
"""

from knothole.missingness.masks import *  # noqa: F403
from knothole.missingness.masks import __all__ as __all__
