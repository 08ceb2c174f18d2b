"""Accounts, events and people of the gateway, on both databases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import sqlalchemy as sa
from support.store import Store, new_run

from hermes_worker.core.chat_commands import ChatRole
from hermes_worker.core.errors import LeaseLost
from hermes_worker.core.gateway import CODE_EVERY_S, CODE_LIVES_S, LOCKED_S
from hermes_worker.store.gateway import AccountLease, EventKnown, GatewayRows, InboundEvent, PairingRefused
from hermes_worker.store.tables import channels, chat_people, inbound, runs

ACCOUNT = "telegram:default"


def hold(rows: GatewayRows, account: str = ACCOUNT, *, token_hash: str = "t") -> AccountLease | None:
    return rows.acquire_lease(account, mode="poll", token_hash=token_hash, holder="gw", lease_s=30)


def held(rows: GatewayRows) -> AccountLease:
    found = hold(rows)
    assert found is not None
    return found


def pass_time(store: Store, seconds: float) -> None:
    """By the database's clock: what was written is so much older."""
    with store.database.write() as connection:
        for table, names in ((channels, ("lease_until", "locked_until")), (chat_people, ("asked_at", "expires_at"))):
            connection.execute(sa.update(table).values({name: table.c[name] - seconds for name in names}))


def test_of_many_gateways_one_gets_an_account(store: Store) -> None:
    rows = GatewayRows(store.database)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: hold(rows), range(16)))
    assert len([one for one in found if one is not None]) == 1


def test_one_token_is_listened_to_under_one_name(store: Store) -> None:
    rows = GatewayRows(store.database)
    held(rows)
    assert hold(rows, "telegram:other") is None
    assert hold(rows, "telegram:other", token_hash="another") is not None


def test_who_lost_the_lease_writes_nothing(store: Store) -> None:
    rows = GatewayRows(store.database)
    first = held(rows)
    rows.advance_cursor(first, "7")
    pass_time(store, 31)
    second = held(rows)
    assert second.cursor == "7"
    for write in (
        lambda: rows.renew(first, 30),
        lambda: rows.advance_cursor(first, "9"),
        lambda: take(store, rows, InboundEvent(account=ACCOUNT, key="1", hold=first, cursor="9")),
    ):
        with pytest.raises(LeaseLost):
            write()
    rows.release(first)
    assert hold(rows) is None
    rows.release(second)
    assert held(rows).cursor == "7"


def take(store: Store, rows: GatewayRows, event: InboundEvent) -> None:
    with store.database.write() as connection:
        rows.insert_event(connection, event, "run")


def test_an_event_is_taken_once_with_its_cursor(store: Store) -> None:
    rows = GatewayRows(store.database)
    mine = held(rows)
    take(store, rows, InboundEvent(account=ACCOUNT, key="1", hold=mine, cursor="2"))
    with pytest.raises(EventKnown):
        take(store, rows, InboundEvent(account=ACCOUNT, key="1", hold=mine, cursor="5"))
    take(store, rows, InboundEvent(account="telegram:other", key="1"))
    rows.release(mine)
    assert held(rows).cursor == "2"


def test_a_run_and_its_event_are_written_together_or_not_at_all(store: Store) -> None:
    rows = GatewayRows(store.database)

    def create(_: int) -> None:
        with suppress(EventKnown):
            store.runs.create(
                new_run(source="gateway", session_id="chat"),
                lambda connection, created: rows.insert_event(
                    connection, InboundEvent(account=ACCOUNT, key="1"), "run", created.run_id
                ),
            )

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(create, range(5)))
    with store.database.read() as connection:
        made = connection.execute(sa.select(runs.c.run_id)).scalars().all()
        assert connection.execute(sa.select(inbound.c.run_id)).scalars().all() == made
    assert len(made) == 1


def offer(store: Store, rows: GatewayRows, person: str) -> str | None:
    with store.database.write() as connection:
        return rows.create_code(connection, ACCOUNT, person)


def test_a_code_lets_somebody_in_once_and_is_not_stored(store: Store) -> None:
    rows = GatewayRows(store.database)
    held(rows)
    code = offer(store, rows, "42")
    assert code is not None
    with store.database.read() as connection:
        assert code not in str(connection.execute(sa.select(chat_people)).all())
    assert rows.find_role(ACCOUNT, "42") is None
    assert rows.pair(ACCOUNT, code, ChatRole.MEMBER) == "42"
    assert rows.find_role(ACCOUNT, "42") is ChatRole.MEMBER
    assert rows.find_role("telegram:other", "42") is None
    with pytest.raises(PairingRefused):
        rows.pair(ACCOUNT, code, ChatRole.OWNER)
    assert rows.revoke(ACCOUNT, "42")
    assert rows.find_role(ACCOUNT, "42") is None


def test_a_stranger_gets_one_code_in_ten_minutes_and_an_account_has_three_open(store: Store) -> None:
    rows = GatewayRows(store.database)
    held(rows)
    with ThreadPoolExecutor(6) as pool:
        codes = list(pool.map(lambda _: offer(store, rows, "42"), range(6)))
    assert len([code for code in codes if code]) == 1
    pass_time(store, CODE_EVERY_S + 1)
    assert offer(store, rows, "42") is not None
    assert [offer(store, rows, person) is not None for person in ("43", "44", "45")] == [True, True, False]


def test_a_code_is_good_for_an_hour(store: Store) -> None:
    rows = GatewayRows(store.database)
    held(rows)
    code = offer(store, rows, "42")
    assert code is not None
    pass_time(store, CODE_LIVES_S + 1)
    with pytest.raises(PairingRefused):
        rows.pair(ACCOUNT, code, ChatRole.OWNER)


def test_five_wrong_codes_lock_an_account_for_an_hour(store: Store) -> None:
    rows = GatewayRows(store.database)
    held(rows)
    code = offer(store, rows, "42")
    assert code is not None
    for _ in range(5):
        with pytest.raises(PairingRefused, match="no open request"):
            rows.pair(ACCOUNT, "WRONGONE", ChatRole.OWNER)
    with pytest.raises(PairingRefused, match="too many"):
        rows.pair(ACCOUNT, code, ChatRole.OWNER)
    assert offer(store, rows, "43") is None
    pass_time(store, LOCKED_S + 1)
    again = offer(store, rows, "42")
    assert again is not None
    assert rows.pair(ACCOUNT, again, ChatRole.OWNER) == "42"


def test_of_several_that_begin_a_chat_anew_by_itself_one_does(store: Store) -> None:
    rows = GatewayRows(store.database)

    def begins(after: int | None) -> bool:
        with store.database.write() as connection:
            return rows.start_new_conversation(connection, ACCOUNT, "chat", after)

    assert [begins(after) for after in (0, 0, 1, None, 1)] == [True, False, True, True, False]
    assert rows.load_chat(ACCOUNT, "chat").generation == 3


def test_a_chat_was_last_active_when_its_newest_run_ended(store: Store) -> None:
    rows = GatewayRows(store.database)
    assert rows.load_activity("gateway", "chat") is None
    run_ids = [store.submit(source="gateway", session_id="chat").run_id for _ in range(2)]
    working = rows.load_activity("gateway", "chat")
    assert working is not None
    assert (working.is_at_work, working.process_at) == (True, None)
    for run_id in run_ids:
        store.answer(run_id)
    store.change(runs, run_ids[0], finished_at=1.0)
    store.change(runs, run_ids[1], finished_at=2.0)
    ended = rows.load_activity("gateway", "chat")
    assert ended is not None
    assert (ended.is_at_work, ended.said_at) == (False, 2.0)
    assert ended.now > 2.0
