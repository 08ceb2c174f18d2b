"""What h11 makes of a response must not depend on whether its chunks were joined on the way."""

import re
from dataclasses import dataclass, field

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hermes_worker.models.wires.framing import ChunkReframer

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
HEADS = [
    CHUNKED,
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding:Chunked \r\nA: b\r\n\r\n",
    b"HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX: transfer-encoding: chunked\r\nContent-Length: 3\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
]
ENDS = [b"0\r\n\r\n", b"0\r\nTrailer: x\r\n\r\n", b"0\r\n\r\nand more", b"", b"x\r\n"]


@dataclass
class Seen:
    """What a client sees of a response."""

    events: list[str] = field(default_factory=list)
    body: bytes = b""
    data_events: int = 0


def seen(reads: list[bytes], *, is_reframed: bool) -> Seen:
    client, frames, result = h11.Connection(h11.CLIENT), ChunkReframer(), Seen()
    client.send(h11.Request(method="POST", target="/", headers=[("host", "h"), ("content-length", "0")]))
    client.send(h11.EndOfMessage())
    if is_reframed:
        handed = [frames.feed(read) for read in reads]
        reads = [read for read in (*handed, frames.end()) if read]
    try:
        for read in (*reads, b""):  # nothing: the connection has ended
            client.receive_data(read)
            while (event := client.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Data):
                    result.body += bytes(event.data)
                    result.data_events += 1
                else:
                    result.events.append(repr(event))
                if isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                    return result
    except h11.RemoteProtocolError:
        result.events.append("refused")
    return result


def chunked(pieces: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    reads = []
    while data:
        size = sizes[len(reads) % len(sizes)]
        reads.append(data[:size])
        data = data[size:]
    return reads


PIECES = st.lists(st.text("ab\r\n0;", min_size=1, max_size=40).map(str.encode), max_size=6)
SIZES = st.lists(st.sampled_from([1, 2, 3, 10, 50, 1_000]), min_size=1, max_size=8)


@given(head=st.sampled_from(HEADS), pieces=PIECES, end=st.sampled_from(ENDS), sizes=SIZES)
def test_a_client_sees_the_same_response(head: bytes, pieces: list[bytes], end: bytes, sizes: list[int]) -> None:
    reads = cut(head + chunked(pieces) + end, sizes)

    plain, joined = seen(reads, is_reframed=False), seen(reads, is_reframed=True)

    assert (joined.events, joined.body) == (plain.events, plain.body)
    assert joined.data_events <= plain.data_events


@given(
    head=st.sampled_from(HEADS),
    pieces=PIECES,
    sizes=SIZES,
    at=st.floats(0, 1, exclude_max=True),
    instead=st.sampled_from([b"", b"\r", b"\n", b"0", b"Z", b";", b"-", b"_"]),
)
@example(head=CHUNKED, pieces=[b"a" * 40, b"b"], sizes=[50, 1, 1_000], at=0.95, instead=b"")
def test_a_broken_response_is_refused_at_the_same_place(
    head: bytes, pieces: list[bytes], sizes: list[int], at: float, instead: bytes
) -> None:
    whole = head + chunked(pieces) + b"0\r\n\r\n"
    place = int(at * len(whole))
    reads = cut(whole[:place] + instead + whole[place + 1 :], sizes)

    plain, joined = seen(reads, is_reframed=False), seen(reads, is_reframed=True)

    assert (joined.events, joined.body) == (plain.events, plain.body)


def test_the_chunks_of_a_read_become_one() -> None:
    pieces = [b"data: %d\n\n" % number for number in range(100)]

    joined = seen([CHUNKED, chunked(pieces), b"0\r\n\r\n"], is_reframed=True)

    assert joined.body == b"".join(pieces)
    assert joined.data_events == 1


@pytest.mark.parametrize("extension", [b";a=b", b' ; token="x"'])
def test_chunks_with_extensions_pass_as_they_came(extension: bytes) -> None:
    body = chunked([b"one", b"two"]).replace(b"3\r\n", b"3" + extension + b"\r\n")
    frames = ChunkReframer()

    assert frames.feed(CHUNKED + body) == CHUNKED + body


def test_each_response_of_a_connection_is_looked_at_by_itself() -> None:
    frames = ChunkReframer()
    plain = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n1\r\na\r\n2\r"

    first = frames.feed(CHUNKED + chunked([b"a", b"b"]) + b"0\r\n\r\n")
    frames.begin()
    second = frames.feed(plain)

    assert re.sub(rb".*\r\n\r\n2\r\n", b"", first, flags=re.DOTALL) == b"ab\r\n0\r\n\r\n"
    assert second == plain
