"""Forks on real workers: recorded, live and denied tools, and what is never done twice."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sqlalchemy as sa
from support.rig import Rig, sink_call, until

from hermes_worker.core.forks import ForkMatch, ForkTools
from hermes_worker.core.principals import OPERATOR
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus
from hermes_worker.features.forks.service import ForkRequest, fork_run
from hermes_worker.features.spend.rows import SpendBy, SpendQuery, load_spend
from hermes_worker.safety.approvals import ApprovalChoice
from hermes_worker.store import rewinds
from hermes_worker.store.runs.prompts import load_prompt_material
from hermes_worker.store.statistics import count_ended_rows
from hermes_worker.store.tables import runs
from hermes_worker.store.whole_schema import load_schema

STEPS: list[dict[str, Any]] = [
    {"calls": [sink_call("once", "paid")]},
    {"calls": [sink_call("keyed", "kept"), sink_call("pure", "read")]},
]


def fork(rig: Rig, run_id: str, step: int, **said: Any) -> str:
    created = fork_run(rig.client, ForkRequest(run_id=run_id, step=step, **said), OPERATOR)
    rig.client.publisher.send(created.hints)
    rig.submitted.append(created.run_id)
    return created.run_id


def marks(rig: Rig) -> list[str]:
    return [effect.mark for effect in rig.effects() if effect.replay is Replay.ONCE]


def dump(rig: Rig, run_pk: int) -> str:
    """All rows of a run, as text."""
    with rig.client.database.read() as connection:
        found = {}
        for table in load_schema().tables.values():
            key = table.c.pk if table is runs else table.c.get("run_pk")
            if key is not None:
                of_run = connection.execute(sa.select(table).where(key == run_pk)).all()
                found[table.name] = [repr(row) for row in of_run]
        return json.dumps(found)


def pk_of(rig: Rig, run_id: str) -> int:
    with rig.client.database.read() as connection:
        return int(connection.execute(sa.select(runs.c.pk).where(runs.c.run_id == run_id)).scalar_one())


def is_counted(rig: Rig, run_id: str) -> bool:
    with rig.client.database.read() as connection:
        return bool(connection.execute(sa.select(runs.c.is_counted).where(runs.c.run_id == run_id)).scalar_one())


def fork_with(rig: Rig, run_id: str, step: int, steps: list[dict[str, Any]]) -> str:
    """A live fork whose note says, to the scripted model, what to do next."""
    note = f"scripted: {json.dumps({'steps': steps, 'final': 'other'})}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewinds, "describe_effects", lambda effects: note)
        return fork(rig, run_id, step, tools=ForkTools.LIVE)


def test_recorded_forks_repeat_a_run_without_an_effect_and_count_nowhere(rig: Rig) -> None:
    original = rig.submit(STEPS, final="all done")
    rig.ended(original)
    count_ended_rows(rig.client.database)  # or a worker does, which is just at it
    until(lambda: is_counted(rig, original), "the run to be counted")
    before, effects, total = dump(rig, pk_of(rig, original)), rig.effects(), len(rig.effects())
    assert total == 3
    query = SpendQuery(by=SpendBy.MODEL, after=0, before=1e12, tenant=None)
    spent = load_spend(rig.client.database, query)

    forks = [fork(rig, original, step, match=match) for step in (0, 0, 1, 2) for match in ForkMatch]
    views = rig.ended(*forks)
    assert {(view.status, view.output) for view in views} == {(RunStatus.COMPLETED, "all done")}
    assert rig.effects() == effects
    assert dump(rig, pk_of(rig, original)) == before
    assert load_spend(rig.client.database, query) == spent

    # Two forks of one point send the same bytes (I7), and so did the original.
    prompts = [load_prompt_material(rig.client.database, run_id) for run_id in (original, *forks)]
    firsts = [(each.system_prompt, each.tools, [row.body for row in each.rows]) for each in prompts]
    assert len({json.dumps(first) for first in firsts}) == 1


def test_a_live_fork_takes_no_effect_back_and_no_permission_over(rig: Rig) -> None:
    original = rig.submit(STEPS, final="all done")
    rig.ended(original)
    first = rig.effects()

    live = fork(rig, original, 0, tools=ForkTools.LIVE)
    [view] = rig.ended(live)
    assert view.output == "all done"
    [once, _, _] = rig.tool_rows(live)
    assert json.loads(once["content"])["outcome"] == "succeeded"
    assert "already_done" in once["content"]
    again = rig.effects()[len(first) :]
    assert [(effect.mark, effect.key) for effect in again if effect.mark == "kept"] == [
        (effect.mark, effect.key) for effect in first if effect.mark == "kept"
    ]
    assert not [effect for effect in again if effect.mark == "paid"]
    transcript = [json.loads(row.body) for row in rig.client.views.load_transcript(live)]
    note = next(row for row in transcript if row["role"] == "user" and "Note of the system" in row["content"])
    assert "sink_once" in note["content"]
    assert "sink_keyed" in note["content"]
    assert "sink_pure" not in note["content"]


def test_another_call_of_a_tool_that_must_not_run_twice_is_put_to_a_person(rig: Rig) -> None:
    steps = [{"calls": [sink_call("pure", "read")]}, {"calls": [sink_call("once", "paid")]}]
    original = rig.submit(steps, final="x", approvals="approve")
    rig.ended(original)
    live = fork_with(rig, original, 1, [{"calls": [sink_call("once", "paid  ")]}])
    [wait] = until(lambda: rig.client.waits.list_open(run_id=live) or None, "a question", patience_s=100.0)
    assert "taken back" in wait.request["description"]
    assert marks(rig) == ["paid"]
    rig.client.publisher.send(rig.client.waits.approve(live, ApprovalChoice.ONCE, by="ada"))
    [view] = rig.ended(live)
    assert view.output == "other"
    assert marks(rig) == ["paid", "paid  "]

    # A fork of the fork does not do again what that one did, which somebody allowed there.
    twice = fork(rig, live, 0, tools=ForkTools.LIVE)
    rig.ended(twice)
    assert marks(rig) == ["paid", "paid  "]
    assert json.loads(rig.tool_rows(twice)[-1]["content"])["allowed_by"] == "ada"


def test_a_fork_that_denies_has_no_effect(rig: Rig) -> None:
    original = rig.submit(STEPS, final="all done")
    rig.ended(original)
    before = rig.effects()
    denied = fork(rig, original, 0, tools=ForkTools.DENY)
    rig.ended(denied)
    assert [effect.replay for effect in rig.effects()[len(before) :]] == ["pure"]
