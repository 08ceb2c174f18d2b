from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_worker.workspaces.output import OutputBuffer


def _collected(limit: int, pieces: list[bytes]) -> OutputBuffer:
    output = OutputBuffer(limit)
    for piece in pieces:
        output.append(piece)
    return output


def test_output_within_the_limit_is_kept_whole() -> None:
    output = _collected(10, [b"01234", b"56789"])
    assert (output.render(), output.was_truncated) == (b"0123456789", False)


def test_two_fifths_are_kept_from_the_beginning_and_three_from_the_end() -> None:
    output = _collected(10, [b"abcdefghijklmnopqrst"])
    assert output.render() == b"abcd\n\n... [10 bytes omitted] ...\n\nopqrst"
    assert output.was_truncated


def test_no_character_is_cut_in_half() -> None:
    output = _collected(11, ["ääääääääää".encode()])
    rendered = output.render().decode()
    assert rendered == "ää\n\n... [10 bytes omitted] ...\n\näää"


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(min_value=0, max_value=50))
def test_memory_is_bounded_and_nothing_is_lost_without_saying_so(pieces: list[bytes], limit: int) -> None:
    output = _collected(limit, pieces)
    whole = b"".join(pieces)
    assert output.was_truncated == (len(whole) > limit)
    if output.was_truncated:
        assert len(output.render()) <= limit + 60
    else:
        assert output.render() == whole


@settings(deadline=None)
@given(st.text(max_size=80), st.integers(min_value=1, max_value=60))
def test_text_stays_text(text: str, limit: int) -> None:
    _collected(limit, [text.encode("utf-8", "replace")]).render().decode()


def test_what_a_cut_goes_through_is_left_out_on_both_sides() -> None:
    """Half a secret is not recognised as one."""
    lines = [f"line {number} token=AAAA{number:06d}BBBBCCCCDDDD\n".encode() for number in range(3_000)]
    rendered = _collected(50_000, lines).render()

    shown = [line for line in rendered.split(b"\n") if line and b"omitted" not in line]
    assert len(shown) > 1_000
    assert set(shown) <= {line.rstrip() for line in lines}
