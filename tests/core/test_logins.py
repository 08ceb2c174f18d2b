"""What is to be done about a login, and what a token server's answer means."""

from __future__ import annotations

import json

import pytest

from hermes_worker.core.logins import (
    ExchangeDeferred,
    ExchangeUnclear,
    Login,
    LoginRefused,
    LoginState,
    LoginUsability,
    TokensGranted,
    compute_fresh_s,
    decide_usability,
    parse_answer,
)


@pytest.mark.parametrize(
    ("state", "refused", "expected"),
    [
        (LoginState(), 0, LoginUsability.DUE),
        (LoginState(claim="c"), 0, LoginUsability.BEING_RENEWED),
        (LoginState(claim="c", has_lapsed=True), 0, LoginUsability.ABANDONED),
        (LoginState(dead_reason="x", claim="c"), 0, LoginUsability.DEAD),
        (LoginState(version=1, sealed="s"), 0, LoginUsability.USABLE),
        (LoginState(version=1, sealed="s"), 1, LoginUsability.DUE),
        (LoginState(version=2, sealed="s"), 1, LoginUsability.USABLE),
        (LoginState(version=1, sealed="s", left_s=900, fresh_s=780), 0, LoginUsability.USABLE),
        (LoginState(version=1, sealed="s", left_s=100, fresh_s=-20), 0, LoginUsability.DUE),
        (LoginState(version=1, sealed="s", left_s=-1, fresh_s=-121), 0, LoginUsability.DUE),
        # A token that is still good is used while another worker renews it, and to its end when nobody can.
        (LoginState(version=1, sealed="s", left_s=100, fresh_s=-20, claim="c"), 0, LoginUsability.USABLE),
        (
            LoginState(version=1, sealed="s", left_s=100, fresh_s=-20, claim="c", has_lapsed=True),
            0,
            LoginUsability.USABLE,
        ),
        (LoginState(version=1, sealed="s", left_s=100, fresh_s=-20, dead_reason="x"), 0, LoginUsability.USABLE),
        (LoginState(version=1, sealed="s", left_s=-1, fresh_s=-121, dead_reason="x"), 0, LoginUsability.DEAD),
        (LoginState(version=1, sealed="s", left_s=900, fresh_s=780, dead_reason="x"), 1, LoginUsability.DEAD),
        (LoginState(version=1, sealed="s", left_s=-1, fresh_s=-121, claim="c"), 0, LoginUsability.BEING_RENEWED),
    ],
)
def test_the_state_of_a_login_says_what_to_do(state: LoginState, refused: int, expected: LoginUsability) -> None:
    assert decide_usability(state, refused=refused) is expected


@pytest.mark.parametrize(
    ("status", "document", "expected"),
    [
        (200, {"access_token": "a", "refresh_token": "r", "expires_in": 3600}, TokensGranted),
        (200, {"access_token": "a"}, TokensGranted),
        (200, {"access_token": "a b"}, ExchangeUnclear),
        (200, {"access_token": "a\r\nX: y"}, ExchangeUnclear),
        (200, {"access_token": ""}, ExchangeUnclear),
        (200, ["a"], ExchangeUnclear),
        (302, {}, LoginRefused),
        (400, {"error": "invalid_grant"}, LoginRefused),
        (401, {"error": "invalid_client"}, LoginRefused),
        (404, "not found", LoginRefused),
        (408, {}, ExchangeDeferred),
        (429, {"error": "slow_down"}, ExchangeDeferred),
        (500, {}, ExchangeDeferred),
        (503, "<html>", ExchangeDeferred),
    ],
)
def test_the_answer_of_a_token_server_says_whether_the_token_is_spent(
    status: int, document: object, expected: type
) -> None:
    assert type(parse_answer(status, json.dumps(document).encode())) is expected


@pytest.mark.parametrize(
    ("said", "lifetime_s"),
    [(3600, 3600.0), ("3600", 3600.0), (1e99, 366 * 86_400.0), (0, None), (-1, None), (True, None), ("nan", None)],
)
def test_the_lifetime_is_a_sane_number_or_nothing(said: object, lifetime_s: float | None) -> None:
    answer = parse_answer(200, json.dumps({"access_token": "a", "expires_in": said}).encode())
    assert isinstance(answer, TokensGranted)
    assert answer.lifetime_s == lifetime_s


def test_a_body_that_is_no_document_is_no_grant() -> None:
    assert isinstance(parse_answer(200, b"\xff" + b"[" * 100_000), ExchangeUnclear)


def test_a_token_is_renewed_before_its_end_and_a_short_lived_one_half_way() -> None:
    assert (compute_fresh_s(3600), compute_fresh_s(100), compute_fresh_s(None)) == (3480, 50, None)


def test_a_login_is_known_by_everything_it_is_made_of_and_shows_nothing_of_it() -> None:
    login = Login(token_url="https://t.test/token", refresh_token="hunter2hunter2", client_secret="tops3cret")
    others = [
        Login(token_url="https://u.test/token", refresh_token="hunter2hunter2", client_secret="tops3cret"),
        Login(token_url="https://t.test/token", refresh_token="hunter3hunter3", client_secret="tops3cret"),
        Login(token_url="https://t.test/token", refresh_token="hunter2hunter2", client_secret="other"),
        Login(token_url="https://t.test/token", refresh_token="hunter2hunter2", client_id="me"),
    ]
    assert len({login.name, *(other.name for other in others)}) == 5
    assert "hunter2" not in repr(login) + login.name
    assert "tops3cret" not in repr(login)
