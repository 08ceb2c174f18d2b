"""Rows of resources: one host at a time, one call at a time, and what is left when a process has ended."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from support.store import Store

from hermes_worker.store.engine.database import db_now
from hermes_worker.store.resources import (
    ResourceChanges,
    ResourceKind,
    ResourceLease,
    Resources,
    ResourceState,
    ResourceUse,
    SessionUnknown,
)
from hermes_worker.store.tables import resources, runs, sessions

BROWSER = ResourceKind.BROWSER


def session(store: Store) -> str:
    run_id = store.submit().run_id
    with store.database.read() as connection:
        of_run = sa.select(sessions.c.session_id).join(runs, runs.c.session_pk == sessions.c.pk)
        return str(connection.execute(of_run.where(runs.c.run_id == run_id)).scalar_one())


def claimed(rows: Resources, host: str = "one") -> ResourceLease:
    lease = rows.claim(BROWSER, host=host, ttl_s=15, wants_within_s=60)
    assert lease is not None
    return lease


def live(store: Store) -> tuple[Resources, str, ResourceLease, ResourceUse]:
    """A resource with its host, and a call that uses it."""
    rows, session_id = Resources(store.database), session(store)
    wanted = rows.request_resource(session_id, BROWSER)
    lease = claimed(rows)
    assert rows.publish(lease, "unix:/run/b")
    use = rows.acquire_use(wanted.resource_id)
    assert use is not None
    return rows, session_id, lease, use


def lapse(store: Store) -> None:
    with store.database.write() as connection:
        connection.execute(sa.update(resources).values(expires_at=db_now() - 1))


def test_of_many_hosts_one_gets_what_is_wanted_once(store: Store) -> None:
    rows, session_id = Resources(store.database), session(store)
    with pytest.raises(SessionUnknown):
        rows.request_resource("run_none", BROWSER)
    first, again = rows.request_resource(session_id, BROWSER), rows.request_resource(session_id, BROWSER)
    assert (first.resource_id, first.state) == (again.resource_id, ResourceState.WANTED)
    assert rows.request_resource(session_id, ResourceKind.MCP_STDIO, "files").resource_id != first.resource_id

    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda n: rows.claim(BROWSER, host=f"h{n}", ttl_s=15, wants_within_s=60), range(4)))

    [lease] = [each for each in got if each is not None]
    found = rows.request_resource(session_id, BROWSER)
    assert (found.state, found.host, found.endpoint) == (ResourceState.STARTING, lease.resource.host, None)
    assert rows.acquire_use(found.resource_id) is None, "it cannot be used yet"


def test_a_later_call_takes_the_use_over_and_the_earlier_one_writes_nothing(store: Store) -> None:
    rows, session_id, lease, frozen = live(store)
    assert rows.update_state(frozen, ResourceChanges(url="https://a.example/", storage='{"cookies": []}'))
    later = rows.acquire_use(frozen.resource.resource_id)
    assert later is not None
    assert later.resource.url == "https://a.example/"
    assert later.resource.endpoint == "unix:/run/b"

    assert not rows.update_state(frozen, ResourceChanges(url="https://elsewhere.example/"))
    assert rows.update_state(later, ResourceChanges(snapshot="- button", snapshot_hash="h"))

    assert (rows.may_use(lease, frozen.token), rows.may_use(lease, later.token)) == (False, True)
    found = rows.find(session_id, BROWSER)
    assert found is not None
    assert (found.url, found.snapshot_hash) == ("https://a.example/", "h")


def test_a_lease_that_lapsed_while_the_database_was_away_holds_again_when_its_host_renews_it(store: Store) -> None:
    rows, session_id, lease, use = live(store)
    lapse(store)
    assert not rows.may_use(lease, use.token)
    assert rows.acquire_use(use.resource.resource_id) is None
    found = rows.request_resource(session_id, BROWSER, spares_lapsed=True)
    assert (found.state, found.resource_id) == (ResourceState.LIVE, use.resource.resource_id)

    assert set(rows.renew([lease], ttl_s=15)) == {use.resource.resource_id}
    assert rows.may_use(lease, use.token), "nothing was lost"
    assert rows.acquire_use(use.resource.resource_id) is not None

    lapse(store)
    assert rows.request_resource(session_id, BROWSER).state is ResourceState.WANTED
    assert rows.renew([lease], ttl_s=15) == {}, "somebody said that it is lost"


def test_a_host_that_lost_its_lease_can_do_nothing_and_what_it_had_says_so(store: Store) -> None:
    rows, session_id, lease, use = live(store)
    rows.update_state(use, ResourceChanges(url="https://a.example/", storage="cookies"))
    assert set(rows.renew([lease], ttl_s=15)) == {use.resource.resource_id}
    lapse(store)

    assert not rows.publish(lease, "unix:/run/c")
    assert not rows.release(lease, "idle")
    assert not rows.may_use(lease, use.token)
    assert rows.acquire_use(use.resource.resource_id) is None
    assert (rows.end_lapsed(), rows.end_lapsed()) == (1, 0)
    assert rows.renew([lease], ttl_s=15) == {}

    found = rows.find(session_id, BROWSER)
    assert found is not None
    assert (found.state, found.reason, found.url) == (ResourceState.ENDED, "its host was lost", "https://a.example/")
    again = rows.request_resource(session_id, BROWSER)
    assert (again.state, again.storage) == (ResourceState.WANTED, "cookies")
    assert claimed(rows, "two").token != lease.token


def test_what_is_used_is_not_released_as_idle_and_what_nobody_waits_for_is_not_begun(store: Store) -> None:
    rows, session_id, lease, use = live(store)
    assert not rows.release(lease, "idle", idle_s=600)
    assert rows.release(lease, "idle", idle_s=0)
    assert not rows.update_state(use, ResourceChanges(url="https://late.example/"))
    assert rows.request_resource(session_id, BROWSER).state is ResourceState.WANTED
    assert rows.claim(BROWSER, host="one", ttl_s=15, wants_within_s=-1) is None
    assert rows.delete_unused(BROWSER, older_than_s=60) == 0
    assert rows.delete_unused(BROWSER, older_than_s=-1) == 1
    assert rows.find(session_id, BROWSER) is None


def test_a_resource_that_was_dropped_is_taken_from_its_host(store: Store) -> None:
    rows, session_id, lease, use = live(store)
    assert [each.resource_id for each in rows.list_hosted(BROWSER)] == [use.resource.resource_id]
    assert rows.delete_resource(session_id, BROWSER)
    assert rows.renew([lease], ttl_s=15) == {}
    assert not rows.delete_resource(session_id, BROWSER)
    assert rows.renew([], ttl_s=15) == {}
