"""A thread of a worker for tools that tells servers about tasks whose calls are over, and closes the rows of such
tasks.

The rows say what is to be done, so the first worker to look does it. A server that cannot be told is told again later,
for a day; telling it twice is harmless (``tasks/cancel`` of the extension Tasks).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from hermes_worker.agent.tools.sources import ToolSource
from hermes_worker.core.errors import UnavailableError
from hermes_worker.observe import log, poll_forever
from hermes_worker.store.runs.remote_tasks import AbandonedTask, RemoteTasks

_LOOK_EVERY_S = 1.0
_AGAIN_S = 30.0
_GIVE_UP_S = 86_400.0
_BATCH = 20


class TaskCloser:
    """Closes the tasks of finished calls in a thread of this process."""

    def __init__(
        self,
        rows: RemoteTasks,
        source: Callable[[str], ToolSource],
        *,
        is_on: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``source`` raises for a name that no longer exists."""
        self._rows = rows
        self._source = source
        self._is_on = is_on
        self._clock = clock
        self._tried: dict[int, float] = {}
        self._end = threading.Event()

    def start(self) -> None:
        if self._is_on:
            threading.Thread(target=self._run, name="hermes_remote_tasks", daemon=True).start()

    def stop(self) -> None:
        """Stop closing tasks. Idempotent; does not wait."""
        self._end.set()

    def _run(self) -> None:
        poll_forever(self._end, _LOOK_EVERY_S, self.poll_once, event="remote_task.unwatched")

    def poll_once(self) -> Mapping[int, str]:
        """Close each task that is due; return the outcomes by row id. Raises ``UnavailableError``."""
        found = self._rows.list_abandoned(most=_BATCH)
        self._tried = {one.wait_id: self._tried[one.wait_id] for one in found if one.wait_id in self._tried}
        done: dict[int, str] = {}
        for one in found:
            outcome = self._close_task(one)
            if outcome is not None:
                self._rows.close(one.wait_id, outcome)
                done[one.wait_id] = outcome
        return done

    def _close_task(self, one: AbandonedTask) -> str | None:
        """Tell the server and return the outcome for the row; ``None`` for a task whose server is told again later."""
        if one.has_ended:
            return "ended"
        now = self._clock()
        if abs(now - self._tried.get(one.wait_id, 0.0)) < _AGAIN_S:  # it may be set back
            return None
        self._tried[one.wait_id] = now
        try:
            source = self._source(one.task.source)
            cancel = getattr(source, "cancel_task", None)
            if cancel is None:
                return "gone"
            cancel(one.task)
        except UnavailableError:
            raise
        except Exception as error:
            log.warning("remote_task.not_cancelled", tool_source=one.task.source, reason=f"{error}"[:300])
            return "gone" if now - one.task.begun_at > _GIVE_UP_S else None
        return "cancelled"
