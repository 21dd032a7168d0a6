"""Damaged model files, generated, and what reading one of them came to.

A test names the intact files of its library and calls :func:`read_all`. Each damaged file must end
in a ``KnotholeError``, or in a reading that the library's own load of the same file agrees with.
The library runs in one child process for all files, started anew when a file has crashed it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from knothole.errors import KnotholeError
from knothole.trees import quarantine, read


class KeptChild:
    """Stands in for ``quarantine.ask``: keeps the child process from one file to the next."""

    def __init__(self):
        self.child = None
        self.name = None

    def ask(self, name: str, path: Path, X: np.ndarray | None = None) -> dict[str, np.ndarray]:
        if self.child is None or self.name != name or not self.child.alive:
            self.close()
            self.child, self.name = quarantine.LibraryProcess(name), name
        return self.child.ask(path, X)

    def close(self) -> None:
        if self.child is not None:
            self.child.__exit__(None, None, None)
            self.child = None


def read_all(files: Iterator[bytes], folder: Path) -> Counter[str]:
    """Read every file; how often each outcome was seen ("read", or the exception's name)."""
    outcomes: Counter[str] = Counter()
    for content in files:
        path = folder / "damaged"
        path.write_bytes(content)
        try:
            read.read(path)
        except KnotholeError as error:
            outcomes[type(error).__name__] += 1
        else:
            outcomes["read"] += 1
    return outcomes


def truncated(content: bytes, count: int, rng: np.random.Generator) -> Iterator[bytes]:
    """Cut off somewhere."""
    for stop in rng.integers(0, len(content), count):
        yield content[:stop]


def bit_flipped(content: bytes, count: int, rng: np.random.Generator) -> Iterator[bytes]:
    """One to eight bits turned over."""
    for _ in range(count):
        damaged = bytearray(content)
        for position in rng.integers(0, len(content), rng.integers(1, 9)):
            damaged[position] ^= 1 << rng.integers(8)
        yield bytes(damaged)


def shuffled(content: bytes, count: int, rng: np.random.Generator) -> Iterator[bytes]:
    """A piece left out, doubled, zeroed, or replaced by noise."""
    for _ in range(count):
        start, stop = sorted(rng.integers(0, len(content), 2).tolist())
        stop = min(stop, start + 64)
        piece = content[start:stop]
        noise = rng.integers(0, 256, len(piece), dtype=np.uint8).tobytes()
        other = [b"", piece * 2, bytes(len(piece)), noise][rng.integers(4)]
        yield content[:start] + other + content[stop:]


# Values of another type or size than a field of a model should have.
STRANGE = [
    None,
    True,
    "text",
    "",
    -1,
    0,
    7,
    2**31,
    2**63,
    2**64 - 1,
    10**30,
    0.5,
    1e300,
    float("nan"),
    float("inf"),
    [],
    [[]],
    {},
    {"a": 1},
    "1000000000",
    "-5",
    "[1e400]",
    [0.5, "x"],
    [1, 2, 3],
]


def confused_json(content: bytes, count: int, rng: np.random.Generator) -> Iterator[bytes]:
    """One value of a JSON document replaced by something strange, or its key left out."""
    document = json.loads(content)
    places = list(_places(document))
    for _ in range(count):
        # Deep places are many and alike: every depth has the same chance.
        depths = sorted({len(place) for place in places})
        depth = depths[rng.integers(len(depths))]
        chosen = [place for place in places if len(place) == depth]
        *path, last = chosen[rng.integers(len(chosen))]
        holder = document
        for key in path:
            holder = holder[key]
        kept = holder[last]
        if isinstance(holder, dict) and rng.random() < 0.15:
            del holder[last]
        else:
            holder[last] = STRANGE[rng.integers(len(STRANGE))]
        yield json.dumps(document).encode()
        holder[last] = kept


def _places(document: object, path: tuple = ()) -> Iterator[tuple]:
    """Where every value of a document is, by keys and positions."""
    items: list = []
    if isinstance(document, dict):
        items = list(document.items())
    elif isinstance(document, list):
        items = list(enumerate(document))
    for key, value in items:
        yield (*path, key)
        yield from _places(value, (*path, key))
