from hermes_worker.models.wires.pace import QUICK_READS, QUICK_S, REST_S, StreamPace

PIECE = 200


def read(
    pace: StreamPace, times: int = 1, *, blocked_s: float = 0.0005, received: int = PIECE, is_full: bool = False
) -> None:
    for _ in range(times):
        pace.note_read(blocked_s=blocked_s, received=received, is_full=is_full)


def resting() -> StreamPace:
    pace = StreamPace()
    read(pace, QUICK_READS)
    return pace


def test_a_stream_of_many_small_pieces_is_read_with_rests() -> None:
    assert resting().rest_s == REST_S


def test_a_short_reply_is_not_delayed() -> None:
    pace = StreamPace()

    read(pace, QUICK_READS - 1)

    assert pace.rest_s == 0


def test_a_slow_stream_is_read_at_once_for_ever() -> None:
    pace = StreamPace()

    read(pace, 1_000, blocked_s=0.02)

    assert pace.rest_s == 0


def test_one_slow_piece_among_quick_ones_starts_the_count_anew() -> None:
    pace = StreamPace()

    read(pace, QUICK_READS - 1)
    read(pace, blocked_s=QUICK_S)
    read(pace, QUICK_READS - 1)

    assert pace.rest_s == 0


def test_rests_go_on_while_each_brings_several_pieces() -> None:
    pace = resting()

    read(pace, 100, blocked_s=0, received=30 * PIECE)

    assert pace.rest_s == REST_S


def test_a_pause_of_the_server_ends_the_rests() -> None:
    pace = resting()

    read(pace, blocked_s=0.3)

    assert pace.rest_s == 0


def test_reads_that_come_late_are_rare_from_then_on_however_long_they_blocked() -> None:
    """What looks like a wait for the server was one for the interpreter, which too many others used."""
    pace = StreamPace()

    read(pace, blocked_s=0.3)
    read(pace, QUICK_READS, blocked_s=0.3, received=2 * PIECE)

    assert pace.rest_s == REST_S


def test_a_rest_that_brought_a_single_piece_is_the_last() -> None:
    """A rate that fell so far that a piece comes per rest never blocks a read for long."""
    pace = resting()

    read(pace, blocked_s=0.001)

    assert pace.rest_s == 0


def test_volume_is_never_held_up() -> None:
    pace = StreamPace()
    read(pace, 100, blocked_s=0, is_full=True)
    assert pace.rest_s == 0

    pace = resting()
    read(pace, blocked_s=0, is_full=True)
    assert pace.rest_s == 0


def test_a_new_response_begins_without_rests() -> None:
    pace = resting()

    pace.begin()
    assert pace.rest_s == 0

    read(pace, QUICK_READS - 1)
    assert pace.rest_s == 0
