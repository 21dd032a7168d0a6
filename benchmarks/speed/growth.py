"""``python -m benchmarks.speed.growth``: how ``wrap`` grows with rows and with columns.

CPU seconds of one thread, best of two, for the table in docs/scale.md.
"""

from benchmarks.speed.densities import one_thread
from benchmarks.speed.setting import process
from benchmarks.speed.wrap import factors, fitted
from knothole.report.methods import Task
from knothole.wrapping import wrap

ROWS, COLUMNS = (1_000, 3_000, 10_000, 30_000, 100_000), (10, 30, 100, 300)
# What the other number is.
FEW_COLUMNS, FEW_ROWS = 20, 2_000


def run():
    sizes = [(rows, FEW_COLUMNS) for rows in ROWS] + [(FEW_ROWS, columns) for columns in COLUMNS]
    with one_thread():
        wrap(*fitted(*factors(1_000, 10), Task.REGRESSION))  # compiled
        for rows, columns in sizes:
            X, y = factors(rows, columns)
            training = process(lambda X=X, y=y: fitted(X, y, Task.REGRESSION))
            model, *table = fitted(X, y, Task.REGRESSION)
            wrapping = process(lambda model=model, table=table: wrap(model, *table), 2)
            print(f"| {rows:,} | {columns} | {training:.1f} | {wrapping:.1f} |", flush=True)


if __name__ == "__main__":
    run()
