"""Benchmarks, which are not part of the package: errors, the paper's figure, speed."""
