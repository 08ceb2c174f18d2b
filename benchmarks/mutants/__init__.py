"""Mutants: does anything notice when a guard is gone?

Each mutant is a named change of a few lines that takes one guard away. ``python -m benchmarks.mutants`` applies it in a
copy of the tree and lets the crash lab (``--lab``) or the tests that are named with it (``--tests``) look for it: a
mutant that nothing notices is a guard that nothing holds.
"""
