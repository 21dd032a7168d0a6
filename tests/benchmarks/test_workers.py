"""Workers end with the benchmark that they work for, however it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.workers import spawned

ROOT = Path(__file__).parents[2]

KILLED = """
import os, time
from benchmarks.workers import spawned

if __name__ == "__main__":
    with spawned(2) as pool:
        print(*{pool.submit(os.getpid).result(), pool.submit(os.getpid).result()}, flush=True)
        pool.submit(time.sleep, 600)
        time.sleep(600)
"""


def there(pid):
    """Whether a process runs: one that is dead but not yet collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_workers_of_a_benchmark_that_was_killed_end_by_themselves(tmp_path):
    file = tmp_path / "killed.py"
    file.write_text(KILLED)
    parent = subprocess.Popen(
        [sys.executable, file], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    workers = [int(pid) for pid in parent.stdout.readline().split()]
    assert workers and all(map(there, workers))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 60
    while any(map(there, workers)):
        assert time.monotonic() < end, "a worker lives on"
        time.sleep(0.05)


def test_workers_work():
    with spawned(2) as pool:
        assert list(pool.map(abs, [-1, 2, -3])) == [1, 2, 3]
