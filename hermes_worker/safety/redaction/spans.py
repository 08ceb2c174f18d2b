"""Positions of secrets in a text, and how they become one list. All positions count bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

__all__ = ["Span", "find_positions", "merge_spans"]

Span = tuple[int, int]
"""Start and end of a secret, in bytes."""


def find_positions(haystack: bytes, needle: bytes) -> Iterator[int]:
    """Yield the positions of ``needle``; occurrences do not overlap."""
    at = haystack.find(needle)
    while at >= 0:
        yield at
        at = haystack.find(needle, at + len(needle))


def merge_spans(spans: Iterable[Span]) -> Iterator[Span]:
    """Merge overlapping spans into one; touching spans stay two."""
    ordered = sorted(spans)
    start, end = ordered[0]
    for next_start, next_end in ordered[1:]:
        if next_start < end:
            end = max(end, next_end)
        else:
            yield start, end
            start, end = next_start, next_end
    yield start, end
