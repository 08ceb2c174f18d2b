import pytest

from hermes_worker.models.wires import sse
from hermes_worker.models.wires.sse import EventTooLarge, iterate_event_data

STREAM = b': hello\n\ndata: {"a":1}\n\nevent: x\nid: 7\ndata:two\r\n\r\ndata: one\ndata: more\n\ndata: [DONE]\n\n'
EVENTS = [b'{"a":1}', b"two", b"one\nmore", b"[DONE]"]


def test_it_yields_the_data_of_each_event_and_nothing_else() -> None:
    assert list(iterate_event_data([STREAM])) == EVENTS


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 64])
def test_it_does_not_matter_where_the_bytes_are_cut(size: int) -> None:
    chunks = [STREAM[i : i + size] for i in range(0, len(STREAM), size)]

    assert list(iterate_event_data(chunks)) == EVENTS


def test_an_event_that_the_end_cut_off_still_counts() -> None:
    assert list(iterate_event_data([b"data: whole\n\ndata: cut"])) == [b"whole", b"cut"]


def test_a_multibyte_character_may_be_cut_between_chunks() -> None:
    text = "data: é€🙂\n\n".encode()

    assert list(iterate_event_data([text[:8], text[8:11], text[11:]])) == ["é€🙂".encode()]


def test_an_empty_stream_has_no_events() -> None:
    assert list(iterate_event_data([])) == []
    assert list(iterate_event_data([b"", b"\n\n"])) == []


def test_an_endless_line_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "EVENT_BYTES_MAX", 1_000)

    with pytest.raises(EventTooLarge):
        list(iterate_event_data(b"data: " + b"x" * 100 for _ in range(100)))
