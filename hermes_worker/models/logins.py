"""Access tokens for logins: renewed by one worker, used by all.

Theory of operation. What a refresh token was exchanged for is a row that every worker reads. A worker that finds it
about to end, or was refused with it, claims the exchange in that row; of any number of workers one gets the claim, and
the others wait for what it writes. The claim is committed before the token server is asked, so a worker that dies in
between leaves a mark: it is then unknown whether the refresh token is spent, and sending it again could revoke
everything that came of it. Such a login is dead until a person signs in again. One whose server gives no new refresh
tokens is tried again.

The tokens are encrypted with a key made from the refresh token of the configuration, which only the token server ever
sees: a copy of the database holds nothing that can be used.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never
from urllib.parse import urlsplit

import httpx2

from hermes_worker.core.errors import FailureKind, ModelCallError, UnavailableError
from hermes_worker.core.logins import (
    Answer,
    ExchangeDeferred,
    ExchangeUnclear,
    Grant,
    Login,
    LoginRefused,
    LoginState,
    LoginUsability,
    TokensGranted,
    build_renewal,
    decide_usability,
    is_good,
    parse_answer,
)
from hermes_worker.core.recovery.classify import parse_retry_after
from hermes_worker.models.base import Abort
from hermes_worker.models.connections import CuttableTransport, Line, build_timeouts, use_line
from hermes_worker.models.errors import redact
from hermes_worker.observe import count, log
from hermes_worker.settings.sealing import build_fernet
from hermes_worker.store.access.logins import ExchangeOutcome, Logins
from hermes_worker.system import faults
from hermes_worker.system.faults import FaultPoint

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

EXCHANGE_S = 30.0
"""Longest time that an exchange may take altogether, in seconds."""
CLAIM_S = 4 * EXCHANGE_S
PATIENCE_S = 5.0
"""How many seconds a call waits for an exchange that another worker makes."""
COMMIT_PATIENCE_S = 60.0
"""How many seconds new tokens are kept in memory for a database that is away."""
_LOOK_EVERY_S = 0.1
_LOOKED_UP_EVERY_S = 300.0
"""How many seconds a process goes by what it has read of a login."""
_ANSWER_BYTES_MAX = 1_000_000
_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError, httpx2.UnsupportedProtocol)


Exchange = Callable[[Login, str], Answer]
"""Sends a refresh token to the login's token server. Never raises for what that or the network does."""


@dataclass(frozen=True, slots=True)
class _HeldToken:
    grant: Grant
    until: float
    """When to read the row again, by the monotonic clock."""


class LoginTokens:
    """The access tokens of this process. Thread-safe.

    Methods raise ``ModelCallError`` when there is no token to be had: ``auth`` when a person has to sign in again, a
    passing kind when the token server is away, ``interrupted`` when ``abort`` was set. They also raise
    ``UnavailableError``.
    """

    def __init__(self, store: Logins, exchange: Exchange) -> None:
        self._store = store
        self._exchange = exchange
        self._lock = threading.Lock()
        self._held: dict[str, _HeldToken] = {}
        self._refused: dict[str, int] = {}

    def get_token(self, login: Login, abort: Abort) -> Grant:
        """Return a token to use now, renewing it if its time is over."""
        held = self._held.get(login.name)
        if held is not None and held.until > time.monotonic():
            return held.grant
        return self._get_current_token(login, abort)

    def renew_token(self, login: Login, refused: int, abort: Abort) -> Grant:
        """Return a token newer than version ``refused``, which its provider did not take. A caller whose version was
        renewed meanwhile gets the newer one, and nothing is exchanged.
        """
        with self._lock:
            self._refused[login.name] = max(refused, self._refused.get(login.name, 0))
            self._held.pop(login.name, None)
        return self._get_current_token(login, abort)

    def _get_current_token(self, login: Login, abort: Abort) -> Grant:
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            state = self._store.find(login.name)
            match decide_usability(state, refused=self._refused.get(login.name, 0)):
                case LoginUsability.USABLE:
                    return self._open_token(login, state)
                case LoginUsability.DEAD:
                    raise ModelCallError(FailureKind.AUTH, state.dead_reason or login.sign_in)
                case LoginUsability.DUE:
                    failure = self._try_to_renew(login, state, abort)
                    if failure is not None and is_good(state, refused=self._refused.get(login.name, 0)):
                        return self._open_token(login, state)
                    if failure is not None:
                        raise failure
                case LoginUsability.ABANDONED if state.claim is not None and _is_single_use(login, state):
                    # Used again, the refresh token would be used twice.
                    self._store.revoke(
                        login.name, state.claim, _format_lost(login, "the worker that exchanged it vanished")
                    )
                    log.error("login.died", login=login.name, reason="a worker vanished during the exchange")
                case LoginUsability.ABANDONED:
                    if (failure := self._try_to_renew(login, state, abort)) is not None:
                        raise failure
                case LoginUsability.BEING_RENEWED:
                    if time.monotonic() > give_up_at:
                        raise ModelCallError(FailureKind.OVERLOADED, "another worker is renewing the access token")
                    _pause(abort)
                case unexpected:
                    assert_never(unexpected)

    def _open_token(self, login: Login, state: LoginState) -> Grant:
        tokens = _open_tokens(login, state)
        grant = Grant(access_token=tokens["access"], version=state.version)
        # At the end of its time it is kept for a moment all the same: another worker is renewing it, or none can.
        fresh_s = _LOOKED_UP_EVERY_S if state.fresh_s is None else max(1.0, min(state.fresh_s, _LOOKED_UP_EVERY_S))
        with self._lock:
            if grant.version > self._refused.get(login.name, 0):
                self._held[login.name] = _HeldToken(grant, time.monotonic() + fresh_s)
        return grant

    def _try_to_renew(self, login: Login, state: LoginState, abort: Abort) -> ModelCallError | None:
        """Make the exchange unless another worker does; return the failure that kept it from being made, or ``None``.
        An exchange that has begun is finished, whatever becomes of the call.
        """
        claim = uuid.uuid4().hex
        if not self._store.claim(login.name, state, claim, ttl_s=CLAIM_S):
            return None
        failures: list[ModelCallError] = []
        work = threading.Thread(
            target=self._renew_claimed, args=(login, state, claim, failures), name="renew-login", daemon=False
        )
        work.start()
        while work.is_alive():
            work.join(_LOOK_EVERY_S)
            if abort.is_set():
                raise ModelCallError(FailureKind.INTERRUPTED, "The model call was aborted.")
        return failures[0] if failures else None

    def _renew_claimed(self, login: Login, state: LoginState, claim: str, failures: list[ModelCallError]) -> None:
        faults.pass_point(FaultPoint.LOGIN_AFTER_CLAIM)
        refresh_token = _refresh_token_of(login, state)
        answer = self._exchange(login, refresh_token)
        faults.pass_point(FaultPoint.LOGIN_AFTER_EXCHANGE)
        write = _OutcomeWriter(self._store, login.name, claim)
        secrets = (refresh_token, login.refresh_token, login.client_secret)
        match answer:
            case TokensGranted():
                if write.commit(_build_outcome(login, answer, refresh_token)):
                    count("login.renewed")
                    log.info("login.renewed", login=login.name, lifetime_s=answer.lifetime_s)
            case LoginRefused():
                said = redact(answer.said, secrets)
                reason = f"{_read_host(login)} refused to renew the access token ({said}); {login.sign_in}"
                write.revoke(reason)
                log.error("login.died", login=login.name, reason="the token server refused it")
            case ExchangeUnclear() if _is_single_use(login, state):
                write.revoke(_format_lost(login, redact(answer.said, secrets)))
                log.error("login.died", login=login.name, reason="the outcome of the exchange is unknown")
            case ExchangeDeferred() | ExchangeUnclear():
                write.release()
                log.warning("login.deferred", login=login.name)
                failures.append(_passing_error(login, answer, secrets))
            case _:
                assert_never(answer)


class _OutcomeWriter:
    """Writes the outcome of an exchange, with patience for a database that is away: it exists nowhere else."""

    def __init__(self, store: Logins, name: str, claim: str) -> None:
        self._store = store
        self._name = name
        self._claim = claim

    def commit(self, outcome: ExchangeOutcome) -> bool:
        return self._write_patiently(lambda: self._store.commit(self._name, self._claim, outcome))

    def release(self) -> bool:
        return self._write_patiently(lambda: self._store.release(self._name, self._claim))

    def revoke(self, reason: str) -> bool:
        return self._write_patiently(lambda: self._store.revoke(self._name, self._claim, reason))

    def _write_patiently(self, write: Callable[[], bool]) -> bool:
        give_up_at = time.monotonic() + COMMIT_PATIENCE_S
        while True:
            try:
                return write()
            except UnavailableError:
                if time.monotonic() > give_up_at:
                    log.error("login.died", login=self._name, reason="the database was away for too long")
                    return False
                time.sleep(_LOOK_EVERY_S)


def _pause(abort: Abort) -> None:
    woken = threading.Event()
    abort.on_abort(woken.set)
    if woken.wait(_LOOK_EVERY_S):
        raise ModelCallError(FailureKind.INTERRUPTED, "The model call was aborted.")


def _read_host(login: Login) -> str:
    return urlsplit(login.token_url).netloc


def _format_lost(login: Login, why: str) -> str:
    return (
        f"nobody knows whether the refresh token was used up: {why}, and {_read_host(login)} may revoke the login when "
        f"it is sent once more; {login.sign_in}"
    )


def _passing_error(
    login: Login, answer: ExchangeDeferred | ExchangeUnclear, secrets: tuple[str, ...]
) -> ModelCallError:
    message = f"The access token could not be renewed at {_read_host(login)}: {redact(answer.said, secrets)}"
    retry_after_s = answer.retry_after_s if isinstance(answer, ExchangeDeferred) else None
    return ModelCallError(FailureKind.OVERLOADED, message, retry_after_s=retry_after_s)


# --- what is stored ---


def _build_outcome(login: Login, granted: TokensGranted, spent: str) -> ExchangeOutcome:
    tokens = {"access": granted.access_token, "refresh": granted.refresh_token or spent}
    sealed = _build_cipher(login).encrypt(json.dumps(tokens).encode()).decode()
    return ExchangeOutcome(sealed=sealed, lifetime_s=granted.lifetime_s)


def _open_tokens(login: Login, state: LoginState) -> dict[str, str]:
    from cryptography.fernet import InvalidToken

    try:
        tokens: dict[str, str] = json.loads(_build_cipher(login).decrypt((state.sealed or "").encode()))
    except InvalidToken:
        raise ModelCallError(FailureKind.AUTH, f"the stored access token cannot be read; {login.sign_in}") from None
    return tokens


def _refresh_token_of(login: Login, state: LoginState) -> str:
    return _open_tokens(login, state)["refresh"] if state.sealed is not None else login.refresh_token


def _is_single_use(login: Login, state: LoginState) -> bool:
    """Whether an exchange spends the refresh token: assumed until an exchange has left it unchanged."""
    return state.sealed is None or _refresh_token_of(login, state) != login.refresh_token


def _build_cipher(login: Login) -> Fernet:
    return build_fernet(login.refresh_token, b"hermes-worker login")


# --- the exchange ---


def exchange_over(proxy_url: str | None = None) -> Exchange:
    """Build an ``Exchange`` over the network (RFC 6749 §6), through ``proxy_url`` if given. Redirects are not
    followed.
    """

    def exchange(login: Login, refresh_token: str) -> Answer:
        line = Line()
        too_late = threading.Timer(EXCHANGE_S, line.cut)
        too_late.daemon = True
        too_late.start()
        try:
            return _ask_token_server(login, refresh_token, line, proxy_url)
        except _NEVER_SENT:
            return ExchangeDeferred(said="no connection")
        except httpx2.HTTPError as error:
            return ExchangeUnclear(said=f"no answer ({type(error).__name__})")
        finally:
            too_late.cancel()

    return exchange


def _ask_token_server(login: Login, refresh_token: str, line: Line, proxy_url: str | None) -> Answer:
    headers, body = build_renewal(login, refresh_token)
    with (
        use_line(line),
        httpx2.Client(
            transport=CuttableTransport(proxy_url=proxy_url),
            trust_env=False,
            follow_redirects=False,
            timeout=build_timeouts(connect_s=EXCHANGE_S, read_s=EXCHANGE_S),
        ) as client,
        contextlib.closing(
            client.send(
                client.build_request("POST", login.token_url, content=body, headers=headers),
                stream=True,
            )
        ) as response,
    ):
        said = b""
        for piece in response.iter_bytes():
            said += piece
            if len(said) > _ANSWER_BYTES_MAX:
                return ExchangeUnclear(said="the answer is too long")
        retry_after_s = parse_retry_after(response.headers.get("retry-after"), now_s=time.time())
        return parse_answer(response.status_code, said, retry_after_s)
