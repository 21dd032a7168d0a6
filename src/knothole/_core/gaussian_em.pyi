# Written by tools/stubs.py from the bindings in core/. Arrays are objects there.

def expectations(z: object, variance: object, weight: object, repeats: object, packed: object, residual: object, product: object, joint: object, log_density: object, first: object, second: object, filled: object) -> None:
    """EM's expectation step over rows, but for sums that are products of matrices.

In: scores z (rows, d), their variances (rows, d) (0 at missing values; (rows, 0) if there are none), the rows' weights,
the numbers of the variables whose scores have variances; residuals (rows, k, d), their product with the precisions, and
in joint (rows, k) what other variables add to the log joint density.
Out: for each component, in residual those of rows that it has a share of, one after the other, with missing values at
their expectation, and in product the same times the shares; filled (k,) says how many. joint becomes responsibilities,
times the rows' weights; log_density (rows,) log p of the observed part. To first (k, d) residuals are added, to second
(d, d, padded), lower triangle, what conditional and own variances add to their products, times the shares."""

def invert(covariance: object, precision: object, log_det: object) -> None:
    """Inverses (k, d, d) and log determinants (k,) of covariances."""

def log_joint(z: object, variance: object, packed: object, sharpness: object, out: object) -> None:
    """Add log (weight p(z_o)) of every row and component to out (rows, k)."""

def moments(z: object, packed: object, mean: object, covariance: object) -> None:
    """Conditional means (rows, k, d) and covariances (rows, k, d, d) of all variables in each component."""

def residuals(z: object, mean: object, out: object) -> None:
    """Write z - mean of every component, 0 at missing values, to out (rows, k, d)."""
