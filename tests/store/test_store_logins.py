"""Logins that workers share, over a real token server that revokes everything when a spent token comes again."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.patience import PATIENCE_S
from support.store import Store
from support.token_server import TokenServer

from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.errors import FailureKind, ModelCallError, UnavailableError
from hermes_worker.core.logins import Grant, Login, LoginState
from hermes_worker.models import logins
from hermes_worker.models.logins import LoginTokens, exchange_over
from hermes_worker.store import tables
from hermes_worker.store.access.logins import ExchangeOutcome, Logins

TESTS = Path(__file__).parent.parent


@pytest.fixture
def server() -> Iterator[TokenServer]:
    with TokenServer() as running:
        yield running


def login_at(server: TokenServer) -> Login:
    return Login(token_url=server.url, refresh_token=TokenServer.SEED, client_id="me", client_secret="cs-0123456789")


def worker(store: Store) -> LoginTokens:
    """What one process has: nothing in common with others but the database."""
    return LoginTokens(Logins(store.database), exchange_over())


def let_pass(store: Store, seconds: float) -> None:
    columns = (tables.logins.c.expires_at, tables.logins.c.renew_at, tables.logins.c.claimed_until)
    with store.database.write() as connection:
        connection.execute(sa.update(tables.logins).values({column.name: column - seconds for column in columns}))


def fails(grants: LoginTokens, login: Login, abort: AbortSignal | None = None) -> ModelCallError:
    with pytest.raises(ModelCallError) as raised:
        grants.get_token(login, abort or AbortSignal())
    return raised.value


def test_a_token_is_fetched_once_and_used_by_all(store: Store, server: TokenServer) -> None:
    login = login_at(server)
    granted = [worker(store).get_token(login, AbortSignal()) for _ in range(3)]

    assert set(granted) == {Grant(access_token=server.access_token, version=1)}
    assert server.exchanges == 1
    form = server.requests[0].body.decode()
    assert form.startswith(f"grant_type=refresh_token&refresh_token={TokenServer.SEED}&client_id=me&client_secret=")


def test_of_many_workers_that_are_refused_at_once_one_renews(store: Store, server: TokenServer) -> None:
    login = login_at(server)
    workers = [worker(store) for _ in range(8)]
    first = [grants.get_token(login, AbortSignal()) for grants in workers]

    for generation in range(1, 4):
        with ThreadPoolExecutor(8) as pool:
            now = generation
            renewed = list(pool.map(lambda grants, v=now: grants.renew_token(login, v, AbortSignal()), workers))
        assert {grant.version for grant in renewed} == {generation + 1}

    assert {grant.version for grant in first} == {1}
    assert server.exchanges == 4
    assert not server.is_burnt


def test_a_token_that_ends_is_renewed_once_and_before_its_end(store: Store, server: TokenServer) -> None:
    login = login_at(server)
    worker(store).get_token(login, AbortSignal())
    let_pass(store, 3590)

    with ThreadPoolExecutor(6) as pool:
        versions = list(pool.map(lambda _: worker(store).get_token(login, AbortSignal()).version, range(6)))

    assert server.exchanges == 2
    assert set(versions) <= {1, 2}, "the old one is good for ten seconds more"
    assert not server.is_burnt


def _process(store: Store, server: TokenServer, fault: str = "") -> subprocess.Popen[str]:
    url = store.database.url.render_as_string(hide_password=False)
    code = f"import sys; sys.path.insert(0, {str(TESTS)!r}); from support.login_worker import main; main(*sys.argv[1:])"
    return subprocess.Popen(
        [sys.executable, "-c", code, url, server.url, fault],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _told(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_processes_that_start_together_spend_the_refresh_token_once(postgres_store: Store, server: TokenServer) -> None:
    processes = [_process(postgres_store, server) for _ in range(3)]
    assert [_told(process) for process in processes] == ["ready"] * 3
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()

    assert [_told(process) for process in processes] == [f"{server.access_token} 1"] * 3
    assert [process.wait(PATIENCE_S) for process in processes] == [0, 0, 0]
    assert (server.exchanges, server.is_burnt) == (1, False)


def test_after_a_crash_between_the_exchange_and_its_outcome_nobody_shows_the_token_again(
    postgres_store: Store, server: TokenServer
) -> None:
    with _process(postgres_store, server, "login.after_exchange=kill") as process:
        assert _told(process) == "ready"
        process.communicate("go\n", timeout=30)
    assert (process.returncode, server.exchanges) == (-9, 1)
    login = Login(token_url=server.url, refresh_token=TokenServer.SEED)
    let_pass(postgres_store, logins.CLAIM_S + 1)

    failed = fails(worker(postgres_store), login)

    assert failed.kind is FailureKind.AUTH
    assert "nobody knows whether the refresh token was used up" in failed.message
    assert "HERMES_REFRESH_TOKENS" in failed.message
    assert len(server.requests) == 1
    assert fails(worker(postgres_store), login).message == failed.message
    # Whoever signs in again has another login, and is not held up by the dead one.
    server.current = "refresh-after-signing-in-again"
    again = Login(token_url=server.url, refresh_token=server.current)
    assert worker(postgres_store).get_token(again, AbortSignal()).version == 1


def test_an_outcome_that_comes_late_counts_all_the_same(sqlite_store: Store, server: TokenServer) -> None:
    """A worker was frozen for longer than its claim, and the login was declared dead meanwhile."""
    login = login_at(server)
    server.gate = threading.Event()
    frozen = threading.Thread(target=lambda: worker(sqlite_store).get_token(login, AbortSignal()))
    frozen.start()
    while not server.exchanges:
        time.sleep(0.005)
    let_pass(sqlite_store, logins.CLAIM_S + 1)
    assert fails(worker(sqlite_store), login).kind is FailureKind.AUTH
    server.gate.set()
    frozen.join()

    assert worker(sqlite_store).get_token(login, AbortSignal()).version == 1
    assert (server.exchanges, server.is_burnt) == (1, False)


def test_while_another_worker_renews_a_call_waits_a_while_and_can_be_stopped(
    sqlite_store: Store, server: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "PATIENCE_S", 0.2)
    login = login_at(server)
    assert Logins(sqlite_store.database).claim(login.name, LoginState(), "somebody", ttl_s=100)

    assert fails(worker(sqlite_store), login).kind is FailureKind.OVERLOADED
    stopped = AbortSignal()
    stopped.set("stop")
    assert fails(worker(sqlite_store), login, stopped).kind is FailureKind.INTERRUPTED
    assert server.requests == []


def test_a_call_that_is_stopped_during_the_exchange_ends_at_once_and_the_exchange_counts(
    sqlite_store: Store, server: TokenServer
) -> None:
    login = login_at(server)
    server.gate = threading.Event()
    abort = AbortSignal()
    failures: list[ModelCallError] = []
    call = threading.Thread(target=lambda: failures.append(fails(worker(sqlite_store), login, abort)))
    call.start()
    while not server.exchanges:
        time.sleep(0.005)
    abort.set("stop")
    call.join()
    assert [failure.kind for failure in failures] == [FailureKind.INTERRUPTED]

    server.gate.set()

    assert worker(sqlite_store).get_token(login, AbortSignal()).version == 1
    assert server.exchanges == 1


def test_a_refusal_is_known_to_all_and_says_what_to_do(store: Store, server: TokenServer) -> None:
    login = login_at(server)
    server.refusals = [(400, {"error": "invalid_grant", "error_description": f"{TokenServer.SEED} was revoked"})]

    failed = fails(worker(store), login)

    assert failed.kind is FailureKind.AUTH
    assert "invalid_grant" in failed.message and "HERMES_REFRESH_TOKENS" in failed.message
    assert TokenServer.SEED not in failed.message
    assert fails(worker(store), login).message == failed.message
    assert len(server.requests) == 1


def test_a_server_that_is_busy_is_asked_again_later(store: Store, server: TokenServer) -> None:
    login = login_at(server)
    server.refusals = [(503, {}), (429, {})]
    assert [fails(worker(store), login).kind for _ in range(2)] == [FailureKind.OVERLOADED] * 2
    assert worker(store).get_token(login, AbortSignal()).version == 1


def test_a_server_that_cannot_be_reached_spends_nothing(sqlite_store: Store) -> None:
    login = Login(token_url="http://127.0.0.1:9/token", refresh_token=TokenServer.SEED)
    for _ in range(2):
        assert fails(worker(sqlite_store), login).kind is FailureKind.OVERLOADED
    assert Logins(sqlite_store.database).find(login.name).claim is None


def test_an_answer_that_is_lost_ends_a_login_whose_tokens_are_single_use(
    sqlite_store: Store, server: TokenServer
) -> None:
    login = login_at(server)
    worker(sqlite_store).get_token(login, AbortSignal())
    server.drops = 1
    with pytest.raises(ModelCallError, match="nobody knows"):
        worker(sqlite_store).renew_token(login, 1, AbortSignal())
    assert not server.is_burnt


def test_an_answer_that_is_lost_is_asked_for_again_when_tokens_stay_good(sqlite_store: Store) -> None:
    with TokenServer(rotates=False) as server:
        login = login_at(server)
        worker(sqlite_store).get_token(login, AbortSignal())
        server.drops = 1
        with pytest.raises(ModelCallError) as raised:
            worker(sqlite_store).renew_token(login, 1, AbortSignal())
        assert raised.value.kind is FailureKind.OVERLOADED
        assert worker(sqlite_store).renew_token(login, 1, AbortSignal()).version == 2
        # So is an exchange whose worker vanished.
        assert Logins(sqlite_store.database).claim(
            login.name, Logins(sqlite_store.database).find(login.name), "gone", ttl_s=-1
        )
        assert worker(sqlite_store).renew_token(login, 2, AbortSignal()).version == 3


def test_a_token_that_is_still_good_is_used_while_its_server_is_away(sqlite_store: Store, server: TokenServer) -> None:
    login = login_at(server)
    worker(sqlite_store).get_token(login, AbortSignal())
    let_pass(sqlite_store, 3590)
    server.refusals = [(500, {})]
    assert worker(sqlite_store).get_token(login, AbortSignal()).version == 1


def test_the_outcome_is_kept_for_a_database_that_is_away(sqlite_store: Store, server: TokenServer) -> None:
    class Away(Logins):
        failures = 2

        def commit(self, name: str, claim: str, outcome: ExchangeOutcome) -> bool:
            if self.failures:
                self.failures -= 1
                raise UnavailableError("the database is away")
            return super().commit(name, claim, outcome)

    login = login_at(server)
    grants = LoginTokens(Away(sqlite_store.database), exchange_over())
    assert grants.get_token(login, AbortSignal()).version == 1
    assert worker(sqlite_store).get_token(login, AbortSignal()).version == 1


def test_the_database_holds_no_token_in_clear(store: Store, server: TokenServer) -> None:
    login = login_at(server)
    worker(store).get_token(login, AbortSignal())
    with store.database.read() as connection:
        (row,) = connection.execute(sa.select(tables.logins)).all()
    stored = repr(tuple(row))
    for secret in (TokenServer.SEED, server.current, server.access_token, "cs-0123456789"):
        assert secret not in stored
    # And what is there is worth nothing to who does not have the token of the configuration.
    other = Login(token_url=server.url, refresh_token="refresh-other-0123456789")
    with store.database.write() as connection:
        connection.execute(sa.update(tables.logins).values(name=other.name))
    assert "cannot be read" in fails(worker(store), other).message
