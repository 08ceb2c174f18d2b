"""Hermes worker: the Hermes Agent loop as a distributed task queue."""

__version__ = "0.1.0"
__all__ = ["__version__"]
