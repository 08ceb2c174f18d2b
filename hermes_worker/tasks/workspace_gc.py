"""A thread of a worker for tools that releases what idle remote workspaces hold, and removes workspaces that may go.

The place says which workspaces there are, the rows say what of them is needed: workspaces that this database never knew
are left alone, so several installations may share a place. All of it is idempotent, and safe in several processes.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, Protocol

from hermes_worker.core.errors import UnavailableError
from hermes_worker.observe import log
from hermes_worker.workspaces.base import WorkspaceError
from hermes_worker.workspaces.pruning import is_own_name
from hermes_worker.workspaces.remote.targets import TidiedTarget, WorkspaceTarget

_AT_ONCE: Final = 100
_EVERY_S_MAX: Final = 300.0


class WorkspaceNeeds(Protocol):
    """The rows' word about workspaces. Implemented by ``features.retention.rows.Pruner``."""

    def list_tenants(self) -> list[str]: ...

    def may_remove_workspaces(self, tenant: str) -> bool: ...

    def find_expired_workspaces(self, tenant: str, session_ids: Collection[str]) -> set[str]: ...

    def find_idle_workspaces(self, session_ids: Collection[str], idle_s: float) -> set[str]: ...


@dataclass(frozen=True, slots=True)
class TendedWorkspaces:
    """The roots of workspaces for which something was done."""

    rested: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def tend_workspaces(place: WorkspaceTarget, needs: WorkspaceNeeds, idle_s: float) -> TendedWorkspaces:
    """Remove the workspaces of a place that may go, and release what idle ones hold. Raises ``WorkspaceError`` and
    ``UnavailableError``; what was done before that stays done.
    """
    own = {PurePosixPath(root).name: root for root in place.list_roots() if is_own_name(PurePosixPath(root).name)}
    names = sorted(own)
    pruned = [tenant for tenant in needs.list_tenants() if needs.may_remove_workspaces(tenant)]
    rested: list[str] = []
    removed: list[str] = []
    for first in range(0, len(names), _AT_ONCE):
        batch = names[first : first + _AT_ONCE]
        over = {name for tenant in pruned for name in needs.find_expired_workspaces(tenant, batch)}
        for name in sorted(over):
            place.remove(own[name])
            removed.append(own[name])
        idle = needs.find_idle_workspaces([name for name in batch if name not in over], idle_s)
        rested += [own[name] for name in sorted(idle) if place.release_resources(own[name])]
    if isinstance(place, TidiedTarget):
        place.tidy()
    return TendedWorkspaces(tuple(rested), tuple(removed))


class WorkspaceCollector:
    """Tends a place again and again, in a thread of its own, so that a place that hangs holds up no other work."""

    def __init__(
        self,
        places: Sequence[WorkspaceTarget],
        needs: WorkspaceNeeds,
        idle_s: float,
        is_copy: Callable[[], bool] = lambda: False,
    ) -> None:
        """While ``is_copy`` returns true, the workspaces belong to the original of this restored copy, and stay as they
        are.
        """
        self._is_copy = is_copy
        self._places = places
        self._needs = needs
        self._idle_s = idle_s
        self._end = threading.Event()

    def start(self) -> None:
        """Begin: a thread for each place."""
        for place in self._places:
            threading.Thread(target=self._run, args=(place,), name="hermes_places", daemon=True).start()

    def stop(self) -> None:
        """Stop tending. Idempotent; does not wait."""
        self._end.set()

    def _run(self, place: WorkspaceTarget) -> None:
        every_s = min(_EVERY_S_MAX, self._idle_s / 2)
        # Processes that began together do not ask together.
        apart = random.Random(os.getpid())
        while not self._end.wait(every_s * apart.uniform(0.5, 1.0)):
            self.poll_once(place)

    def poll_once(self, place: WorkspaceTarget) -> None:
        """Tend the place once, and log what was done or why it was not."""
        try:
            done = TendedWorkspaces() if self._is_copy() else tend_workspaces(place, self._needs, self._idle_s)
        except UnavailableError:
            return  # the heartbeat says that the database is away
        except WorkspaceError as error:
            log.warning("workspace.not_tended", workspace_kind=place.kind, reason=str(error))
        except Exception:
            log.exception("thread.failed", doing="places")
        else:
            if done.rested or done.removed:
                removed, rested = len(done.removed), len(done.rested)
                log.info("workspace.tended", workspace_kind=place.kind, removed=removed, rested=rested)
