"""``knothole whatif``: a page to ask a model with unknown inputs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from knothole.cli import options
from knothole.cli.console import say
from knothole.cli.files import load_wrapped
from knothole.serve import server


@click.command(
    epilog="""
\b
Examples:
  knothole whatif model.knothole
  knothole whatif model.knothole --cost "blood sample=30" --cost age=1
  knothole whatif model.knothole --host 0.0.0.0 --name ward7.example

The same server answers programs: POST /predict, /explain and /acquire with JSON rows, in which a
key that is absent is unknown; /openapi.json describes them. It listens on loopback unless told
otherwise, and then asks for a token.
"""
)
@options.model_argument
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=server.PORT, show_default=True,
              help="Port to listen at; 0 for any that is free.")  # fmt: skip
@click.option("--name", "names", multiple=True, metavar="NAME",
              help="Name by which others reach this machine; may be repeated.")  # fmt: skip
@click.option("--token", envvar="KNOTHOLE_TOKEN", metavar="TOKEN",
              help="What requests must carry; made where --host is not loopback.")  # fmt: skip
@options.cost_option
@click.option("--browser/--no-browser", default=None,
              help="Whether to open the page; by default at a terminal.")  # fmt: skip
def whatif(
    model: Path,
    host: str,
    port: int,
    names: tuple[str, ...],
    token: str | None,
    costs: tuple[str, ...],
    browser: bool | None,
) -> None:
    """Serve a page on which MODEL (from knothole wrap) is asked with unknown inputs."""
    cost = options.costs_of(costs) or None
    opened = sys.stdout.isatty() if browser is None else browser
    serving = server.whatif(
        load_wrapped(model), host=host, port=port, names=names, token=token, cost=cost,
        browser=opened,
    )  # fmt: skip
    say(f"{serving.url}  (Ctrl-C ends it)")
    serving.run()
