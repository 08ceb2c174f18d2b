"""Owns the resources of one kind on one machine, and is the only one that ends them.

It looks at the rows several times a second. A row that is wanted is claimed and gets a process; a row that was not used
for a while is released first and then loses it; a row that is gone, or whose lease was lost, loses it at once. So what
runs here follows from the rows. While the database is away no worker is let in, and what runs is kept for as long as an
unused process is. A host that is killed leaves no process behind (``program``), only directories, which the next host
of the home removes.
"""

from __future__ import annotations

import secrets
import shutil
import socket
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from hermes_worker.core.errors import UnavailableError
from hermes_worker.hosting.program import SILENCE_S, NotStarted
from hermes_worker.observe import log
from hermes_worker.store.resources import NOT_STARTED, ResourceKind, ResourceLease, Resources, ResourceView
from hermes_worker.system.own_folders import open_own_folder

TTL_S: Final = 15.0
"""How many seconds a lease lasts; it is renewed four times in that time."""
WANTS_WITHIN_S: Final = 60.0
"""A row that was wanted more seconds ago is not begun: the call has given up."""
KEEP_S: Final = 30 * 86_400.0
"""After so many seconds without use rows without a process, and what they keep for the next one, are removed."""
_LOOK_S: Final = 0.2
_CLEAN_EVERY_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """The options of a host."""

    name: str
    hosted_max: int = 4
    idle_s: float = 600.0
    ttl_s: float = TTL_S
    folder: Path
    """The folder for the directories of its processes; this user's own."""
    alive_file: Path | None = None


class HostedProcess(Protocol):
    """A process, and its endpoint for workers."""

    @property
    def pid(self) -> int: ...

    @property
    def endpoint(self) -> str:
        """The address at which workers find it."""

    @property
    def has_ended(self) -> bool:
        """Return whether the process ended by itself."""

    def keep_alive(self) -> None: ...

    def end(self) -> None:
        """End it and delete its folder. Idempotent."""


class StartHosted(Protocol):
    def __call__(self, resource: ResourceView, folder: Path) -> HostedProcess:
        """Start the process of ``resource``, with a folder of its own. Raises ``NotStarted``."""


@dataclass(slots=True)
class _HostedLease:
    lease: ResourceLease
    process: HostedProcess


class ResourceHost:
    """The resources of one kind in this process."""

    def __init__(self, rows: Resources, kind: ResourceKind, start: StartHosted, options: HostOptions) -> None:
        self._rows = rows
        self._kind = kind
        self._start = start
        self._options = options
        self._holding: dict[str, _HostedLease] = {}
        self._starting: dict[str, tuple[ResourceLease, Future[_HostedLease]]] = {}
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix=f"{kind.value}-start")
        self._renewed_at = time.monotonic()
        self._cleaned_at = -_CLEAN_EVERY_S
        self._folder, self._lock = open_own_folder(options.folder)
        rows.end_stale(kind, host=options.name)

    @property
    def pids(self) -> Mapping[str, int]:
        """The process ids of the keepers of the hosted processes, by resource."""
        return {name: one.process.pid for name, one in self._holding.items()}

    def run(self, stopping: threading.Event) -> None:
        """Look at the rows until ``stopping`` is set; then end everything."""
        ended = threading.Event()
        keeping = threading.Thread(target=self._keep_alive_until, args=(ended,), name=f"{self._kind.value}-alive")
        keeping.start()
        try:
            while not stopping.wait(_LOOK_S):
                try:
                    self.poll_once()
                except UnavailableError as error:
                    log.warning("database.unreachable", doing=self._kind.value, error=str(error))
                    self._end_unused()
        finally:
            self.close()
            ended.set()
            keeping.join()

    def _keep_alive_until(self, ended: threading.Event) -> None:
        """Keep the processes alive beside the looks, each of which may wait for the database longer than a process
        lives without a sign. A host that hangs keeps them no longer than unused ones.
        """
        while not ended.wait(SILENCE_S / 8):
            if time.monotonic() - self._renewed_at < self._options.idle_s + self._options.ttl_s:
                self.keep_alive()

    def keep_alive(self) -> None:
        """Tell the processes that their host lives. Thread-safe."""
        for one in tuple(self._holding.values()):
            one.process.keep_alive()

    def poll_once(self) -> None:
        """Renew the leases of this host's resources, end those that are over, and start requested ones. Raises
        ``UnavailableError``."""
        self._take_started()
        self._end_dead()
        if time.monotonic() - self._renewed_at > self._options.ttl_s / 4:
            self._renew()
        while len(self._holding) + len(self._starting) < self._options.hosted_max and self._begin_one():
            pass
        if time.monotonic() - self._cleaned_at > _CLEAN_EVERY_S:
            self._cleaned_at = time.monotonic()
            self._rows.delete_unused(self._kind, older_than_s=KEEP_S)
        if (alive := self._options.alive_file) is not None:
            alive.touch()

    def close(self) -> None:
        """End every process and say so in the rows. Idempotent."""
        for name in tuple(self._starting):
            self._await_started(name)
        for name in tuple(self._holding):
            with suppress(UnavailableError):
                self._rows.release(self._holding[name].lease, "its host was stopped")
            self._end_process(name)
        self._pool.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._lock.close()

    def may_use(self, resource_id: str, token: str) -> bool:
        """Whether a call with this token of a use has the resource now. Asks the rows; false when they are away."""
        holding = self._holding.get(resource_id)
        lease = holding.lease if holding is not None else self._starting.get(resource_id, (None,))[0]
        try:
            return lease is not None and self._rows.may_use(lease, token)
        except UnavailableError:
            return False

    # --- beginning ---------------------------------------------------------------------------------------------------

    def _begin_one(self) -> bool:
        lease = self._rows.claim(
            self._kind, host=self._options.name, ttl_s=self._options.ttl_s, wants_within_s=WANTS_WITHIN_S
        )
        if lease is None:
            return False
        name = lease.resource.resource_id
        self._starting[name] = (lease, self._pool.submit(self._start_and_publish, lease))
        return True

    def _start_and_publish(self, lease: ResourceLease) -> _HostedLease:
        name = lease.resource.resource_id
        process = self._start(lease.resource, self._folder / f"{name}-{secrets.token_hex(4)}")
        try:
            if not self._rows.publish(lease, process.endpoint):
                raise NotStarted("the lease was lost meanwhile")
        except BaseException:
            process.end()
            raise
        return _HostedLease(lease=lease, process=process)

    def _take_started(self) -> None:
        for name in [name for name, (_, started) in self._starting.items() if started.done()]:
            self._await_started(name)

    def _await_started(self, name: str) -> None:
        lease, started = self._starting.pop(name)
        try:
            self._holding[name] = started.result()
        except Exception as error:
            reason = str(error) or type(error).__name__
            log.warning("resource.not_started", resource_kind=self._kind.value, reason=reason)
            with suppress(UnavailableError):
                self._rows.release(lease, f"{NOT_STARTED}{reason}")
        else:
            session_id = lease.resource.session_id
            log.info("resource.started", resource_kind=self._kind.value, resource_id=name, session_id=session_id)

    # --- ending ------------------------------------------------------------------------------------------------------

    def _renew(self) -> None:
        began = time.monotonic()
        leases = [one.lease for one in self._holding.values()]
        leases += [lease for lease, _ in self._starting.values()]
        held = self._rows.renew(leases, ttl_s=self._options.ttl_s)
        was_away = began - self._renewed_at > self._options.ttl_s / 2
        self._renewed_at = began
        if not was_away:  # other hosts renew as well what lapsed while the database was away
            self._rows.end_lapsed()
        for name, one in tuple(self._holding.items()):
            if name not in held:
                self._end_process(name, reason="its row is gone or not ours any more")
            elif held[name] > self._options.idle_s and self._rows.release(
                one.lease, f"nobody used it for {self._options.idle_s:g} s", idle_s=self._options.idle_s
            ):
                self._end_process(name, reason="idle")

    def _end_dead(self) -> None:
        for name in [name for name, one in self._holding.items() if one.process.has_ended]:
            self._rows.release(self._holding[name].lease, "it crashed")
            self._end_process(name, reason="crashed")

    def _end_unused(self) -> None:
        """End the processes that are not used. No worker is let in while the rows cannot be asked: then every process
        counts as idle.
        """
        if time.monotonic() - self._renewed_at > self._options.idle_s:
            for name in tuple(self._holding):
                self._end_process(name, reason="the database is away")

    def _end_process(self, name: str, reason: str = "stopped") -> None:
        self._holding.pop(name).process.end()
        log.info("resource.ended", resource_kind=self._kind.value, resource_id=name, reason=reason)


def find_advertised_host(host: str, address: str | None) -> str:
    """Find the name under which others reach what listens on ``host``: ``address``, where one is set."""
    return address or (socket.gethostname() if host in ("0.0.0.0", "::", "[::]") else host)
