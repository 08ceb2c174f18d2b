"""What the store costs when there is a lot: a sweep over 100,000 open runs, and a step after a thousand steps."""

from __future__ import annotations

import json
import time
from pathlib import Path
from random import Random

import pytest
import sqlalchemy as sa
from support.plans import plan_of, statements
from support.store import ANSWER, FULL, Store, check, settlement

from hermes_worker.core import events as ev
from hermes_worker.core.messages import ModelReply, ToolRequest, Usage
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import STATE_VERSION
from hermes_worker.store.tables import messages
from hermes_worker.store.whole_schema import load_schema

OPEN_RUNS = 100_000
IN_FLIGHT = {
    "ix_runs_claimed",
    "ix_runs_halting",
    "ix_runs_held",
    "ix_runs_idle_limit",
    "ix_runs_left",
    "ix_runs_open_children",
    "ix_runs_permits",
    "ix_runs_uncounted",
    "ix_tool_calls_claimed",
}
"""Partial indexes that may be read whole: they hold what is being worked on now, not what there is."""

_FILL = """
insert into sessions (tenant, pk, session_id, active_run_pk, message_seq, system_prompt, tools_hash, workspace,
                      created_at)
select 'default', n, 's' || n, n, 1, '', '', '{{}}', {now} from generate_series(1, {count}) n;
insert into runs (tenant, pk, run_id, session_pk, model, status, state_version, iteration, iterations_max, attempts_max,
                  hinted_at, resume_at, lease_token, lease_owner, claimed_at, message_seq, deadline_at, idle_s_max,
                  created_at, updated_at)
select 'default', n, 'run_' || n, n, 'm',
       case n % 5 when 0 then 'queued' when 1 then 'queued' when 2 then 'waiting_for_capacity' else 'running' end,
       {version}, 1, 90, 3,
       case when n % 5 < 2 then {now} - 100 + n * 1e-4 end,
       case when n % 5 = 2 then {now} + 500 + n end,
       case when n % 5 = 3 then 't' || n end, case when n % 5 = 3 then {owner} end, {now},
       1, {now} + 80000 + n, case when n % 2 = 0 then 7200 end, {now}, {now}
from generate_series(1, {count}) n;
insert into tool_calls (run_pk, iteration, position, name, replay, segment, status, timeout_s, result_seq,
                        hinted_at, lease_token, lease_owner, claimed_at, deadline_at)
select n, 1, 0, 'terminal', 'once', 0, case when n % 10 = 4 then 'pending' else 'running' end, 120, 3,
       case when n % 10 = 4 then {now} - 100 + n * 1e-4 end,
       case when n % 10 = 9 then 'c' || n end, case when n % 10 = 9 then {owner} end, {now},
       case when n % 10 = 9 then {now} + 300 end
from generate_series(1, {count}) n where n % 5 = 4;
"""


@pytest.fixture
def crowded(own_postgres_store: Store) -> Store:
    """A PostgreSQL database with 100,000 open runs: queued, parked, asking, and with tools due and running."""
    store = own_postgres_store
    with store.database.write() as connection:
        facts = {"now": store.database.read_clock(), "count": OPEN_RUNS, "version": STATE_VERSION, "owner": store.owner}
        for statement in _FILL.format(**facts).split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement.replace("%", "%%"))
    with store.database.statement() as connection:
        connection.exec_driver_sql("vacuum analyze")
    return store


def test_a_sweep_over_a_hundred_thousand_open_runs_reads_what_is_due_and_not_all_there_is(
    crowded: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    store = crowded
    store.sweep(FULL)
    with statements(store.database) as seen:
        store.sweep(FULL)

    large = {"runs", "tool_calls", "messages", "events"}
    scanned = 0
    for statement, parameters in seen:
        if not statement.lstrip().lower().startswith(("select", "update", "delete")):
            continue
        for node in plan_of(store.database, statement, parameters):
            if node.get("Relation Name") not in large or not node["Node Type"].endswith("Scan"):
                continue
            scanned += 1
            assert node["Node Type"] != "Seq Scan", f"all of {node['Relation Name']} is read by: {statement}"
            is_searched = "Index Cond" in node or "Recheck Cond" in node
            assert is_searched or node.get("Index Name") in IN_FLIGHT, f"no condition on an index in: {statement}"
    assert scanned >= 8

    took = []
    for _ in range(5):
        began = time.perf_counter()
        store.sweep(FULL)
        took.append(time.perf_counter() - began)
    with capsys.disabled():
        print(
            f"\na sweep over {OPEN_RUNS:,} open runs: {min(took) * 1000:.0f} ms (of 5: {sorted(took)[2] * 1000:.0f} ms)"
        )


# --- storage ---------------------------------------------------------------------------------------------------------


def stored_bytes(store: Store) -> int:
    """What the database takes on disk, without room that is free to be used again."""
    if store.database.is_sqlite:
        with store.database.engine.connect() as connection:
            pages = [
                connection.exec_driver_sql(f"pragma {name}").scalar_one() for name in ("page_count", "freelist_count")
            ]
            size = connection.exec_driver_sql("pragma page_size").scalar_one()
        return int((pages[0] - pages[1]) * size)
    with store.database.statement() as connection:
        connection.exec_driver_sql("vacuum")
    names = ", ".join(f"pg_total_relation_size('{table}')" for table in load_schema().tables)
    with store.database.read() as connection:
        return sum(connection.exec_driver_sql(f"select {names}").one())


def transcript_bytes(store: Store) -> int:
    with store.database.read() as connection:
        return int(connection.execute(sa.select(sa.func.sum(sa.func.length(messages.c.body)))).scalar_one())


def take_steps(store: Store, run_id: str, count: int) -> None:
    """``count`` iterations that each call one tool with a result of 2 KB, as an agent that reads files does."""
    source = "".join(path.read_text() for path in sorted(Path(__file__).parent.glob("*.py")))
    for number in range(count):
        at = Random(number).randrange(len(source) - 2_048)
        result = source[at : at + 2_048]
        arguments = json.dumps({"path": f"src/module_{number:05}/file.py", "offset": number, "limit": 200})
        request = ToolRequest(id=f"call_{number:024}", name="read_file", arguments=arguments)
        reply = ModelReply(
            text=f"Now I read part {number} of the source to see how it fits the plan we made.",
            tool_requests=(request,),
            finish_reason="tool_calls",
            usage=Usage(input=number * 600, output=60, cache_read=number * 500),
        )
        planned = ev.PlannedCall(name="read_file", replay=Replay.PURE, segment=0)
        store.runs.commit_reply(store.turn(run_id), reply, (planned,))
        store.calls.settle(store.call(run_id), settlement(result))


def test_a_thousand_steps_take_no_more_than_half_again_the_room_of_their_transcript(
    own_store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    store = own_store
    run_id = store.submit(iterations_max=2_000).run_id
    empty = stored_bytes(store)
    halves: list[tuple[int, int]] = []
    for _ in range(2):
        take_steps(store, run_id, 500)
        halves.append((stored_bytes(store) - empty, transcript_bytes(store)))
    store.answer(run_id, ANSWER)

    (first, first_transcript), (whole, transcript) = halves
    with capsys.disabled():
        kind = "SQLite" if store.database.is_sqlite else "PostgreSQL"
        print(f"\n1,000 steps on {kind}: {whole:,} bytes for a transcript of {transcript:,}: {whole / transcript:.2f}x")
    assert whole <= 1.5 * transcript
    # A step costs the same whatever went before it.
    assert (whole - first) / (transcript - first_transcript) <= 1.05 * first / first_transcript
    check(store)
