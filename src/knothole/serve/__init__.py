"""A page to ask a model with unknown inputs, and the server behind it.

:func:`whatif` serves a wrapped model on loopback: one page for people, and ``POST /predict``,
``/explain`` and ``/acquire`` with JSON rows for programs. Starlette and uvicorn are needed (the
extra ``serve``); nothing here is imported before it is asked for.
"""

from knothole.serve.server import Serving, whatif

__all__ = ["Serving", "whatif"]
