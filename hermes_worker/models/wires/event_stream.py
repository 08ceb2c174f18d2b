"""Frames of AWS's event streams, read by botocore, as documents: ``{"contentBlockDelta": {...}}``.

https://docs.aws.amazon.com/AmazonS3/latest/API/RESTSelectObjectAppendix.html describes the frames; which events there
are is the service's matter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from botocore.eventstream import EventStreamBuffer, EventStreamMessage, ParserError

from hermes_worker.models.wires.chat_reply import MalformedReply, StreamedError


def read_documents(chunks: Iterable[bytes]) -> Iterator[object]:
    """Yield every whole frame of the stream, in order; half a frame at the end is dropped.

    Raises ``MalformedReply`` for bytes that are no frame, and ``StreamedError`` for a frame that reports a failure.
    """
    buffer = EventStreamBuffer()
    for chunk in chunks:
        buffer.add_data(chunk)
        try:
            for message in buffer:
                yield _parse_message(message)
        except ParserError as error:
            raise MalformedReply(f"a frame of the event stream cannot be read: {error}") from error


def _parse_message(message: EventStreamMessage) -> object:
    headers = message.headers
    if headers.get(":message-type") == "error":
        raise StreamedError({"code": headers.get(":error-code"), "message": headers.get(":error-message")})
    try:
        payload = json.loads(message.payload or b"{}")
    except (ValueError, RecursionError) as error:
        raise MalformedReply(f"the frame {headers.get(':event-type')!r} holds no JSON") from error
    if headers.get(":message-type") == "exception":
        said = payload.get("message") if isinstance(payload, dict) else None
        raise StreamedError({"code": headers.get(":exception-type"), "message": said or str(payload)[:500]})
    return {str(headers.get(":event-type")): payload}
