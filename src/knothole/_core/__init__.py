"""Compiled kernels, from the C++ sources in ``core/``, in the build for this processor.

``KNOTHOLE_BUILD=baseline`` chooses the build that every processor can run.
"""

import os

try:
    from knothole._core import baseline
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "knothole's compiled core is not built. Install the package (pip install .), which needs a "
        "C++17 compiler; CMake and Ninja come by pip."
    ) from error

if os.environ.get("KNOTHOLE_BUILD", "v3") == "v3" and baseline.supports_v3():
    from knothole._core import v3 as build
else:
    build = baseline

boosting = build.boosting
chow_liu = build.chow_liu
circuit = build.circuit
columns = build.columns
drawn_leaves = build.drawn_leaves
gaussian_draws = build.gaussian_draws
gaussian_em = build.gaussian_em
latent_regions = build.latent_regions
latent_tree = build.latent_tree
latent_walk = build.latent_walk
leaf_probabilities = build.leaf_probabilities
leaf_sets = build.leaf_sets
mixture = build.mixture
mixture_regions = build.mixture_regions
mixture_walk = build.mixture_walk
monte_carlo = build.monte_carlo
normal = build.normal
normal_scores = build.normal_scores
regions = build.regions
shared_draws = build.shared_draws
single_missing = build.single_missing
sobol = build.sobol
trees = build.trees
