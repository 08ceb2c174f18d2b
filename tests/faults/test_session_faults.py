"""A long session on workers that die: read whole, and the same to the byte whoever asks next."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.rig import Rig, rig_on, until

from hermes_worker.core.compactions import is_compaction, parse_facts
from hermes_worker.core.messages import Message, ModelRequest, dump_canonical_json
from hermes_worker.core.run import RunStatus
from hermes_worker.lab.fleet import LabWorker
from hermes_worker.lab.plan import FleetRole
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.models.endpoint import Endpoint
from hermes_worker.models.scripted import server
from hermes_worker.models.scripted.reply import Reply, ScriptedCall
from hermes_worker.models.wires import anthropic_messages, openai_responses
from hermes_worker.store.sessions import PAGE_MAX, Sessions

pytestmark = pytest.mark.faults
ENDPOINT = Endpoint(base_url="https://models.example/v1", api_key="k")
WINDOW = {"HERMES_CONTEXT_LENGTH": "8000"}
GROUPS, CALLS = 5, 2
ROWS_OF_TURN = 1 + GROUPS * (1 + CALLS) + 1
PADDING = "of the harbour, " * 12
POINTS: Mapping[FleetRole, Sequence[str]] = {
    FleetRole.MODEL: ("iterate.after_claim", "iterate.after_reply", "iterate.after_commit"),
    FleetRole.TOOLS: ("call_tool.after_claim", "call_tool.after_run", "call_tool.after_settle"),
}
_MARK = re.compile(r"(?:request |\"written\":\"mark )(\d+)(?:\.(\d+))?")


def mark(turn: int, group: int, call: int) -> str:
    return f"mark {turn}.{group}.{call} {PADDING}"


def asked(turn: int) -> str:
    return f"request {turn} {PADDING}"


@dataclass
class Harbour:
    """A model whose next reply depends on the last row alone, and which remembers what it was sent."""

    requests: list[list[str]] = field(default_factory=list)
    """The messages of each request with tools, as they came."""

    def next_reply(self, rows: Sequence[Mapping[str, Any]], tools: object) -> Reply:
        if not tools:
            return Reply(text=f"## Goal\nKnow the harbour.\n## Completed Actions\n{PADDING * 4}")
        self.requests.append([dump_canonical_json(row) for row in rows])
        found = _MARK.match(str(rows[-1]["content"]).lstrip("{"))
        assert found is not None, rows[-1]
        turn, group = int(found[1]), int(found[2] or 0) + 1
        if group > GROUPS:
            return Reply(text=f"answer {turn}")
        calls = tuple(
            ScriptedCall(id=f"call_{turn}_{group}_{n}", name="sink_keyed", arguments={"mark": mark(turn, group, n)})
            for n in range(CALLS)
        )
        return Reply(text=f"step {turn}.{group}", calls=calls)


@dataclass
class Killer:
    """Keeps every place of a fleet filled by a process that will kill itself, in another place each time."""

    rig: Rig
    chance: random.Random
    deaths: int = 0

    def plan_for(self, worker: LabWorker) -> str:
        return f"{self.chance.choice(POINTS[worker.role])}=kill@{self.chance.randrange(6, 30)}"

    def replace_the_dead(self) -> None:
        for worker in list(self.rig.fleet.workers):
            if not self.rig.fleet.is_alive(worker):
                self.deaths += 1
                self.rig.fleet.replace(worker, faults=self.plan_for(worker))


@pytest.fixture
def three(tmp_path: Path, database_url: str, own_valkey: EmbeddedValkey) -> Iterator[Rig]:
    """Three workers of each role."""
    with rig_on(
        tmp_path, database_url=database_url, broker_url=own_valkey.url, workers_per_role=3, more_environ=WINDOW
    ) as rig:
        yield rig


def shared(before: Sequence[str], after: Sequence[str]) -> float:
    """How much of the request ``before`` the request ``after`` begins with."""
    one, other = ",".join(before), ",".join(after)
    same = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return same / len(one)


def calls_and_results(rows: Sequence[str]) -> Iterator[tuple[list[str], list[str]]]:
    """The ids of the calls and of the results of one request, in order, on each of the three wires."""
    bodies = [json.loads(row) for row in rows]
    yield (
        [call["id"] for body in bodies for call in body.get("tool_calls") or ()],
        [body["tool_call_id"] for body in bodies if body["role"] == "tool"],
    )
    request = ModelRequest(model="m", messages=list(rows), tools=[], window=8_000)
    written = json.loads(anthropic_messages.build_request_body(request, ENDPOINT, anthropic_messages.Dialect()))
    blocks = [block for row in written["messages"] if isinstance(row["content"], list) for block in row["content"]]
    yield (
        [block["id"] for block in blocks if block["type"] == "tool_use"],
        [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"],
    )
    written = json.loads(openai_responses.build_request_body(request, "x", openai_responses.Dialect(), ENDPOINT))
    items = written["input"]
    yield (
        [item["call_id"] for item in items if item.get("type") == "function_call"],
        [item["call_id"] for item in items if item.get("type") == "function_call_output"],
    )


def transcript(rig: Rig, session: str) -> list[Message]:
    """As whoever pages through it reads it."""
    sessions = Sessions(rig.client.database)
    found: list[Message] = []
    while page := sessions.list_messages(session, after=len(found), limit=PAGE_MAX):
        assert [row.seq for row in page] == list(range(len(found) + 1, len(found) + 1 + len(page)))
        found += [Message(seq=row.seq, role=row.role, body=row.body) for row in page]
    return found


def said(turns: int) -> Iterator[str]:
    """What the rows of so many turns say."""
    for turn in range(1, turns + 1):
        yield asked(turn)
        for group in range(1, GROUPS + 1):
            yield f"step {turn}.{group}"
            yield from (dump_canonical_json({"written": mark(turn, group, n)}) for n in range(CALLS))
        yield f"answer {turn}"


@pytest.mark.parametrize(
    ("rows", "compactions", "deaths"),
    [(170, 2, 3), pytest.param(2_000, 30, 30, marks=[pytest.mark.slow, pytest.mark.timeout(3_600)])],
)
def test_a_long_session_outlives_its_workers(
    three: Rig, monkeypatch: pytest.MonkeyPatch, rows: int, compactions: int, deaths: int
) -> None:
    rig, model = three, Harbour()
    monkeypatch.setattr(server, "choose_next_reply", model.next_reply)
    killer = Killer(rig, random.Random(19))
    turns = 0

    def ended(run_id: str) -> bool | None:
        killer.replace_the_dead()
        return rig.view(run_id).status.is_terminal or None

    while turns * ROWS_OF_TURN < rows:
        turns += 1
        run_id = rig.submit([], session_id="long", input=asked(turns), tools=["sink_keyed"])
        until(lambda run_id=run_id: ended(run_id), f"turn {turns} to end")
        if turns == 1:
            for worker in rig.fleet.workers:  # they take signals by now
                rig.fleet.arm(worker, killer.plan_for(worker))
        assert (rig.view(run_id).status, rig.view(run_id).output) == (RunStatus.COMPLETED, f"answer {turns}")

    found = transcript(rig, rig.submitted[0])
    assert [json.loads(row.body)["content"] for row in found if not is_compaction(row)] == list(said(turns))
    made = [row for row in found if is_compaction(row)]
    pairs = [shared(before, after) for before, after in pairwise(model.requests)]
    broken = [share for share in pairs if share < 0.99]
    kept = min(share for share in pairs if share >= 0.99)
    print(
        f"{len(found)} rows, {len(made)} compactions "
        f"({sum(bool(parse_facts(row).through) for row in made)} summaries), "
        f"{killer.deaths} deaths; {len(pairs)} pairs of requests share at least {kept:.2%} between compactions"
    )
    assert len(made) >= compactions and killer.deaths >= deaths
    assert len(broken) <= len(made), "nothing but a compaction changes how a request begins"
    for request in model.requests:
        for calls, results in calls_and_results(request):
            assert calls == results
    assert sum(bool(calls) for request in model.requests for calls, _ in calls_and_results(request)) > len(pairs)
    assert rig.broken_invariants() == []
