"""Benchmarks: ratios within one run on one machine. ``python -m benchmarks.run --help``."""
