"""``python -m tools.kernels WHEEL FOLDER``: the wheel once more, with compiled kernels in it.

They are for this Python and one kind of processor, as the new wheel's name says: a first call
compiles nothing. Whoever has another processor takes the wheel without them.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from knothole.compiled.kept import PROCESSOR

#: numba's own wheels are for these systems; machine code asks for no more.
PLATFORM = "manylinux_2_28_x86_64"


def compile_into(folder):
    """Compile all kernels for the processor that wheels are made for."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as kept:
        processor = {"NUMBA_CPU_NAME": PROCESSOR, "NUMBA_CPU_FEATURES": ""}
        environment = os.environ | processor | {"NUMBA_CACHE_DIR": kept}
        subprocess.run([sys.executable, "-m", "knothole", "warm"], env=environment, check=True)
        for path in Path(kept).rglob("knothole.*.nb[ic]"):
            shutil.copy(path, folder)
    assert any(folder.iterdir()), "nothing was compiled"


def with_kernels(wheel, folder):
    """A wheel with kernels of its own in the folder, made of one without."""
    with tempfile.TemporaryDirectory() as place:
        run("unpack", "--dest", place, wheel)
        (unpacked,) = Path(place).iterdir()
        compile_into(unpacked / "knothole" / "compiled" / "kernels")
        run("pack", "--dest-dir", place, unpacked)
        (packed,) = Path(place).glob("*.whl")
        python = "cp{}{}".format(*sys.version_info[:2])
        run("tags", "--python-tag", python, "--abi-tag", python, "--platform-tag", PLATFORM, packed)
        (made,) = Path(place).glob(f"*{PLATFORM}.whl")
        return Path(shutil.copy(made, folder))


def run(*command):
    subprocess.run(
        [sys.executable, "-m", "wheel", *map(str, command)], check=True, stdout=subprocess.DEVNULL
    )


if __name__ == "__main__":
    print(with_kernels(*sys.argv[1:]))
