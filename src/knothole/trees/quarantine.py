"""The library's own answer to a model *file*, computed in a separate process.

A damaged file can crash or hang the library that loads it. Here that only ends a child process,
and becomes an exception. Question and answer are ``npz`` archives on the child's standard input
and output, each preceded by its length; nothing is unpickled on either side.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from threading import Timer
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.errors import DamagedFile, MissingExtra
from knothole.trees.libraries import Replay, reader_of

TIMEOUT = 120.0  # seconds, for loading a file and predicting a few hundred rows


def replay(library: str, path: Path, X: Floats) -> Replay:
    """What a library predicts for rows ``X`` after it has loaded ``path``."""
    answer = ask(library, path, X)
    return Replay(answer["margin"], answer.get("leaves"))


def ask(library: str, path: Path, X: Floats | None = None) -> dict[str, NDArray[Any]]:
    """Ask a new process; without rows, for the bytes that the library itself saves."""
    with LibraryProcess(library) as child:
        return child.ask(path, X)


class LibraryProcess:
    """A child process that answers questions about files of one library, until one crashes it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._process = subprocess.Popen(
            # -P: nothing is imported from the current directory.
            [sys.executable, "-P", "-W", "ignore", "-m", __name__, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Libraries take file names as UTF-8, whatever the locale says.
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"},
        )

    def __enter__(self) -> LibraryProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def ask(self, path: Path, X: Floats | None = None) -> dict[str, NDArray[Any]]:
        """The library's answer to rows ``X``, or the bytes it saves, after loading ``path``."""
        name = np.frombuffer(os.fsencode(path), dtype=np.uint8)
        question: dict[str, NDArray[Any]] = {"path": name}
        if X is not None:
            question["rows"] = X
        timer = Timer(TIMEOUT, self._process.kill)
        timer.start()
        try:
            _send(self._process.stdin, question)
            answer = _receive(self._process.stdout)
        except OSError:  # the process has ended
            answer = None
        finally:
            expired = not timer.is_alive()
            timer.cancel()
        if answer is None:
            how = f"took longer than {TIMEOUT:.0f} s" if expired else "crashed"
            code = self._process.wait()
            raise DamagedFile(
                f"{path}: {self._name} {how} when it loaded the file (exit code {code})."
            )
        if "missing" in answer:
            job = "read" if X is None else "check what was read from"
            raise MissingExtra(
                f"{path}: it takes {self._name} itself to {job} it "
                f"({answer['missing']}): pip install 'knothole[{self._name}]'."
            )
        if "error" in answer:
            raise DamagedFile(f"{path}: {self._name} itself refuses it: {answer['error']}")
        return answer


def _send(stream: Any, arrays: dict[str, NDArray[Any]]) -> None:
    archive = io.BytesIO()
    np.savez(archive, allow_pickle=False, **arrays)
    stream.write(archive.tell().to_bytes(8, "little") + archive.getvalue())
    stream.flush()


def _receive(stream: Any) -> dict[str, NDArray[Any]] | None:
    """The next message; None where the other side has closed the pipe."""
    length = int.from_bytes(stream.read(8), "little")
    content = stream.read(length)
    if not length or len(content) < length:
        return None
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return dict(archive)


def _serve(name: str, questions: BinaryIO, answers: BinaryIO) -> None:
    while (question := _receive(questions)) is not None:
        path = Path(os.fsdecode(question["path"].tobytes()))
        _send(answers, _answer(name, path, question.get("rows")))


def _answer(name: str, path: Path, rows: Floats | None) -> dict[str, NDArray[Any]]:
    reader = reader_of(name)
    try:
        model = reader.load(path)
        if rows is None:
            return {"saved": np.frombuffer(reader.saved(model), dtype=np.uint8)}
        answer = reader.read(model).replay(rows)
    except Exception as error:  # report any failure to the parent process
        first_line = f"{type(error).__name__}: {error}".partition("\n")[0]
        return {"missing" if isinstance(error, ImportError) else "error": np.array(first_line)}
    arrays = {"margin": answer.margin}
    if answer.leaves is not None:
        arrays["leaves"] = answer.leaves
    return arrays


if __name__ == "__main__":
    # Libraries print, also from C: give the answers a pipe of their own.
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        _serve(sys.argv[1], sys.stdin.buffer, answers)
