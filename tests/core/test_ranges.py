"""Ranges of a file: what is served, and what is not understood and therefore answered with the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.core.ranges import ByteRange, UnsatisfiableRange, parse_range

ETAG = '"abc"'


def asked(header: str | None, size: int = 10, if_range: str | None = None) -> ByteRange | UnsatisfiableRange | None:
    return parse_range(header, size, if_range=if_range, etag=ETAG)


@pytest.mark.parametrize(
    ("header", "first", "last"),
    [
        ("bytes=0-0", 0, 0),
        ("bytes=2-5", 2, 5),
        ("bytes=9-9", 9, 9),
        ("bytes=5-", 5, 9),
        ("bytes=5-99", 5, 9),
        ("bytes=-3", 7, 9),
        ("bytes=-99", 0, 9),
        ("Bytes= 1-2 ", 1, 2),
    ],
)
def test_one_range_of_bytes_is_served(header: str, first: int, last: int) -> None:
    found = asked(header)
    assert found == ByteRange(first=first, last=last, size=10)
    assert found.slice(b"0123456789") == b"0123456789"[first : last + 1]
    assert found.content_range == f"bytes {first}-{last}/10"


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "bytes",
        "bytes=",
        "bytes=-",
        "bytes=5-2",
        "bytes=0-1,3-4",
        "bytes=a-b",
        "items=0-1",
        "bytes=--1",
        "bytes=+1-2",
        "bytes=1-2-3",
        "bytes=\u0661-2",
        f"bytes={'9' * 5_000}-",
    ],
)
def test_what_is_not_one_range_of_bytes_is_the_whole_file(header: str | None) -> None:
    assert asked(header) is None


@pytest.mark.parametrize(
    ("header", "size"), [("bytes=10-", 10), ("bytes=10-20", 10), ("bytes=-0", 10), ("bytes=0-", 0)]
)
def test_a_range_behind_the_end_cannot_be_had(header: str, size: int) -> None:
    found = asked(header, size)
    assert found == UnsatisfiableRange(size=size)
    assert found.content_range == f"bytes */{size}"


def test_a_range_of_another_file_is_the_whole_of_this_one() -> None:
    assert asked("bytes=0-1", if_range=ETAG) == ByteRange(first=0, last=1, size=10)
    for other in ('"abd"', 'W/"abc"', "abc", "Tue, 24 Nov 2026 01:00:00 GMT", ""):
        assert asked("bytes=0-1", if_range=other) is None
        assert asked("bytes=99-", if_range=other) is None


@given(st.text(max_size=30) | st.from_regex(r"bytes=[0-9]{0,4}-[0-9]{0,4}", fullmatch=True), st.integers(0, 2_000))
def test_whatever_is_asked_the_part_lies_in_the_file(header: str, size: int) -> None:
    found = asked(header, size)
    if isinstance(found, ByteRange):
        assert 0 <= found.first <= found.last < size
        assert len(found.slice(bytes(size))) == found.last - found.first + 1
