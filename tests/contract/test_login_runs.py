"""Runs whose credentials are renewed: from a refused token to an answer, over every wire and a real token server."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from dialects import API_MODE, HELLO, RULES
from strict_server import StrictServer, status
from support.dumps import texts_of
from support.store import Store, check
from support.token_server import TokenServer
from support.turns import KEY, Turns
from support.valkey import for_administrator

from hermes_worker.core.logins import Login
from hermes_worker.core.run import RunStatus
from hermes_worker.models.chain import ModelChoice
from hermes_worker.models.credentials import CredentialPool
from hermes_worker.models.governor import Governor
from hermes_worker.models.logins import LoginTokens, exchange_over
from hermes_worker.observe import configure_logging, log
from hermes_worker.settings import LogSettings
from hermes_worker.store.access.logins import Logins

pytestmark = pytest.mark.usefixtures("no_time_for_short_waits")


@pytest.fixture
def tokens() -> Iterator[TokenServer]:
    with TokenServer() as running:
        yield running


def turns_over(
    store: Store,
    server: StrictServer,
    *logins: Login,
    wire: str = "chat",
    api_key: str | None = None,
    fallbacks: tuple[ModelChoice, ...] = (),
    client: redis.Redis | None = None,
) -> Turns:
    choice = ModelChoice(
        base_url=server.base_url, api_mode=API_MODE[wire], model="strict", logins=logins, api_key=api_key
    )
    return Turns.over(
        store,
        choice=choice,
        fallbacks=fallbacks,
        grants=LoginTokens(Logins(store.database), exchange_over()),
        pool=CredentialPool(client) if client else None,
        governor=Governor(client) if client else None,
    )


def login_at(tokens: TokenServer, refresh_token: str = TokenServer.SEED) -> Login:
    return Login(token_url=tokens.url, refresh_token=refresh_token)


def shown(server: StrictServer) -> list[str | None]:
    """What each request authorised itself with."""
    return [request.header("authorization") for request in server.requests]


@pytest.mark.parametrize("wire", RULES)
def test_a_refused_token_is_renewed_once_and_the_call_made_again(
    store: Store, server: StrictServer, tokens: TokenServer, wire: str
) -> None:
    server.faults(status(401, "the access token has expired"))
    turns = turns_over(store, server, login_at(tokens), wire=wire)
    run_id = turns.submit()
    turns.finish(run_id)
    check(store)

    assert store.views.load_run(run_id).output == HELLO.text
    assert shown(server) == [f"Bearer access-{number}-fedcba9876543210" for number in (1, 2)]
    assert (tokens.exchanges, tokens.is_burnt) == (2, False)


def test_a_token_that_is_refused_again_ends_the_run(store: Store, server: StrictServer, tokens: TokenServer) -> None:
    server.faults(*[status(401, "no")] * 9)
    turns = turns_over(store, server, login_at(tokens))
    run_id = turns.submit()
    turns.finish(run_id)

    view = store.views.load_run(run_id)
    assert (view.status, view.failure_kind) == (RunStatus.FAILED, "auth")
    assert (len(server.requests), tokens.exchanges) == (2, 2)


def test_a_login_that_is_refused_names_what_to_change(store: Store, server: StrictServer, tokens: TokenServer) -> None:
    tokens.refusals = [(400, {"error": "invalid_grant"})]
    turns = turns_over(store, server, login_at(tokens))
    for _ in range(2):
        run_id = turns.submit()
        turns.finish(run_id)
        assert "HERMES_REFRESH_TOKENS" in (store.views.load_run(run_id).error or "")
    assert (len(tokens.requests), server.requests) == (1, [])


def test_another_login_and_then_a_key_step_in(
    store: Store, server: StrictServer, tokens: TokenServer, broker_url: str
) -> None:
    client = redis.Redis.from_url(for_administrator(broker_url), decode_responses=True)
    tokens.refusals = [(400, {"error": "invalid_grant"})]
    first, second = login_at(tokens, "refresh-of-somebody-else"), login_at(tokens)
    server.faults(status(402, "insufficient credits"))

    turns = turns_over(store, server, first, second, api_key=KEY, client=client)
    run_id = turns.submit()
    turns.finish(run_id)

    assert store.views.load_run(run_id).output == HELLO.text
    assert shown(server) == ["Bearer access-1-fedcba9876543210", f"Bearer {KEY}"]


def test_a_provider_to_fall_back_on_steps_in_for_a_dead_login(
    store: Store, server: StrictServer, tokens: TokenServer
) -> None:
    tokens.refusals = [(400, {"error": "invalid_grant"})]
    with StrictServer() as other:
        fallback = ModelChoice(base_url=other.base_url, api_key=KEY, model="other")
        turns = turns_over(store, server, login_at(tokens), fallbacks=(fallback,))
        run_id = turns.submit()
        turns.finish(run_id)
        assert store.views.load_run(run_id).output == HELLO.text
        assert len(other.accepted) == 1


def test_a_token_server_that_is_away_for_a_moment_costs_a_moment(
    store: Store, server: StrictServer, tokens: TokenServer
) -> None:
    tokens.refusals = [(503, {}), (500, {})]
    turns = turns_over(store, server, login_at(tokens))
    run_id = turns.submit()
    turns.finish(run_id)
    assert store.views.load_run(run_id).output == HELLO.text
    assert tokens.exchanges == 1


def test_the_tokens_of_a_login_reach_nobody(
    store: Store,
    server: StrictServer,
    tokens: TokenServer,
    tmp_path: Path,
    broker_url: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = io.StringIO()
    for name in ("_level", "_emit"):
        monkeypatch.setattr(log, name, getattr(log, name))  # for the tests after this one
    configure_logging(LogSettings(), "worker", stream=lines)
    client = redis.Redis.from_url(for_administrator(broker_url), decode_responses=True)
    turns = turns_over(store, server, login_at(tokens), client=client)
    server.faults(status(401, "bad access-1-fedcba9876543210"), status(400, "no: access-2-fedcba9876543210"))
    failed = turns.submit(session_id="refused")
    turns.finish(failed)
    client.flushall()
    server.faults(status(401, "expired: access-2-fedcba9876543210"))
    tokens.refusals = [(400, {"error": "invalid_grant", "error_description": f"unknown {tokens.current}"})]
    dead = turns.submit(session_id="dead")
    turns.finish(dead)

    told = [store.views.load_run(run_id).error for run_id in (failed, dead)]
    assert all(told)
    told += [
        str([(e.name, dict(e.data)) for e in store.views.list_events_after(run_id, 0)]) for run_id in (failed, dead)
    ]
    broker = json.dumps([client.hgetall(key) for key in client.keys("*") if client.type(key) == "hash"])
    database = texts_of(tmp_path / "store.db")
    logs = capfd.readouterr()
    for place in (*told, broker, database, logs.out, logs.err, lines.getvalue()):
        for secret in (TokenServer.SEED, tokens.current, "access-1-fedc", "access-2-fedc"):
            assert secret not in str(place)
    assert "login.renewed" in lines.getvalue() and "login.died" in lines.getvalue()
