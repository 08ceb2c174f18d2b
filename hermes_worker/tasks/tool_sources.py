"""A thread of a worker for tools that asks the tool sources for their tools and writes them into rows, again and again.

Nothing waits for it. A source that fails or hangs keeps the row that it has, and is asked again later; while it hangs,
no second thread asks it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from hermes_worker.agent.source_tools import build_definitions
from hermes_worker.agent.tools.sources import ToolSource
from hermes_worker.core.errors import UnavailableError
from hermes_worker.extension import ToolSourceDeclaration
from hermes_worker.observe import count, log
from hermes_worker.store.tool_sources import ToolSources

_LOOK_EVERY_S = 0.5
_AGAIN_S = 15.0
"""After a failure a source is asked again this soon."""


@dataclass(slots=True)
class _SourceState:
    """The state of one source."""

    declared: ToolSourceDeclaration
    source: ToolSource
    due_at: float = 0.0
    """When to ask it next, by ``time.monotonic``."""
    since: float | None = None
    """When the thread that is asking it began; ``None`` when none does."""
    is_named: bool = False
    """Whether the log already says that this thread hangs."""
    lock: threading.Lock = field(default_factory=threading.Lock)


class ToolLister:
    """The sources of this process, each asked in a thread of its own."""

    def __init__(
        self,
        sources: Mapping[str, tuple[ToolSourceDeclaration, ToolSource]],
        store: ToolSources,
        taken: Collection[str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``taken`` are the names of tools that exist without sources."""
        self._asking = [_SourceState(declared, source) for declared, source in sources.values()]
        self._store = store
        self._taken = frozenset(taken)
        self._clock = clock
        self._end = threading.Event()

    def start(self) -> None:
        """Begin to ask, where there is anything to ask."""
        if self._asking:
            threading.Thread(target=self._run, name="hermes_tool_sources", daemon=True).start()

    def stop(self) -> None:
        """Ask no more. Idempotent; does not wait."""
        self._end.set()

    def _run(self) -> None:
        while not self._end.is_set():
            self.poll_once()
            self._end.wait(_LOOK_EVERY_S)

    def poll_once(self) -> list[threading.Thread]:
        """Start a thread for each source that is due, and return those threads."""
        begun = []
        for asking in self._asking:
            with asking.lock:
                if asking.since is not None:
                    self._name_hanging(asking)
                elif self._clock() >= asking.due_at:
                    asking.since, asking.is_named = self._clock(), False
                    thread = threading.Thread(
                        target=self._ask, args=(asking,), name=f"tools-{asking.declared.name}", daemon=True
                    )
                    thread.start()
                    begun.append(thread)
        return begun

    def _name_hanging(self, asking: _SourceState) -> None:
        if not asking.is_named and self._clock() - (asking.since or 0.0) > asking.declared.timeout_s:
            asking.is_named = True
            count("tool_source.failed")
            reason = f"it takes longer than {asking.declared.timeout_s:g} s"
            log.warning("tool_source.failed", tool_source=asking.declared.name, reason=reason)

    def _ask(self, asking: _SourceState) -> None:
        name = asking.declared.name
        again_s = min(_AGAIN_S, asking.declared.refresh_s)
        try:
            definitions, left_out = build_definitions(name, asking.source.list_tools(), self._taken)
            for reason in left_out:
                log.warning("tool_source.left_out", tool_source=name, reason=str(reason))
            if self._store.write(name, definitions):
                log.info("tool_source.listed", tool_source=name, tools=len(definitions))
            again_s = asking.declared.refresh_s
        except UnavailableError:
            log.debug("tool_source.failed", tool_source=name, reason="the database is away")
        except BaseException as error:  # others wrote it: whatever it raises leaves the row as it is
            count("tool_source.failed")
            log.warning("tool_source.failed", tool_source=name, reason=f"{type(error).__name__}: {error}")
        finally:
            with asking.lock:
                asking.since, asking.due_at = None, self._clock() + again_s
