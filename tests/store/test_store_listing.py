"""Lists of runs: every filter, and pages that stay where they are whatever is added or deleted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from support.store import Store, asks

from hermes_worker.core.messages import ModelReply
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunKind, RunStatus
from hermes_worker.store.runs import listing
from hermes_worker.store.runs.listing import Listing, RunFilter
from hermes_worker.store.search import run_texts
from hermes_worker.store.search.indexing import Indexer
from hermes_worker.store.statistics import count_ended_rows
from hermes_worker.store.tables import firings, jobs, run_inputs, runs


def ids(store: Store, limit: int = 50, **wanted: object) -> list[str]:
    page = Listing(store.database).list_page(RunFilter(**wanted), limit=limit)  # type: ignore[arg-type]
    assert page.below is None
    return [view.run_id for view in page.views]


def change(store: Store, run_id: str, **values: object) -> None:
    with store.database.write() as connection:
        connection.execute(sa.update(runs).where(runs.c.run_id == run_id).values(**values))


def pages(store: Store, wanted: RunFilter, limit: int) -> Iterator[list[str]]:
    below = None
    while True:
        page = Listing(store.database).list_page(wanted, limit=limit, below=below)
        yield [view.run_id for view in page.views]
        if page.below is None:
            return
        below = page.below


def test_runs_are_found_by_their_tags(store: Store) -> None:
    both = store.submit(tags=("nightly", "eu")).run_id
    one = store.submit(tags=("nightly",)).run_id
    store.submit()
    others = store.submit(tags=("nightly",), tenant="acme").run_id

    assert ids(store, tags=("nightly",)) == [one, both]
    assert ids(store, tags=("eu", "nightly")) == [both]
    assert ids(store, tags=("us",)) == []
    assert ids(store, tags=("nightly",), tenant="acme") == [others]
    [view] = Listing(store.database).list_page(RunFilter(tags=("eu",))).views
    assert view.tags == ["eu", "nightly"]


def test_runs_are_found_by_status_model_session_and_cost(store: Store) -> None:
    done = store.submit(model="a").run_id
    store.answer(done)
    waiting = store.submit(model="b", session_id="s").run_id
    change(store, done, cost_nano_usd=2_500_000_000)

    assert ids(store, statuses=(RunStatus.COMPLETED,)) == [done]
    assert ids(store, statuses=(RunStatus.QUEUED, RunStatus.RUNNING)) == [waiting]
    assert ids(store, statuses=(RunStatus.QUEUED, RunStatus.COMPLETED)) == [waiting, done]
    assert ids(store, model="b") == [waiting]
    assert ids(store, session_id="s") == [waiting]
    assert ids(store, session_id="s", source="cli") == []
    assert ids(store, cost_usd_min=2.5) == [done]
    assert ids(store, cost_usd_max=2.4) == [waiting]


def test_runs_are_found_by_the_time_at_which_they_were_made(store: Store) -> None:
    run_ids = [store.submit().run_id for _ in range(4)]
    for number, run_id in enumerate(run_ids):
        change(store, run_id, created_at=1_000_000.0 * (number + 1))

    assert ids(store, created_after=2_000_000.0) == run_ids[:0:-1]
    assert ids(store, created_before=3_000_000.0) == run_ids[1::-1]
    assert ids(store, created_after=2_000_000.0, created_before=4_000_000.0) == run_ids[2:0:-1]


def test_a_time_is_found_among_many_numbers(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_NEAR", 2)
    monkeypatch.setattr(listing, "LOOKED_AT_MAX", 5)
    run_ids = [store.submit().run_id for _ in range(40)]
    for number, run_id in enumerate(run_ids):
        change(store, run_id, created_at=10_000.0 * number)

    wanted = RunFilter(created_after=70_000.0, created_before=100_000.0)
    assert [each for page in pages(store, wanted, 2) for each in page] == run_ids[9:6:-1]


def test_runs_are_found_by_their_job(store: Store) -> None:
    mine, _ = store.submit().run_id, store.submit().run_id
    job = {"job_id": "0123456789ab", "tenant": "default", "name": "j", "definition": "{}", "state": "scheduled"}
    with store.database.write() as connection:
        connection.execute(sa.insert(jobs).values(**job, created_at=1.0, updated_at=1.0))
        run_pk = connection.execute(sa.select(runs.c.pk).where(runs.c.run_id == mine)).scalar_one()
        slot = {"job_pk": 1, "slot": 1.0, "outcome": "fired", "reason": "", "settled_at": 1.0, "run_pk": run_pk}
        connection.execute(sa.insert(firings).values(slot | {"job_pk": sa.select(jobs.c.pk).scalar_subquery()}))

    assert ids(store, job_id="0123456789ab") == [mine]
    assert ids(store, job_id="0123456789ab", tenant="acme") == []
    assert ids(store, job_id="nope") == []


def test_runs_are_found_by_where_they_came_from(store: Store) -> None:
    by_hand, by_clock = store.submit(source="cli").run_id, store.submit(source="cron").run_id

    assert ids(store, origin="cron") == [by_clock]
    assert ids(store, origin="cli", model="scripted") == [by_hand]
    assert ids(store, origin="webhook") == []


def test_runs_are_found_by_the_run_that_began_them(store: Store) -> None:
    root = store.with_tools(Replay.PURE, session_id="talk")
    first, second = store.delegate(root, 2)
    store.ask_tools(first, asks(Replay.PURE))
    [grandchild] = store.delegate(first, 1)

    assert ids(store, parent=root) == [second, first]
    assert ids(store, parent=first) == [grandchild]
    assert ids(store, parent=grandchild) == []
    assert ids(store, parent=root, tenant="acme") == []
    assert ids(store, parent=root, session_id="talk") == []
    assert ids(store, parent=root, tags=("none",)) == []
    assert ids(store, parent="run_x") == []


def test_the_turn_that_a_background_answer_began_is_found_by_its_cause(store: Store) -> None:
    root = store.with_tools(Replay.PURE)
    [child] = store.delegate(root, 1, note="it goes on")
    store.answer(root)
    store.answer(child)

    [caused, background] = ids(store, parent=root)
    assert background == child
    assert caused != root


def test_a_list_says_what_each_run_is_and_what_was_asked(store: Store) -> None:
    root = store.with_tools(Replay.PURE, input="Compare the offers\nof these three")
    [child] = store.delegate(root, 1, note="it goes on")
    store.answer(root)
    store.answer(child)
    slot = store.submit(source="cron", input="[SYSTEM: a job]", about="nightly, 2026-11-29 04:00 CET").run_id
    judged = store.submit(source="evaluation", input="Compare the offers again", tags=("evaluation",)).run_id
    judge = store.submit(input="Is the goal reached?", tags=("chat", "evaluation")).run_id
    views = {view.run_id: view for view in Listing(store.database).list_page(RunFilter()).views}
    [follow_up] = views.keys() - {root, child, slot, judged, judge}

    kinds = ["request", "child", "job", "follow_up", "evaluation", "evaluation"]
    assert [views[one].kind for one in (root, child, slot, follow_up, judged, judge)] == kinds
    assert ids(store, kinds=(RunKind.EVALUATION,)) == [judge, judged]
    assert ids(store, kinds=(RunKind.REQUEST, RunKind.JOB)) == [slot, root]
    assert ids(store, kinds=(RunKind.FOLLOW_UP, RunKind.CHILD)) == [follow_up, child]
    assert ids(store, kinds=(RunKind.REVIEW,)) == []
    assert (views[root].title, views[root].delegated) == ("Compare the offers", 1)
    assert views[slot].title == "nightly, 2026-11-29 04:00 CET"
    assert views[follow_up].title == "Background answer: Compare the offers"
    assert views[follow_up].session_title == "Compare the offers"


def test_a_run_from_before_there_were_titles_has_that_of_its_conversation(store: Store) -> None:
    store.submit(input="first", session_id="s")
    store.submit(input="second", session_id="s")
    with store.database.write() as connection:
        connection.execute(sa.update(run_inputs).values(title=None))

    page = Listing(store.database).list_page(RunFilter())
    assert [view.title for view in page.views] == ["first", "first"]


@pytest.mark.parametrize("tags", [(), ("t",)])
def test_pages_miss_nothing_and_repeat_nothing_while_runs_come_and_go(store: Store, tags: tuple[str, ...]) -> None:
    run_ids = [store.submit(tags=tags).run_id for _ in range(7)]
    seen: list[str] = []
    for page in pages(store, RunFilter(tags=tags), 2):
        seen += page
        store.submit(tags=tags)  # newer than all pages
        with store.database.write() as connection:  # the run that ended the page is deleted
            connection.execute(sa.update(runs).where(runs.c.run_id == page[-1]).values(tenant="gone"))

    assert seen == run_ids[::-1]


def test_what_is_rare_takes_short_pages_and_is_found(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "LOOKED_AT_MAX", 3)
    rare = store.submit(model="rare").run_id
    for _ in range(7):
        store.submit()

    found = list(pages(store, RunFilter(model="rare"), 5))

    assert found == [[], [], [rare]]


# --- by text ---------------------------------------------------------------------------------------------------------


def said(store: Store, asked: str, answered: str = "", **more: object) -> str:
    run_id = store.submit(input=asked, **more).run_id  # type: ignore[arg-type]
    store.answer(run_id, ModelReply(text=answered))
    return run_id


def index_all(store: Store) -> None:
    while count_ended_rows(store.database):
        pass
    Indexer(store.database).index_due(60.0, pause_s=0.0)


def test_runs_are_found_by_what_they_were_asked_and_answered_indexed_or_not(store: Store) -> None:
    asked = said(store, "Deploy the heron to Kyoto", "done")
    answered = said(store, "and now?", "the heron sleeps")
    said(store, "nothing", "of it")
    of_another = said(store, "a heron of ours", tenant="acme")
    waits = store.submit(input=[{"type": "text", "text": "HERON again"}]).run_id
    stepped = store.submit(input="go", session_id="s").run_id
    store.ask_tools(stepped, asks(Replay.PURE))  # what a model said on the way is no answer
    for _ in range(2):
        assert ids(store, text="heron") == [waits, answered, asked]
        assert ids(store, text="heron NOT kyoto") == [waits, answered]
        assert ids(store, text='"the heron" OR kyoto') == [answered, asked]
        assert ids(store, text="tool0") == ids(store, text="...") == []
        assert ids(store, text="heron", statuses=(RunStatus.COMPLETED,), tenant="acme") == [of_another]
        assert ids(store, text="heron done") == [], "one text has to have all of it"
        index_all(store)


def test_the_index_says_which_runs_are_read_and_pages_end_after_so_many(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "READ_MAX", 4)
    monkeypatch.setattr(listing, "_READ_AT_ONCE", 2)
    owls = [said(store, f"owl {number}", "hm") for number in range(7)]
    more = [said(store, f"ibis {number}", "hm") for number in range(12)]
    [heron] = [said(store, "a heron")]
    index_all(store)

    assert [run for page in pages(store, RunFilter(text="owl"), 3) for run in page] == owls[::-1]
    assert list(pages(store, RunFilter(text="ibis 3 OR heron"), 9)) == [[heron, more[3]]]
    assert list(pages(store, RunFilter(text="owl", created_before=1.0), 3))[-1] == []
    monkeypatch.setattr(run_texts, "TO_READ_MAX", 5)
    found = list(pages(store, RunFilter(text="owl"), 3))
    assert [run for page in found for run in page] == owls[::-1]
    assert [] in found, "without the index a page may come empty"


@pytest.mark.parametrize("state", ["open", "uncounted", "due", "behind a gap"])
def test_a_run_is_found_while_the_index_does_not_have_it(store: Store, state: str) -> None:
    mine = store.submit(input="a heron", session_id="s").run_id
    if state == "behind a gap":
        store.answer(mine)
        store.submit(input="next", session_id="s")
        index_all(store)
    if state in ("uncounted", "due"):
        store.answer(mine)
    if state == "due":
        while count_ended_rows(store.database):
            pass
    assert ids(store, text="heron") == [mine]
