"""The role ``gateway``: polls platforms for events, each account under a lease, and never runs an agent.

One thread listens to each account: it polls (``poll``, ``fetch``), or keeps a connection open (``sockets``). It renews
the lease before each poll, and a poll ends before the lease does, so no other gateway polls at the same time; what a
poll brings is written only under the lease. A failure is retried without end, at intervals that grow up to a minute: a
conflict (409), a rejected token, a server that is away. Only an event on which our own code breaks is given up after
three tries (``taking``), so that the events behind it are handled.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.inbound.declaration import InboundMode
from hermes_worker.channels.inbound.receiving import Polled
from hermes_worker.channels.receivers import Receiver, list_gateway_accounts
from hermes_worker.core.chat_accounts import DEFAULT_ACCOUNT, format_account
from hermes_worker.core.errors import LeaseLost, UnavailableError
from hermes_worker.core.gateway import LOOK_AGAIN_S_MAX, compute_poll_wait_s, compute_standby_s
from hermes_worker.core.inbound import Inbound, InboundButton
from hermes_worker.gateway.inbound import InboundHandler
from hermes_worker.gateway.received import ReceivedEvent
from hermes_worker.gateway.sockets import SocketAccount, SocketListening, run_exchange
from hermes_worker.observe import count, log
from hermes_worker.settings import Settings
from hermes_worker.store.gateway import AccountLease, GatewayRows
from hermes_worker.wiring import Client

_TRY_S = 2.0
"""Seconds to wait after something broke."""
_ACKNOWLEDGE_S = 3.0
"""Seconds for telling a platform that a press was taken."""
_HELD_PART = 0.75
"""The part of a lease for which a platform may hold a poll, so that its answer comes before the lease ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenedAccount:
    """An account that a gateway listens to."""

    receiver: Receiver
    mode: InboundMode
    """By polling, or over a lasting connection."""
    credentials: Any
    token_hash: str
    name: str = DEFAULT_ACCOUNT

    @property
    def account(self) -> str:
        return format_account(self.receiver.platform, self.name)


def list_listened_accounts(settings: Settings) -> list[ListenedAccount]:
    """List the accounts that gateways listen to; empty unless the operator enabled the gateway. Raises
    ``ConfigurationError``."""
    if not settings.gateway.is_enabled:
        return []
    return [
        ListenedAccount(
            receiver=one.receiver,
            mode=one.mode,
            credentials=one.receiver.build_credentials(one.values),
            token_hash=_hash_credentials(one.receiver, one.mode, one.values),
            name=one.name,
        )
        for one in list_gateway_accounts(settings.variables, settings.gateway.accounts)
    ]


def _hash_credentials(receiver: Receiver, mode: InboundMode, values: Mapping[str, str]) -> str:
    """Hash an account's credentials: two accounts with one hash are the same account, whatever their names."""
    row = receiver.receiving
    needed = row.required.get(mode, ())
    text = "\n".join((receiver.platform, *(values.get(row.variables[name], "") for name in needed)))
    return hashlib.sha256(text.encode()).hexdigest()


class GatewayListener:
    """Listens to the accounts of one installation until it is told to stop."""

    def __init__(self, client: Client, accounts: list[ListenedAccount], *, name: str, alive_file: Path | None) -> None:
        # Frozen in the middle of a transaction it would lock the account's row, and keep others from listening.
        client.database.end_idle_transactions(client.settings.gateway.lease_s)
        self._client = client
        self._rows = GatewayRows(client.database)
        self._handler = InboundHandler(client)
        self._accounts = accounts
        self._name = name
        self._alive_file = alive_file
        self._lease_s = client.settings.gateway.lease_s

    def run(self, stopping: threading.Event) -> None:
        """Listen until ``stopping`` is set and no poll is under way any more."""
        threads = [
            threading.Thread(target=self._listen, args=(account, stopping), name=account.account, daemon=True)
            for account in self._accounts
        ]
        for thread in threads:
            thread.start()
        while not stopping.wait(1.0):
            if self._alive_file is not None:
                self._alive_file.touch()
        ends_at = time.monotonic() + 5.0
        for thread in threads:
            # A poll may be held by the platform for longer; the next holder of the lease asks for its answer again.
            thread.join(max(0.0, ends_at - time.monotonic()))

    def _listen(self, account: ListenedAccount, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                left_s = self._rows.load_lease_left_s(account.account)
                hold = self._acquire_lease(account) if left_s is None else None
                if hold is None:
                    stopping.wait(compute_standby_s(left_s))
                    continue
                self._listen_under(account, hold, stopping)
            except LeaseLost as lost:
                count("gateway.lease_lost")
                log.warning("gateway.lease_lost", account=account.account, reason=str(lost))
            except UnavailableError as error:
                log.warning("gateway.put_off", account=account.account, reason=str(error))
                stopping.wait(_TRY_S)
            except Exception:  # an account whose thread ends would never be listened to again
                log.exception("thread.failed", doing=f"listening to {account.account}")
                stopping.wait(_TRY_S)

    def _acquire_lease(self, account: ListenedAccount) -> AccountLease | None:
        hold = self._rows.acquire_lease(
            account.account,
            mode=account.mode.value,
            token_hash=account.token_hash,
            holder=self._name,
            lease_s=self._lease_s,
        )
        if hold is not None:
            log.info("gateway.listening", account=account.account)
        return hold

    def _listen_under(self, account: ListenedAccount, hold: AccountLease, stopping: threading.Event) -> None:
        """Listen under the lease until it is lost or ``stopping`` is set. Raises ``LeaseLost``,
        ``UnavailableError``."""
        try:
            if account.mode is InboundMode.SOCKET:
                self._keep_connected(account, hold, stopping)
            else:
                self._poll_repeatedly(account, hold, stopping)
        finally:
            with suppress(UnavailableError):
                self._rows.release(hold)

    def _poll_repeatedly(self, account: ListenedAccount, hold: AccountLease, stopping: threading.Event) -> None:
        cursor, failures, error = hold.cursor, 0, None
        while not stopping.is_set():
            # For as long as a poll may take, no other gateway polls.
            ends_at = time.monotonic() + self._lease_s
            self._rows.renew(hold, self._lease_s, error=error)
            found = self._poll_once(account, cursor, ends_at)
            if isinstance(found, DeliveryError):
                failures, error = failures + 1, found.message
                self._put_off(account, hold, failures, found, stopping)
                continue
            failures, error = 0, None
            cursor = self._handle_all(account, hold, cursor, found)
            if not found.has_more:
                self._pause(hold, account.receiver.receiving.poll_s, None, stopping)

    def _keep_connected(self, account: ListenedAccount, hold: AccountLease, stopping: threading.Event) -> None:
        held = SocketAccount(
            account=account.account,
            platform=account.receiver.platform,
            name=account.name,
            open_talk=lambda: account.receiver.open_talk(account.credentials),
            hold=hold,
            lease_s=self._lease_s,
        )
        cursor, failures = hold.cursor, 0
        while not stopping.is_set():
            ended = SocketListening(held, self._rows, self._handler, cursor).listen(stopping)
            cursor = ended.cursor
            error = ended.error or DeliveryError(kind=SendErrorKind.TRANSIENT, message="it ended at once")
            if ended.was_useful and error.kind is SendErrorKind.TRANSIENT:
                failures, held = 0, replace(held, last_error=None)
                continue
            failures, held = failures + 1, replace(held, last_error=error.message)
            self._put_off(account, hold, failures, error, stopping)

    def _put_off(
        self,
        account: ListenedAccount,
        hold: AccountLease,
        failures: int,
        error: DeliveryError,
        stopping: threading.Event,
    ) -> None:
        """Wait after a failure, and keep the lease. Raises ``LeaseLost``, ``UnavailableError``."""
        wait_s = compute_poll_wait_s(failures, error.retry_after_s)
        if error.kind is SendErrorKind.AUTH:
            wait_s = max(wait_s, LOOK_AGAIN_S_MAX)  # nothing changes until an operator changes the token
        log.warning("gateway.look_failed", account=account.account, reason=error.message, wait_s=wait_s)
        self._rows.renew(hold, self._lease_s, error=error.message)  # people see what is wrong at once
        self._pause(hold, wait_s, error.message, stopping)

    def _pause(self, hold: AccountLease, wait_s: float, error: str | None, stopping: threading.Event) -> None:
        """Wait, and keep the lease. Raises ``LeaseLost``, ``UnavailableError``."""
        ends_at = time.monotonic() + wait_s
        while (left_s := ends_at - time.monotonic()) > 0 and not stopping.wait(min(left_s, self._lease_s / 3)):
            if left_s > self._lease_s / 3:
                self._rows.renew(hold, self._lease_s, error=error)

    def _poll_once(self, account: ListenedAccount, cursor: str, ends_at: float) -> Polled | DeliveryError:
        """Poll once, until ``ends_at`` of the monotonic clock. Raises ``LeaseLost``."""
        # Counted from now: a process that was frozen after the renewal has less left of the lease.
        hold_s = _HELD_PART * max(0.0, ends_at - time.monotonic())
        if account.receiver.receiving.fetch is not None:
            # ``fetch`` keeps its own time. What it brings after the end of the lease is refused by the rows.
            return account.receiver.fetch(cursor, account.credentials, datetime.now(UTC), hold_s)
        exchange = account.receiver.poll(cursor, account.credentials, datetime.now(UTC), hold_s)
        return run_exchange(exchange, account.account, ends_at)

    def _acknowledge(self, account: ListenedAccount, event: Inbound) -> None:
        """Tell the platform that a press of a button was taken. A failure here has no consequences."""
        if not isinstance(event, InboundButton):
            return
        exchange = account.receiver.acknowledge(event, account.credentials)
        if exchange is not None:
            with suppress(LeaseLost):
                run_exchange(exchange, account.account, time.monotonic() + min(_ACKNOWLEDGE_S, self._lease_s / 4))

    def _handle_all(self, account: ListenedAccount, hold: AccountLease, cursor: str, found: Polled) -> str:
        """Handle what a poll brought, in order. Returns the cursor to poll from next. Raises ``LeaseLost``,
        ``UnavailableError``."""
        last = len(found.inbound) - 1
        moved = False
        for number, event in enumerate(found.inbound):
            is_last = number == last
            received = ReceivedEvent(
                platform=account.receiver.platform,
                account_name=account.name,
                event=event,
                hold=hold,
                cursor=found.cursor if is_last else None,
            )
            moved = self._handler.handle(received) is not None and is_last
            self._acknowledge(account, event)
        if found.cursor != cursor and not moved:
            self._rows.advance_cursor(hold, found.cursor)
        return found.cursor
