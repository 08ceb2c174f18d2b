"""Decisions, without I/O: the run's state machine, its effects, and the values that travel between the parts.

Nothing in this package imports anything but the standard library and itself (``tests/test_architecture.py``).
"""
