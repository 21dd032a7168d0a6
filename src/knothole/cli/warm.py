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
    """Compile what wrap and predict need, and keep it on disk: for images and CI."""
    from knothole.estimators.warm import DENSITIES, use

    with bar("compiling", len(DENSITIES)) as advance:
        for kind in DENSITIES:
            use(kind.__name__)
            advance(kind.__name__)
