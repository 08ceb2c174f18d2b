"""The role ``browser``: owns the browsers of one machine, and is the only one that ends them.

It looks at the rows several times a second. A row that is wanted is claimed and gets a Chromium; a row that nobody has
used for a while is released first and then loses it; a row that is gone, or whose lease was lost, loses it at once. So
what runs here follows from the rows. A host that is killed leaves nothing behind (``chromium``), except directories,
which the next host of the home removes.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol

from hermes_worker.browser.chromium import Chromium, NoBrowserHere
from hermes_worker.browser.relay import DevTools, Relay
from hermes_worker.core.errors import UnavailableError
from hermes_worker.observe import log
from hermes_worker.store.resources import ResourceKind, ResourceLease, Resources

TTL_S: Final = 15.0
"""Of a lease; it is renewed four times in that time."""
WANTS_WITHIN_S: Final = 60.0
"""What was wanted longer ago is not begun: the call has given up."""
KEEP_S: Final = 30 * 86_400.0
"""Rows without a process, and their cookies, go after so long without use."""
_LOOK_S: Final = 0.2
_CLEAN_EVERY_S: Final = 600.0
_LOCK: Final = "lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """What a host is to do."""

    name: str
    browsers_max: int = 4
    idle_s: float = 600.0
    ttl_s: float = TTL_S
    folder: Path
    """Where profiles are; this user's own."""
    alive_file: Path | None = None


class StartBrowser(Protocol):
    def __call__(self, folder: Path) -> Chromium:
        """Start a browser with its profile in ``folder``. Raises ``NoBrowserHere``."""
        ...


@dataclass(slots=True)
class _Hosted:
    lease: ResourceLease
    chromium: Chromium
    tools: DevTools


class BrowserHost:
    """The browsers of this process."""

    def __init__(self, rows: Resources, start: StartBrowser, options: HostOptions, relay: Callable[..., Relay]) -> None:
        """``relay`` makes the server, given who asks the rows."""
        self._rows = rows
        self._start = start
        self._options = options
        self._hosted: dict[str, _Hosted] = {}
        self._starting: dict[str, tuple[ResourceLease, Future[_Hosted]]] = {}
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="browser-start")
        self._renewed_at = time.monotonic()
        self._cleaned_at = -_CLEAN_EVERY_S
        self._folder, self._lock = _own_folder(options.folder)
        self._relay = relay(self._may_use)
        rows.abandon(ResourceKind.BROWSER, host=options.name)

    @property
    def pids(self) -> Mapping[str, int]:
        """The processes that keep the browsers, by resource."""
        return {name: one.chromium.pid for name, one in self._hosted.items()}

    def run(self, stopping: threading.Event) -> None:
        """Until ``stopping`` is set; then everything is ended."""
        try:
            while not stopping.wait(_LOOK_S):
                try:
                    self.look()
                except UnavailableError as error:
                    log.warning("database.unreachable", doing="browsers", error=str(error))
                    self._end_untrusted()
        finally:
            self.close()

    def look(self) -> None:
        """Do what is due. Raises ``UnavailableError``."""
        self._take_started()
        self._end_dead()
        if time.monotonic() - self._renewed_at > self._options.ttl_s / 4:
            self._renew()
        while len(self._hosted) + len(self._starting) < self._options.browsers_max and self._begin_one():
            pass
        if time.monotonic() - self._cleaned_at > _CLEAN_EVERY_S:
            self._cleaned_at = time.monotonic()
            self._rows.delete_unused(ResourceKind.BROWSER, older_than_s=KEEP_S)
        if (alive := self._options.alive_file) is not None:
            alive.touch()

    def close(self) -> None:
        """End every browser and say so in the rows. Idempotent."""
        for name in tuple(self._starting):
            self._await_started(name)
        for name in tuple(self._hosted):
            with suppress(UnavailableError):
                self._rows.release(self._hosted[name].lease, "its host was stopped")
            self._end(name)
        self._pool.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._lock.close()

    # --- beginning ---------------------------------------------------------------------------------------------------

    def _begin_one(self) -> bool:
        lease = self._rows.claim(
            ResourceKind.BROWSER,
            host=self._options.name,
            ttl_s=self._options.ttl_s,
            wants_within_s=WANTS_WITHIN_S,
        )
        if lease is None:
            return False
        name = lease.resource.resource_id
        self._starting[name] = (lease, self._pool.submit(self._started, lease))
        return True

    def _started(self, lease: ResourceLease) -> _Hosted:
        name = lease.resource.resource_id
        chromium = self._start(self._folder / f"{name}-{secrets.token_hex(4)}")
        try:
            endpoint, tools = self._relay.open(name, chromium.commands, chromium.events)
            hosted = _Hosted(lease=lease, chromium=chromium, tools=tools)
            if not self._rows.publish(lease, endpoint):
                raise NoBrowserHere("the lease was lost while the browser started")
        except BaseException:
            self._relay.close(name)
            chromium.end()
            raise
        return hosted

    def _take_started(self) -> None:
        for name in [name for name, (_, started) in self._starting.items() if started.done()]:
            self._await_started(name)

    def _await_started(self, name: str) -> None:
        lease, started = self._starting.pop(name)
        try:
            self._hosted[name] = started.result()
        except Exception as error:
            log.warning("browser.not_started", reason=str(error) or type(error).__name__)
            with suppress(UnavailableError):
                self._rows.release(lease, f"it could not be started: {error}")
        else:
            log.info("browser.started", resource_id=name, session_id=lease.resource.session_id)

    # --- ending ------------------------------------------------------------------------------------------------------

    def _renew(self) -> None:
        began = time.monotonic()
        leases = [one.lease for one in self._hosted.values()]
        leases += [lease for lease, _ in self._starting.values()]
        held = self._rows.renew(leases, ttl_s=self._options.ttl_s)
        self._renewed_at = began
        self._rows.end_lapsed()
        for name, one in tuple(self._hosted.items()):
            if name not in held:
                self._end(name, reason="its row is gone or not ours any more")
            elif held[name] > self._options.idle_s and self._rows.release(
                one.lease, f"nobody used it for {self._options.idle_s:g} s", idle_s=self._options.idle_s
            ):
                self._end(name, reason="idle")
            else:
                one.chromium.keep_alive()

    def _end_dead(self) -> None:
        for name in [name for name, one in self._hosted.items() if one.tools.closed.is_set()]:
            self._rows.release(self._hosted[name].lease, "it crashed")
            self._end(name, reason="crashed")

    def _end_untrusted(self) -> None:
        """The rows could not be asked for a whole term: others may have what is ours."""
        if time.monotonic() - self._renewed_at > self._options.ttl_s:
            for name in tuple(self._hosted):
                self._end(name, reason="the database is away")

    def _end(self, name: str, reason: str = "stopped") -> None:
        one = self._hosted.pop(name)
        self._relay.close(name)
        one.chromium.end()
        log.info("browser.ended", resource_id=name, reason=reason)

    def _may_use(self, resource_id: str, token: str) -> bool:
        hosted = self._hosted.get(resource_id)
        lease = hosted.lease if hosted is not None else self._starting.get(resource_id, (None,))[0]
        try:
            return lease is not None and self._rows.may_use(lease, token)
        except UnavailableError:
            return False


def _own_folder(folder: Path) -> tuple[Path, IO[bytes]]:
    """A directory for this process, with a lock that it holds while it lives; those of dead hosts are removed."""
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    for other in folder.iterdir():
        with suppress(OSError), (other / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(other, ignore_errors=True)
    own = folder / f"{os.getpid()}-{secrets.token_hex(4)}"
    own.mkdir(mode=0o700)
    held = (own / _LOCK).open("wb")
    fcntl.flock(held, fcntl.LOCK_EX)
    return own, held
