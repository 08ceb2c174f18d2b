"""Sessions as their callers see them, on both databases."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from support.store import Store, asks, new_run, settlement

from hermes_worker.core.messages import ModelReply, Usage
from hermes_worker.core.replay import Replay
from hermes_worker.core.retention_rules import DEFAULT_RULES, RetentionKind, RetentionRule
from hermes_worker.core.short_ids import AmbiguousId
from hermes_worker.core.titles import hash_title
from hermes_worker.features.retention.erasure_rows import Erasures
from hermes_worker.features.retention.erasure_rules import Person
from hermes_worker.features.retention.rows import Pruner
from hermes_worker.store.rows import BLOB_CHARS_MIN
from hermes_worker.store.runs.runs import SessionActive, SessionNotFound, create_run_id
from hermes_worker.store.sessions import InvalidFork, SessionChanges, SessionExists, SessionPage, Sessions, TitleTaken
from hermes_worker.store.tables import messages, session_documents, sessions


@pytest.fixture
def its(store: Store) -> Sessions:
    return Sessions(store.database)


def talk(store: Store, session_id: str, *texts: str, **more: object) -> list[str]:
    """Turns of a session, one after the other."""
    found = []
    for text in texts:
        run_id = store.submit(input=text, session_id=session_id, source="api", **more).run_id
        store.answer(run_id, ModelReply(text=f"on {text}", usage=Usage(input=3, output=2)))
        found.append(run_id)
    return found


def prompt_of(store: Store, session_id: str) -> tuple[str, str, list[str]]:
    """What the next prompt of a session begins with, byte by byte."""
    with store.database.read() as connection:
        wanted = sa.select(sessions.c.pk, sessions.c.message_seq).where(sessions.c.session_id == session_id)
        pk, last = connection.execute(wanted).one()
    context = store.runs.load_session_context(pk)
    return context.system_prompt, context.tools, [row.body for row in store.transcripts.load(pk, last)]


def test_a_page_goes_on_where_the_one_before_ended_whatever_is_opened_meanwhile(store: Store, its: Sessions) -> None:
    for n in range(5):
        talk(store, f"s{n}", "hello")
    first = its.list_page(SessionPage(limit=2))
    talk(store, "later", "hello")
    second = its.list_page(SessionPage(limit=2, before=first[-1].label.name))
    assert [view.label.name for view in (*first, *second)] == ["s4", "s3", "s2", "s1"]
    assert [view.label.name for view in its.list_page(SessionPage(limit=2, offset=1))] == ["s4", "s3"]


def test_the_session_with_the_newest_activity_comes_first_and_a_page_below_a_place_keeps_it(
    store: Store, its: Sessions
) -> None:
    for n in range(5):
        talk(store, f"s{n}", "hello")
    talk(store, "s1", "again")
    begun = store.submit(input="more", session_id="s0", source="api").run_id
    first = its.list_page(SessionPage(limit=2))
    assert [view.label.name for view in first] == ["s0", "s1"]
    store.answer(begun)
    talk(store, "s1", "and again")
    second = its.list_page(SessionPage(limit=2, below=first[-1].place))
    assert [view.label.name for view in second] == ["s4", "s3"], "a turn of s1 moved it, and not the place"
    assert [view.label.name for view in its.list_page(SessionPage(limit=2))] == ["s1", "s0"]
    with store.database.write() as connection:
        connection.execute(sa.update(sessions).values(active_at=0))
    old = its.list_page(SessionPage(limit=2))
    rest = its.list_page(SessionPage(limit=9, below=old[-1].place))
    assert [view.label.name for view in (*old, *rest)] == ["s4", "s3", "s2", "s1", "s0"], "equal times go by age"


def test_a_reference_is_an_id_a_name_a_title_or_the_beginning_of_one_thing(store: Store, its: Sessions) -> None:
    [first] = talk(store, "plan-of-the-house", "the plan")
    [second] = talk(store, "plant", "water it")
    theirs = store.submit(input="theirs", session_id="elsewhere", source="cli").run_id
    its.change("plant", SessionChanges(title="Green things"))
    its.fork("plant", name="copy")
    for written in ("plan-of-the-house", "plan-of", first[:16], first[4:16], first[4:16].upper()):
        assert its.complete_reference(written) == "plan-of-the-house", written
    assert its.complete_reference("elsewhere") == its.complete_reference(theirs[:20]) == theirs
    assert its.complete_reference("Green things") == "copy", "the newest of a title and its numbered forks"
    assert its.complete_reference("plant") == "plant", "a whole name is no beginning"
    with pytest.raises(AmbiguousId, match=r"'pla' may mean several sessions: plant \('Green things'\), plan-of"):
        its.complete_reference("pla")
    for title in ("twice", "other"):
        talk(store, title, "Say it twice")
    with pytest.raises(AmbiguousId, match=r"other \('Say it twice'\), twice"):
        its.complete_reference("Say it twice")
    for written in ("nothing", "run_", "%", first[:-1] + "z", ""):
        with pytest.raises(SessionNotFound):
            its.complete_reference(written)
    with pytest.raises(SessionNotFound):
        Sessions(store.database, "acme").complete_reference(second[:20])


def test_a_fork_without_a_name_is_called_the_same_by_every_source(store: Store, its: Sessions) -> None:
    talk(store, "s", "hello")
    fork = Sessions(store.database, source="cli").fork("run_" + its.get("s").label.id[4:])
    assert fork.source == "cli"
    assert {fork.label.choose_reference(source) for source in ("api", "cli")} == {fork.label.id}
    assert its.get(fork.label.id).label == fork.label
    assert fork.label.describe_for("api") == fork.label.id


def test_a_session_says_what_its_runs_come_to(store: Store, its: Sessions) -> None:
    talk(store, "s", "what is\nthe answer?", "really?")
    run_id = store.submit(input="look", session_id="s", source="api", model="other").run_id
    store.ask_tools(run_id, asks(Replay.PURE))
    store.calls.settle(store.call(run_id), settlement())
    store.answer(run_id)
    view = its.get("s")
    assert (view.source, view.model, view.asks_model) == ("api", "other", None)
    assert (view.message_count, view.totals.tool_calls, view.totals.iterations) == (8, 1, 4)
    assert (view.totals.input, view.totals.output) == (3 + 3 + 10 + 3, 2 + 2 + 5 + 2)
    assert view.preview == "what is the answer?"
    assert not view.is_at_work
    assert view.last_active >= view.created_at
    named = [(row.role.value, row.tool_name) for row in its.list_messages("s")][4:]
    assert named == [("user", None), ("assistant", None), ("tool", "tool0"), ("assistant", None)]
    assert [row.tool_name for row in its.list_messages("s", after=6, limit=1)] == ["tool0"]


def test_what_other_tenants_and_sources_call_so_is_another_session(store: Store, its: Sessions) -> None:
    talk(store, "s", "ours")
    store.submit(input="theirs", session_id="s", source="cli")
    store.submit(input="foreign", session_id="s", source="api", tenant="acme")
    assert its.get("s").preview == "ours"
    assert [view.preview for view in its.list_page(SessionPage())] == ["theirs", "ours"]
    assert [view.preview for view in its.list_page(SessionPage(source="cli"))] == ["theirs"]
    foreign = Sessions(store.database, "acme").get("s").label.id
    with pytest.raises(SessionNotFound):
        its.get(foreign)


def test_sessions_of_children_are_listed_when_they_are_asked_for(store: Store, its: Sessions) -> None:
    run_id = store.with_tools(Replay.ONCE, session_id="s", source="api")
    store.delegate(run_id, 2)
    assert len(its.list_page(SessionPage())) == 1
    found = its.list_page(SessionPage(has_children=True))
    assert len(found) == 3
    assert {view.parent.name for view in found[:2] if view.parent} == {"s"}


def test_a_session_is_found_by_its_title_and_the_newest_of_its_forks_by_theirs(store: Store, its: Sessions) -> None:
    talk(store, "s", "the plan")
    its.change("s", SessionChanges(title="Plan"))
    assert [view.label.name for view in its.find_by_title("Plan")] == ["s"]
    its.fork("s", name="fork")
    talk(store, "other", "Plan B")
    assert [(view.label.name, view.title) for view in its.find_by_title("Plan", limit=9)] == [
        ("fork", "Plan #2"),
        ("s", "Plan"),
    ]
    assert its.find_by_title("Plan #1") == its.find_by_title("plan.*") == []
    assert Sessions(store.database, "acme").find_by_title("Plan") == []


def test_a_title_that_somebody_gave_belongs_to_one_session_of_a_tenant(store: Store, its: Sessions) -> None:
    for name in ("one", "two", "three"):
        talk(store, name, "hello")  # called alike, and nobody gave it
    talk(store, "theirs", "hello", tenant="acme")
    first = its.change("one", SessionChanges(title="Plan"))
    with pytest.raises(TitleTaken, match=first.label.id):
        its.change("two", SessionChanges(title="Plan"))
    assert its.change("one", SessionChanges(title="Plan")).title == "Plan"
    assert Sessions(store.database, "acme").change("theirs", SessionChanges(title="Plan")).title == "Plan"
    assert its.change("two", SessionChanges(title="Plan #2")).title == "Plan #2"
    assert its.fork("one", name="fork").title == "Plan #3"
    with pytest.raises(TitleTaken):
        its.fork("one", name="other", title="Plan")
    assert its.change("one", SessionChanges(title="")).title is None
    assert its.change("three", SessionChanges(title="Plan")).title == "Plan"


def test_of_two_who_give_a_title_at_once_one_has_it(store: Store, its: Sessions, monkeypatch: Any) -> None:
    for name in ("one", "two"):
        talk(store, name, "hello")
    its.change("one", SessionChanges(title="Plan"))
    # As if the other one had been committed after this one looked.
    monkeypatch.setattr(Sessions, "_require_free_title", lambda *_, **__: hash_title("Plan"))
    with pytest.raises(TitleTaken):
        its.change("two", SessionChanges(title="Plan"))


def test_whoever_opens_a_session_hears_which_of_its_names_was_taken_in_this_moment(
    store: Store, its: Sessions, monkeypatch: Any
) -> None:
    new = partial(new_run, source="api", session_id="fork")
    talk(store, "one", "hello")
    its.change("one", SessionChanges(title="Plan"))
    free_key, looked = Sessions._require_free_title, []

    def as_before_the_other(self: Sessions, connection: Any, title: str | None, **more: Any) -> str | None:
        looked.append(title)  # as if the other one had been committed after the first look of each
        return free_key(self, connection, title, **more) if len(looked) % 2 == 0 else hash_title(title or "")

    monkeypatch.setattr(Sessions, "_require_free_title", as_before_the_other)
    with pytest.raises(TitleTaken):
        its.open(new(), title="Plan", model=None)
    with pytest.raises(TitleTaken):
        its.fork("one", name="fork", title="Plan")
    assert its.open(new(), title="Other", model=None).title == "Other"
    looked.clear()
    with pytest.raises(SessionExists):
        its.open(new(), title="A third", model=None)


def test_a_session_that_is_put_away_is_listed_when_it_is_asked_for(store: Store, its: Sessions) -> None:
    for name in ("one", "two"):
        talk(store, name, "hello")
    assert its.change("one", SessionChanges(is_archived=True)).archived_at is not None
    assert [view.label.name for view in its.list_page(SessionPage())] == ["two"]
    assert [view.label.name for view in its.list_page(SessionPage(is_archived=True))] == ["one"]
    its.change("one", SessionChanges(is_archived=False))
    assert [view.label.name for view in its.list_page(SessionPage())] == ["two", "one"]


def test_a_lineage_has_what_a_session_was_forked_from_and_all_forks(store: Store, its: Sessions) -> None:
    talk(store, "root", "hello")
    talk(store, "stranger", "hello")
    its.fork("root", name="one")
    its.fork("root", name="two")
    its.fork("two", name="below")
    for name in ("root", "one", "two", "below"):
        assert [view.label.name for view in its.list_family(name)] == ["root", "one", "two", "below"]
    assert [view.label.name for view in its.list_family("stranger")] == ["stranger"]
    with pytest.raises(SessionNotFound):
        Sessions(store.database, "acme").list_family("root")


def test_an_opened_session_takes_its_first_turn_under_its_name(store: Store, its: Sessions) -> None:
    opened = its.open(new_run(session_id="s", source="api", system_prompt="Be brief."), title="Mine", model="m")
    assert (opened.message_count, opened.title, opened.asks_model, opened.source) == (0, "Mine", "m", "api")
    with pytest.raises(SessionExists):
        its.open(new_run(session_id="s", source="api"), title=None, model=None)
    talk(store, "s", "hello")
    assert its.get("s").message_count == 2
    assert prompt_of(store, opened.label.id)[0] == "Be brief."


def test_the_remark_that_a_session_is_over_holds_until_its_next_turn(store: Store, its: Sessions) -> None:
    talk(store, "s", "hello")
    assert its.change("s", SessionChanges(end_reason="done", title="New")).end_reason == "done"
    assert its.get("s").ended_at is not None
    talk(store, "s", "again")
    after = its.get("s")
    assert (after.ended_at, after.end_reason, after.title) == (None, None, "New")


def test_a_fork_begins_its_prompts_with_the_same_bytes(store: Store, its: Sessions) -> None:
    tools = '[{"type":"function","function":{"name":"tool0","description":"","parameters":{}}}]'
    talk(store, "s", "one", "x" * BLOB_CHARS_MIN, system_prompt="You are s.", tools=tools)
    fork = its.fork("s", name="f")
    whole = prompt_of(store, its.get("s").label.id)
    assert prompt_of(store, fork.label.id) == whole
    assert (fork.title, fork.message_count, fork.totals.iterations) == ("one #2", 4, 0)
    assert fork.parent is not None and fork.parent.name == "s"
    assert its.get("s").end_reason == "branched"
    talk(store, "f", "aside")
    talk(store, "s", "on")
    assert prompt_of(store, fork.label.id)[2][:4] == whole[2] == prompt_of(store, its.get("s").label.id)[2][:4]
    assert json.loads(prompt_of(store, fork.label.id)[2][4])["content"] == "aside"
    assert [its.fork("s", name="g").title, its.fork("f", name="h").title] == ["one #3", "one #4"]


def test_a_fork_is_cut_only_where_no_result_is_torn_off(store: Store, its: Sessions) -> None:
    run_id = store.submit(input="look", session_id="s", source="api").run_id
    store.ask_tools(run_id, asks(Replay.PURE, Replay.PURE))
    for position in range(2):
        store.calls.settle(store.call(run_id, position), settlement())
    store.answer(run_id)
    for last in (2, 3, 6, -1):
        with pytest.raises(InvalidFork):
            its.fork("s", name=f"f{last}", last=last)
    assert [its.fork("s", name=f"g{last}", last=last).message_count for last in (0, 1, 4, 5)] == [0, 1, 4, 5]


def test_what_a_run_at_work_has_written_is_not_forked(store: Store, its: Sessions) -> None:
    begun = store.submit(input="one", session_id="s", source="api").run_id
    with pytest.raises(SessionActive):
        its.fork("s", name="f")
    store.answer(begun)
    at_work = store.submit(input="two", session_id="s", source="api").run_id
    store.ask_tools(at_work, asks(Replay.PURE))
    assert its.fork("s", name="f").message_count == 2
    with pytest.raises(InvalidFork):
        its.fork("s", name="g", last=3)


def test_a_fork_takes_over_the_place_of_work_and_not_what_was_allowed(store: Store, its: Sessions) -> None:
    talk(store, "s", "one")
    with store.database.write() as connection:
        pk = connection.execute(sa.select(sessions.c.pk)).scalar_one()
        for key in ("terminal", "approved_patterns"):
            connection.execute(sa.insert(session_documents).values(session_pk=pk, key=key, body="[]"))
    fork = its.fork("s", name="f")
    with store.database.read() as connection:
        rows = connection.execute(
            sa.select(sessions.c.session_id, session_documents.c.key).join_from(session_documents, sessions)
        ).all()
        copied = sa.select(sa.func.count()).select_from(messages).where(messages.c.run_pk == 0)
        assert connection.execute(copied).scalar_one() == 2
    assert [key for session_id, key in rows if session_id == fork.label.id] == ["terminal"]


def test_the_workspace_of_an_erased_session_stays_while_a_fork_works_there(store: Store, its: Sessions) -> None:
    rules = {**DEFAULT_RULES, RetentionKind.WORKSPACES: RetentionRule(age_s=3_600.0)}
    run_id = create_run_id()
    talk(store, "s", "one", run_id=run_id, workspace=f'{{"kind":"local","root":"/w/{run_id}"}}')
    its.fork("s", name="f")
    its.detach_forks("s")
    erasures, pruner = Erasures(store.database), Pruner(store.database, rules)
    for session_id, left in ((run_id, set[str]()), (its.get("f").label.id, {run_id})):
        erasure = erasures.begin("default", Person(sessions=(session_id,)), by="cli:me")
        assert set(erasures.delete_stepwise(erasure))
        erasures.finish(erasure)
        assert pruner.find_expired_workspaces("default", [run_id]) == left


def test_a_workspace_is_idle_when_nobody_works_in_it_and_nobody_did_for_a_while(store: Store, its: Sessions) -> None:
    pruner = Pruner(store.database, DEFAULT_RULES)
    first, second, strange = create_run_id(), create_run_id(), create_run_id()
    place = '{"kind":"docker","root":"/workspace/files/%s"}'
    talk(store, "one", "hello", run_id=first, workspace=place % first)
    talk(store, "two", "hello", run_id=second, workspace=place % second)
    everybody = [first, second, strange]
    assert pruner.find_idle_workspaces(everybody, 3_600) == set(), "they were used a moment ago"
    assert pruner.find_idle_workspaces(everybody, -10) == {first, second}, "what nobody knows is not ours"
    child = store.submit(input="go", session_id="of one", source="api", workspace=place % first).run_id
    assert pruner.find_idle_workspaces(everybody, -10) == {second}, "another session works there"
    assert pruner.load_workspace_states(everybody) == {first: "at work", second: "quiet"}
    store.answer(child, ModelReply(text="done", usage=Usage(input=1, output=1)))
    assert pruner.find_idle_workspaces(everybody, -10) == {first, second}
