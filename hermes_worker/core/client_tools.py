"""Tools of the client: the model calls them and the sender of the request executes them. Pure.

A session stores their definitions among its own. A call of one waits as a row until a request brings its result; calls
of the same reply that the server executes are done first. So a run is handed over to its client at most once per reply,
and falls into *parts*: part n begins with the n-th results that were brought.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hermes_worker.core.run_events import RunEventName, StoredEvent

CLIENT_SOURCE = "@client"
"""The source of such a tool among the tool sources; no extension can have this name."""
IS_CLIENTS = "client_tool"
"""Key in the request of a wait, and in its event: the client brings the answer."""
_CALL_ID = re.compile(r"call_(?P<run>[0-9a-f]{32})_(?P<iteration>[1-9][0-9]{0,6})_(?P<position>0|[1-9][0-9]{0,3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTool:
    """A tool as a client declares it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments object."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ClientCallId:
    """Names a call to its client. The ids that models give are not ours, and need not differ."""

    run_id: str
    iteration: int
    position: int

    def __str__(self) -> str:
        return f"call_{self.run_id.removeprefix('run_')}_{self.iteration}_{self.position}"

    @classmethod
    def parse(cls, text: str) -> ClientCallId:
        """Parse an id that ``str`` wrote. Raises ``ValueError`` for any other text."""
        match = _CALL_ID.fullmatch(text)
        if match is None:
            raise ValueError("not the id of a call")
        return cls(run_id=f"run_{match['run']}", iteration=int(match["iteration"]), position=int(match["position"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCall:
    """A call that waits, or waited, for its client."""

    wait_id: int
    iteration: int
    position: int
    tool: str
    seq: int
    """The place of its result in the transcript."""
    outcome: str | None
    """``answered``, ``expired`` or ``cancelled``; ``None`` while it is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedReply:
    """A reply whose calls the client executed."""

    iteration: int
    last_seq: int
    """The place of the reply's last result."""
    event_seq: int
    """The number of the last event before the client's results came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handovers:
    """The calls of a run that its client executes or executed, and the parts into which they divide the run."""

    calls: Sequence[ClientCall] = ()
    """The calls, in order."""
    done: Sequence[HandedReply] = ()
    """The settled replies, in order; each is followed by a part."""

    @property
    def newest(self) -> int:
        """The number of the newest part, from 0. It has ended when the run has, or when it waits for its client."""
        return len(self.done)

    @property
    def is_waiting(self) -> bool:
        """The newest part was handed over, and no results were brought."""
        return any(call.outcome is None for call in self.calls)

    def find_part(self, seq: int) -> int:
        """Find the part to which the message with this number belongs."""
        return bisect_left([handover.last_seq for handover in self.done], seq)

    def find_call(self, seq: int) -> ClientCall | None:
        """Find the call whose result stands at place ``seq``; ``None`` when there is none."""
        return next((call for call in self.calls if call.seq == seq), None)

    def find_reply_before(self, part: int) -> HandedReply | None:
        """Find the reply after which a part begins; ``None`` for the first part."""
        return self.done[part - 1] if part else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedCall:
    """A call as it is sent to its client."""

    position: int
    name: str
    arguments: str


@dataclass(slots=True)
class HandoverWatch:
    """Notices in a run's events when the client has to execute all that is left of a reply. It uses rows only, so every
    reader notices it at the same event."""

    iteration: int = 0
    text: str = ""
    """The model's text beside its calls."""
    is_handed_over: bool = False
    _calls: Sequence[Mapping[str, Any]] = ()
    _open: set[int] = field(default_factory=set)
    _asked: set[int] = field(default_factory=set)

    def add_event(self, row: StoredEvent) -> None:
        data = row.data
        match row.name:
            case RunEventName.MESSAGE_COMPLETED:
                self.iteration = data["iteration"]
                text = data.get("text")
                self.text = text if isinstance(text, str) else ""
                self._calls = data.get("tool_calls") or ()
                self._open, self._asked = set(range(len(self._calls))), set()
            case RunEventName.TOOL_COMPLETED:
                self._open.discard(data.get("position", -1))
                self._asked.discard(data.get("position", -1))
            case RunEventName.INPUT_REQUESTED if data.get(IS_CLIENTS):
                self._open.discard(data["position"])
                self._asked.add(data["position"])
        self.is_handed_over = bool(self._asked) and not self._open

    @property
    def handed_calls(self) -> list[HandedCall]:
        """The calls that the client has to execute."""
        return [self.call(position) for position in sorted(self._asked)]

    def call(self, position: int) -> HandedCall:
        function = self._calls[position].get("function") or {}
        name, arguments = str(function.get("name") or ""), str(function.get("arguments") or "")
        return HandedCall(position=position, name=name, arguments=arguments)
