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

trees = build.trees
latent_tree = build.latent_tree
leaf_sets = build.leaf_sets
mixture_walk = build.mixture_walk
mixture_regions = build.mixture_regions
single_missing = build.single_missing
latent_walk = build.latent_walk
latent_regions = build.latent_regions
monte_carlo = build.monte_carlo
shared_draws = build.shared_draws
