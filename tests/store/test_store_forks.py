"""The rows of forks: where a run can be forked, what is referenced, and what becomes of it when the original goes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from support.store import Store, asks, new_run

from hermes_worker.core.forks import ForkMatch, ForkTerms, ForkTools
from hermes_worker.core.replay import Replay
from hermes_worker.features.forks.rows import NewFork, NotForkable, load_original, open_fork, record_original
from hermes_worker.features.retention.deleting_rows import delete_chain, delete_session
from hermes_worker.store.rewinds import load_rewound
from hermes_worker.store.runs.runs import SessionErased, create_run_id
from hermes_worker.store.sessions import Sessions
from hermes_worker.store.tables import messages, runs, sessions
from hermes_worker.store.whole_schema import load_schema
from hermes_worker.tasks.calls.rewound import find_remark

PROMPT = "You are in a test. " * 400


def forked(store: Store, run_id: str, step: int, *, tools: ForkTools = ForkTools.RECORDED, **said: str) -> str:
    with store.database.read() as connection:
        original, spec = load_original(connection, run_id)
    fork_id = create_run_id()
    terms = ForkTerms(run_id=run_id, step=step, rows=0, tools=tools, match=ForkMatch.STRICT)
    new = NewFork(
        run_id=fork_id,
        original=original,
        has_input=spec.input != [],
        terms=terms,
        prompt=said.get("prompt"),
        title="a fork",
    )
    created = store.runs.create(
        new_run(
            input=[],
            run_id=fork_id,
            session_id=fork_id,
            open_session=partial(open_fork, new=new),
        )
    )
    return created.run_id


def original_of(store: Store, steps: int = 3, *replays: Replay) -> str:
    run_id = store.submit(system_prompt=PROMPT).run_id
    for _ in range(steps):
        store.ask_tools(run_id, asks(*(replays or (Replay.PURE,))))
        store.settle(run_id, text="x" * 5_000)
    store.answer(run_id)
    return run_id


def pk_of(store: Store, session_id: str) -> int:
    with store.database.read() as connection:
        return int(connection.execute(sa.select(sessions.c.pk).where(sessions.c.session_id == session_id)).scalar_one())


def count_bytes(store: Store, of_session: int | None = None) -> int:
    """The bytes of all texts in all rows, or in those of one session and of its runs."""
    its_runs = sa.select(runs.c.pk).where(runs.c.session_pk == of_session)
    rows: list[sa.Row[Any]] = []
    with store.database.read() as connection:
        for table in load_schema().sorted_tables:
            statement = sa.select(table)
            if of_session is not None and table is sessions:
                statement = statement.where(table.c.pk == of_session)
            elif of_session is not None and "session_pk" in table.c:
                statement = statement.where(table.c.session_pk == of_session)
            elif of_session is not None:
                statement = statement.where(table.c.run_pk.in_(its_runs) if "run_pk" in table.c else sa.false())
            rows += connection.execute(statement)
    return sum(len(str(value).encode()) for row in rows for value in row if value is not None)


def test_a_fork_begins_with_the_rows_and_the_prompt_of_its_original(store: Store) -> None:
    run_id = original_of(store)
    fork_id = forked(store, run_id, 2)
    claim = store.turn(fork_id)
    rows = store.transcripts.load(claim.loaded.session_pk, claim.loaded.message_seq)
    assert [row.role.value for row in rows] == ["user", "assistant", "tool", "assistant", "tool"]
    assert rows == store.transcripts.load(pk_of(store, run_id), 5)
    context = store.runs.load_session_context(claim.loaded.session_pk)
    assert (context.system_prompt, context.is_fork) == (PROMPT, True)
    assert [view.seq for view in Sessions(store.database).list_messages(fork_id)] == [1, 2, 3, 4, 5]


def test_the_beginning_is_referenced_and_not_copied(store: Store) -> None:
    run_id = original_of(store, 20)
    forked(store, run_id, 0)
    before = count_bytes(store)
    fork_id = forked(store, run_id, 20)
    assert count_bytes(store) - before < 4_000  # the session, its terms, the run, its input and the audit's row
    store.ask_tools(fork_id, asks(Replay.PURE))
    store.settle(fork_id, text="x" * 5_000)
    store.answer(fork_id)
    assert count_bytes(store) - before <= 1.05 * count_bytes(store, of_session=pk_of(store, fork_id))


def test_a_fork_of_a_fork_reads_through_both(store: Store) -> None:
    run_id = original_of(store, 1)
    fork_id = forked(store, run_id, 0)
    store.ask_tools(fork_id, asks(Replay.PURE))
    store.settle(fork_id, text="second")
    store.answer(fork_id)
    for step, roles in ((0, ["user"]), (1, ["user", "assistant", "tool"])):
        claim = store.turn(forked(store, fork_id, step))
        rows = store.transcripts.load(claim.loaded.session_pk, claim.loaded.message_seq)
        assert [row.role.value for row in rows] == roles
        assert store.runs.load_session_context(claim.loaded.session_pk).system_prompt == PROMPT


def test_a_step_that_is_not_there_is_refused_with_those_that_are(store: Store) -> None:
    run_id = original_of(store, 2)
    with pytest.raises(NotForkable, match=r"has no step 4 .* there are 0, 1 and 2"):
        forked(store, run_id, 4)
    with pytest.raises(NotForkable, match=r"step 3 .* is its answer, .* behind step 0, 1 and 2"):
        forked(store, run_id, 3)
    with pytest.raises(NotForkable, match="has not begun"):
        forked(store, store.submit(delay_s=60.0).run_id, 0)


def test_a_run_at_work_can_be_forked_at_the_steps_that_are_over(store: Store) -> None:
    run_id = store.submit().run_id
    store.ask_tools(run_id, asks(Replay.PURE))
    store.settle(run_id)
    store.ask_tools(run_id, asks(Replay.PURE))
    forked(store, run_id, 1)
    with pytest.raises(NotForkable, match="there are 0 and 1"):
        forked(store, run_id, 2)


def test_a_child_can_be_forked_and_is_then_no_child(store: Store) -> None:
    parent = store.submit().run_id
    store.ask_tools(parent, asks(Replay.PURE))
    [child] = store.delegate(parent, 1)
    store.answer(child)
    fork_id = forked(store, child, 0)
    with store.database.read() as connection:
        row = connection.execute(sa.select(runs.c.parent_pk, runs.c.depth).where(runs.c.run_id == fork_id)).one()
    assert tuple(row) == (None, 0)


def test_nothing_is_forked_out_of_a_session_that_is_being_erased(store: Store) -> None:
    run_id = original_of(store, 1)
    with store.database.write() as connection:
        connection.execute(sa.update(sessions).values(erasure_pk=1))
    with pytest.raises(SessionErased):
        forked(store, run_id, 0)


def test_when_the_original_goes_its_forks_take_their_beginning_over(store: Store) -> None:
    run_id = original_of(store, 2)
    fork_id = forked(store, run_id, 2)
    other = forked(store, fork_id, 0)
    with store.database.read() as connection:
        run_pk = connection.execute(sa.select(runs.c.pk).where(runs.c.run_id == run_id)).scalar_one()
    assert delete_chain(store.database, run_pk, lambda connection: True) == 1
    assert delete_session(store.database, pk_of(store, run_id), lambda connection: True)
    with store.database.read() as connection:
        own = sa.select(sa.func.count()).select_from(messages).where(messages.c.session_pk == pk_of(store, fork_id))
        assert connection.execute(own).scalar() == 5
    for each in (fork_id, other):
        claim = store.turn(each)
        assert len(store.transcripts.load(claim.loaded.session_pk, claim.loaded.message_seq)) == 5
        assert store.runs.load_session_context(claim.loaded.session_pk).system_prompt == PROMPT


def test_only_a_fork_whose_tools_run_is_told_what_happened_since(store: Store) -> None:
    run_id = original_of(store, 2, Replay.ONCE)
    for tools, told in ((ForkTools.LIVE, 1), (ForkTools.DENY, 1), (ForkTools.RECORDED, 0), (ForkTools.OFFLINE, 0)):
        fork_id = forked(store, run_id, 1, tools=tools)
        with store.database.read() as connection:
            own = sa.select(messages.c.body).where(messages.c.session_pk == pk_of(store, fork_id))
            bodies = connection.execute(own).scalars().all()
        assert len(bodies) == told
        assert all("Note of the system" in body for body in bodies)


def test_scripts_and_children_are_put_to_a_person_as_they_can_use_any_tool(store: Store) -> None:
    for replay, asks_about in ((Replay.ONCE, True), (Replay.KEYED, False)):
        fork_id = forked(store, original_of(store, 2, replay), 1, tools=ForkTools.LIVE)
        with store.database.read() as connection:
            part = load_rewound(connection, pk_of(store, fork_id))
        assert part is not None
        for tool, its in (("delegate_task", Replay.PURE), ("execute_code", Replay.ONCE)):
            assert bool(find_remark(part, tool, its, "{}")) is asks_about


def test_what_the_original_does_after_the_fork_began_counts_too(store: Store) -> None:
    run_id = store.submit().run_id
    store.ask_tools(run_id, asks(Replay.PURE))
    store.settle(run_id)
    fork_id = forked(store, run_id, 0, tools=ForkTools.LIVE)
    store.ask_tools(run_id, asks(Replay.ONCE))
    store.settle(run_id, text="paid")
    with store.database.write() as connection:
        record_original(connection, pk_of(store, fork_id))
        part = load_rewound(connection, pk_of(store, fork_id))
    assert part is not None
    assert [(call.run_id, "paid" in call.result) for call in part.calls] == [(run_id, True)]


def test_what_grandchildren_did_behind_the_point_counts_and_before_it_does_not(store: Store) -> None:
    parent = store.submit().run_id
    made = []
    for _ in range(2):
        store.ask_tools(parent, asks(Replay.PURE))
        [child] = store.delegate(parent, 1)
        store.ask_tools(child, asks(Replay.PURE))
        [grandchild] = store.delegate(child, 1)
        store.ask_tools(grandchild, asks(Replay.ONCE))
        store.settle(grandchild, text="paid")
        for each in (grandchild, child):
            store.answer(each)
        made.append(grandchild)
    for step, counted in ((0, made), (1, made[1:])):
        fork_id = forked(store, parent, step, tools=ForkTools.LIVE)
        with store.database.read() as connection:
            part = load_rewound(connection, pk_of(store, fork_id))
        assert part is not None
        assert {call.run_id for call in part.calls} == set(counted)


def test_a_fork_with_a_prompt_of_its_own_has_that_one(store: Store) -> None:
    claim = store.turn(forked(store, original_of(store, 1), 0, prompt="Be brief."))
    assert store.runs.load_session_context(claim.loaded.session_pk).system_prompt == "Be brief."
