"""``knothole warm``: compile all kernels now, so that no later process has to."""

from __future__ import annotations

import click

from knothole.progress import bar


@click.command(
    epilog="""
\b
Examples:
  knothole warm
  NUMBA_CACHE_DIR=/opt/kernels knothole warm

The second keeps kernels where an image has them: see docs/containers.md.
"""
)
def warm() -> None:
    """Compile all kernels, for every density and question, and keep them: for images and CI."""
    from knothole.warm import DENSITIES, use_all

    densities = ["auto", *(kind(2, random_state=0) for kind in DENSITIES)]
    with bar("compiling", len(densities)) as advance:
        for density in densities:
            use_all(density)
            advance(str(density))
