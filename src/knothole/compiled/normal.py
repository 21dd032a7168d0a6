"""Normal quantiles of the lower tail in kernels: Wichura's AS 241, to about 1e-15.

Scipy has the others: :mod:`knothole.compiled.sobol` keeps a table of them.
"""

from __future__ import annotations

import math

from knothole.compiled.policy import inlined, inner

_FAR = (
    (1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550, 3.64784832476320460504,
     1.27045825245236838258, 0.241780725177450611770, 2.27238449892691845833e-2,
     7.74545014278341407640e-4),
    (1.0, 2.05319162663775882187, 1.67638483018380384940, 0.689767334985100004550,
     0.148103976427480074590, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
     1.05075007164441684324e-9),
)  # fmt: skip
_FARTHEST = (
    (6.65790464350110377720, 5.46378491116411436990, 1.78482653991729133580,
     0.296560571828504891230, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
     2.71155556874348757815e-5, 2.01033439929228813265e-7),
    (1.0, 0.599832206555887937690, 0.136929880922735805310, 1.48753612908506148525e-2,
     7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7,
     2.04426310338993978564e-15),
)  # fmt: skip


@inlined
def ratio(polynomials, x):  # type: ignore[no-untyped-def]
    """One polynomial over another."""
    return polynomial(polynomials[0], x) / polynomial(polynomials[1], x)


@inlined
def polynomial(c, x):  # type: ignore[no-untyped-def]
    """Of degree seven."""
    high = ((c[7] * x + c[6]) * x + c[5]) * x + c[4]
    return (((high * x + c[3]) * x + c[2]) * x + c[1]) * x + c[0]


@inner
def lower_quantile(u):  # type: ignore[no-untyped-def]
    """The normal quantile of a ``u`` in the lower tail; finite at 0, too."""
    r = math.sqrt(-math.log(u)) if u > 0.0 else math.inf
    if r <= 5.0:
        return -ratio(_FAR, r - 1.6)
    return -ratio(_FARTHEST, min(r, 40.0) - 5.0)
