"""Attributes that are computed when they are first accessed."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

__all__ = ["cached_property"]

if TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property(functools.cached_property):
        """:class:`functools.cached_property` without a lock, as it is since Python 3.12.

        In Python 3.11 one lock serves all instances of a class: a prediction would wait for another
        model's, and a process forked while the lock is held would wait for ever. Threads that
        access the attribute at the same time may each compute a value; all of them get the same
        one.

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
            """The value, stored in the instance; Python calls this only while it is not there."""
            if instance is None:
                return self
            return instance.__dict__.setdefault(self.attrname, self.func(instance))
