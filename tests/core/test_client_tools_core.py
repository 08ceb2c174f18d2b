"""Calls that the client of a run does: their names, and when a run is its client's."""

from __future__ import annotations

from typing import Any

import pytest

from hermes_worker.core.client_tools import ClientCallId, HandedReply, Handovers, HandoverWatch
from hermes_worker.core.run_events import RunEventName, StoredEvent

CALLS = [{"function": {"name": name, "arguments": "{}"}} for name in ("get_weather", "read_file", "get_time")]


def row(name: RunEventName, **data: Any) -> StoredEvent:
    return StoredEvent(seq=1, at=0.0, name=name.value, data={"iteration": 1, **data})


REPLY = row(RunEventName.MESSAGE_COMPLETED, text="Hm.", tool_calls=CALLS)


def done(position: int) -> StoredEvent:
    return row(RunEventName.TOOL_COMPLETED, position=position)


def asked(position: int, *, of_client: bool = True) -> StoredEvent:
    return row(RunEventName.INPUT_REQUESTED, position=position, **({"client_tool": True} if of_client else {}))


@pytest.mark.parametrize(
    ("rows", "handed"),
    [
        ([REPLY, done(1), asked(0), asked(2)], ["get_weather", "get_time"]),
        ([REPLY, asked(2), done(1), asked(0)], ["get_weather", "get_time"]),
        ([REPLY, done(1), done(0), asked(2)], ["get_time"]),
        ([REPLY, done(1), asked(0)], []),
        ([REPLY, asked(0), asked(2)], []),
        ([REPLY, asked(0), asked(2), asked(1, of_client=False)], []),
        ([REPLY, done(1), asked(0), asked(2), done(0), done(2)], []),
        ([REPLY, done(0), done(1), done(2)], []),
        ([done(0), done(2)], []),
    ],
)
def test_a_run_is_its_clients_when_all_else_of_the_reply_is_done(rows: list[StoredEvent], handed: list[str]) -> None:
    watch = HandoverWatch()
    for each in rows:
        watch.add_event(each)
    assert watch.is_handed_over is bool(handed)
    assert [call.name for call in watch.handed_calls] == handed or not handed


def test_the_name_of_a_call_is_read_back_and_nothing_else_is() -> None:
    name = ClientCallId(run_id="run_" + "a" * 32, iteration=12, position=3)
    assert ClientCallId.parse(str(name)) == name
    for text in (
        "",
        "call_1",
        f"{name} ",
        f"{name}\n",
        str(name).upper(),
        str(name).replace("_12_", "_0_"),
        f"{str(name)[:-1]}03",
    ):
        with pytest.raises(ValueError, match="not the id"):
            ClientCallId.parse(text)


def test_messages_belong_to_the_part_in_which_they_were_said() -> None:
    done = [HandedReply(iteration=2, last_seq=5, event_seq=9), HandedReply(iteration=3, last_seq=8, event_seq=14)]
    handovers = Handovers(done=done)
    assert [handovers.find_part(seq) for seq in (2, 5, 6, 8, 9)] == [0, 0, 1, 1, 2]
    assert (handovers.newest, handovers.find_reply_before(0), handovers.find_reply_before(2)) == (2, None, done[1])
