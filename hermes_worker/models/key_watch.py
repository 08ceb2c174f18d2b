"""Which keys may be used, as this process knows it, and what it reports about them.

The truth is rows (``store.key_states``). A process reads them every second beside its work, so that looking costs a
model call no statement, and writes only when there is something to say: a failure that tells something about a key, an
answer of a key that something is held against, the end of a probe. While the database is away the last known states
count.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from typing import Protocol

from hermes_worker.core.errors import Classification, UnavailableError
from hermes_worker.core.key_states import PARKED_S, Finding, decide_finding
from hermes_worker.models.governor import CredentialRef
from hermes_worker.models.row_watch import RowWatch
from hermes_worker.observe import count, log
from hermes_worker.safety.redaction import redact
from hermes_worker.store.key_states import KeyRow, KeyStates, Probe

_NOTHING = Finding()


class KeyStateLookup(Protocol):
    """The states of keys, as the loop uses them. No method raises for a database that is away."""

    @property
    def are_all_open(self) -> bool: ...

    def find_closed(self, credential: str) -> KeyRow | None: ...

    def acquire_probe(self, credential: str, owner: int) -> Probe | None: ...

    def release_probe(self, probe: Probe, wait_s: float = 0.0) -> None: ...

    def report_failure(
        self, place: CredentialRef, failure: Classification, *, run_id: str, probe: Probe | None, is_renewable: bool
    ) -> bool: ...

    def report_answer(self, place: CredentialRef, probe: Probe | None) -> None: ...


class NoKeyStates:
    """Key states without any closed key."""

    are_all_open = True

    def find_closed(self, credential: str) -> KeyRow | None:
        return None

    def acquire_probe(self, credential: str, owner: int) -> Probe | None:
        return None

    def release_probe(self, probe: Probe, wait_s: float = 0.0) -> None:
        return

    def report_failure(
        self, place: CredentialRef, failure: Classification, *, run_id: str, probe: Probe | None, is_renewable: bool
    ) -> bool:
        return False

    def report_answer(self, place: CredentialRef, probe: Probe | None) -> None:
        return


class KeyWatch(RowWatch):
    """The keys of a fleet, seen from one process. Thread-safe."""

    def __init__(self, states: KeyStates) -> None:
        super().__init__("key watch", thread="hermes_key_watch")
        self._states = states
        self._known: Mapping[str, KeyRow] = {}
        self._lock = threading.Lock()

    def poll_once(self) -> None:
        """Read the current states. Raises ``UnavailableError``."""
        found = {row.credential: row for row in self._states.list_keys() if row.state.is_closed or row.state.evidence}
        with self._lock:
            self._known = found

    @property
    def are_all_open(self) -> bool:
        """Whether nothing at all is held against any key."""
        return not self._known

    def find_closed(self, credential: str) -> KeyRow | None:
        """The row of a key that may not be used; ``None`` for a key that may. Executes no statement."""
        row = self._known.get(credential)
        return row if row is not None and row.state.is_closed else None

    def acquire_probe(self, credential: str, owner: int) -> Probe | None:
        """Acquire the right to try a closed key, if it is time for that; ``None`` when it is not or another worker has
        it.
        """
        try:
            probe = self._states.claim_probe(credential, owner)
        except UnavailableError:
            return None
        if probe is not None:
            count("provider.probed")
            log.info("provider.probed", fingerprint=credential)
        return probe

    def release_probe(self, probe: Probe, wait_s: float = 0.0) -> None:
        """Release a probe that was not used."""
        try:
            self._adopt_row(self._states.release_probe(probe, wait_s=wait_s))
        except UnavailableError:
            return  # it is free when its worker is gone, or in a while

    def report_failure(
        self, place: CredentialRef, failure: Classification, *, run_id: str, probe: Probe | None, is_renewable: bool
    ) -> bool:
        """Record how a call failed; return whether its key is closed now. ``is_renewable``: the key is an access token,
        of which a refusal says only that another one is due.
        """
        found = decide_finding(failure)
        if is_renewable and failure.status == 401:
            found = _NOTHING
        reason = redact(failure.message)
        key = (place.provider, place.credential)
        was_closed = self.find_closed(place.credential) is not None
        try:
            if probe is not None:
                row = self._states.record_probe_failure(probe, found, reason=reason)
            elif was_closed or found.condition is None:
                return was_closed and found.condition is not None
            else:
                row = self._states.record_failure(key, found, run_id=run_id, reason=reason)
        except UnavailableError:
            return False
        self._adopt_row(row, was_closed=was_closed)
        return row is not None and row.state.is_closed and found.condition is not None

    def report_answer(self, place: CredentialRef, probe: Probe | None) -> None:
        """Record that a call was answered. Writes nothing while nothing is held against its key."""
        if probe is None and (place.credential not in self._known or self.find_closed(place.credential)):
            return
        was_closed = self.find_closed(place.credential) is not None
        try:
            row = self._states.record_probe_answer(probe) if probe else self._states.record_answer(place.credential)
        except UnavailableError:
            return
        self._adopt_row(row, was_closed=was_closed)

    def _adopt_row(self, row: KeyRow | None, *, was_closed: bool = False) -> None:
        """Take over a row that this process has just written, without waiting for the next read."""
        if row is None:
            return
        with self._lock:
            known = {name: each for name, each in self._known.items() if name != row.credential}
            if row.state.is_closed or row.state.evidence:
                known[row.credential] = row
            self._known = known
        if row.state.is_closed == was_closed:
            return
        facts = {"provider": row.provider, "fingerprint": row.credential}
        if row.state.is_closed:
            count("provider.closed")
            log.warning("provider.closed", **facts, condition=row.state.condition.value, reason=row.reason)
        else:
            count("provider.opened")
            log.info("provider.opened", **facts)


def choose_parked_wait_s() -> float:
    """How many seconds a run that waits for a closed key is parked, if nothing wakes it. Random, so that runs that were
    parked together do not all look at once.
    """
    return PARKED_S * random.uniform(0.8, 1.2)
