"""Rewinds: what a session that was taken back still knows, on both databases."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from support.questions import DANGER
from support.store import Store, settlement

from hermes_worker.core.messages import ModelReply
from hermes_worker.core.questions import APPROVED_KEY
from hermes_worker.core.replay import Replay
from hermes_worker.safety.approvals import ApprovalChoice
from hermes_worker.store.restore_detection import mark_epoch
from hermes_worker.store.rewinds import REWOUND_KEY, Rewind, RewoundPart, load_rewound, match_calls_settled_since
from hermes_worker.store.runs.waits import Waits
from hermes_worker.store.runs.workspaces import RunWorkspaces
from hermes_worker.store.sessions import Sessions
from hermes_worker.store.tables import messages, sessions


def pk_of(store: Store, name: str) -> int:
    with store.database.read() as connection:
        here = sa.or_(sessions.c.name == name, sessions.c.session_id == name)
        return int(connection.execute(sa.select(sessions.c.pk).where(here)).scalar_one())


def part_of(store: Store, name: str) -> RewoundPart | None:
    with store.database.read() as connection:
        return load_rewound(connection, pk_of(store, name))


def rows_of(store: Store, name: str) -> list[dict[str, Any]]:
    with store.database.read() as connection:
        its = sa.select(messages.c.body).where(messages.c.session_pk == pk_of(store, name)).order_by(messages.c.seq)
        return [json.loads(body) for body in connection.execute(its).scalars()]


def paid(store: Store, session: str = "s") -> str:
    """A turn before, and one whose ``once`` call a person allowed for the session."""
    first = store.submit(input="hello", session_id=session, source="api").run_id
    store.answer(first, ModelReply(text="hi"))
    run_id = store.with_tools(Replay.ONCE, session_id=session, source="api")
    Waits(store.database).ask(store.call(run_id), DANGER)
    Waits(store.database).approve(run_id, ApprovalChoice.SESSION, by="cli:anna")
    store.calls.settle(store.call(run_id), settlement("paid 100"))
    store.answer(run_id, ModelReply(text="done"))
    return run_id


def test_a_fork_before_a_call_knows_the_call_who_allowed_it_and_what_came_of_it(store: Store) -> None:
    run_id = paid(store)
    whole = rows_of(store, "s")
    Sessions(store.database).fork("s", name="f", last=2)
    part = part_of(store, "f")
    assert part is not None
    [call] = part.calls
    assert (call.run_id, call.allowed_by, "paid 100" in call.result) == (run_id, "cli:anna", True)
    assert (part.once_tools, part.used, part.is_told) == (frozenset({"tool0"}), (), False)
    documents = store.calls.load_documents(pk_of(store, "f"), [APPROVED_KEY, REWOUND_KEY])
    assert set(documents) == {REWOUND_KEY}
    store.submit(input="pay", session_id="f", source="api")
    told = rows_of(store, "f")
    assert told[:2] == whole[:2]
    assert (len(told), told[3]["content"]) == (4, "pay")
    assert "paid 100" in told[2]["content"]
    assert "not taken back" in told[2]["content"]
    after = part_of(store, "f")
    assert after is not None
    assert after.is_told


def test_a_fork_of_everything_and_one_behind_the_call_know_of_nothing(store: Store) -> None:
    paid(store)
    Sessions(store.database).fork("s", name="f")
    assert part_of(store, "f") is None


def test_a_fork_of_nothing_begins_with_the_note(store: Store) -> None:
    paid(store)
    Sessions(store.database).fork("s", name="f", last=0)
    [note] = rows_of(store, "f")
    assert "paid 100" in note["content"]


def test_a_fork_of_a_fork_still_knows_and_tells_again(store: Store) -> None:
    paid(store)
    its = Sessions(store.database)
    its.fork("s", name="f", last=2)
    run_id = store.submit(input="and?", session_id="f", source="api").run_id
    store.answer(run_id, ModelReply(text="no"))
    its.fork("f", name="g", last=2)
    part = part_of(store, "g")
    assert part is not None
    assert (len(part.calls), part.is_told) == (1, False)


def test_a_retried_run_leaves_its_effects_and_takes_its_permissions_along(store: Store) -> None:
    run_id = paid(store)
    assert APPROVED_KEY in store.calls.load_documents(pk_of(store, "s"), [APPROVED_KEY])
    store.submit(input="again", session_id="s", source="api", retry_of=run_id)
    assert store.calls.load_documents(pk_of(store, "s"), [APPROVED_KEY]) == {}
    assert "paid 100" in rows_of(store, "s")[-2]["content"]


def test_a_restored_checkpoint_leaves_what_was_done_outside(store: Store) -> None:
    run_id = paid(store)
    rewind = Rewind(calls=match_calls_settled_since(0.0), files_note="files are back", besides=frozenset({"patch"}))
    RunWorkspaces(store.database).record_restore(run_id, "abc", before="def", files=1, rewind=rewind)
    part = part_of(store, "s")
    assert part is not None
    assert ([call.tool for call in part.calls], part.files_note) == (["tool0"], "files are back")
    assert store.calls.load_documents(pk_of(store, "s"), [APPROVED_KEY]) == {}


def test_a_restored_database_gives_no_permission_of_a_conversation_again(store: Store) -> None:
    paid(store)
    mark_epoch(store.database, are_workers_gone=True)
    assert store.calls.load_documents(pk_of(store, "s"), [APPROVED_KEY]) == {}
