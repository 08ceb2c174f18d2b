"""Where conversations stand, and runs that are only made when a session stands where its caller takes it to be."""

from __future__ import annotations

import pytest
from support.store import Store

from hermes_worker.store.runs.conversations import Conversations
from hermes_worker.store.runs.runs import SessionMoved


def test_a_run_is_only_made_after_the_one_that_its_caller_knows(store: Store) -> None:
    first = store.submit(session_id="s", after="").run_id
    store.answer(first)
    with pytest.raises(SessionMoved):
        store.submit(session_id="s", after="")
    second = store.submit(session_id="s", after=first).run_id
    with pytest.raises(SessionMoved):
        store.submit(session_id="s", after=first)
    assert [view.run_id for view in store.views.list_runs()] == [second, first]
    with pytest.raises(SessionMoved):
        store.submit(session_id="gone", after=first)
    assert len(store.views.list_runs()) == 2


def test_the_ends_of_conversations_are_told_unless_something_is_at_work(store: Store) -> None:
    conversations = Conversations(store.database)
    run_id = store.submit(session_id="a").run_id
    assert conversations.find_ends("default", "api", ["a", "b"]) == {"a": None}
    store.answer(run_id)
    end = conversations.find_ends("default", "api", ["a"])["a"]
    assert end is not None
    assert (end.name, end.run_id, len(conversations.load_messages(end))) == ("a", run_id, 2)
    assert conversations.find_ends("acme", "api", ["a"]) == {}
    assert conversations.find_ends("default", "cli", ["a"]) == {}
