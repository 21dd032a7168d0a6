"""Attributes that are computed when they are first asked for."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

__all__ = ["cached_property"]

if TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property(functools.cached_property):
        """:class:`functools.cached_property` without a lock, as it is from Python 3.12 on.

        That of Python 3.11 holds one lock for all instances of a class while it computes: a
        prediction would wait for another model's, a process that is forked meanwhile for ever.
        Threads that ask at the same time may each compute a value; all of them get the first one.

        Examples
        --------
        >>> class Table:
        ...     @cached_property
        ...     def size(self):
        ...         print("computed")
        ...         return 3
        >>> table = Table()
        >>> table.size + table.size
        computed
        6
        """

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            """The value, kept in the instance: Python asks here only until it is there."""
            if instance is None:
                return self
            return instance.__dict__.setdefault(self.attrname, self.func(instance))
