# Written by tools/stubs.py from the bindings in core/. Arrays are objects there.

from types import ModuleType

build: ModuleType
