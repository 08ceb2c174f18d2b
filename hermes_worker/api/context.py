"""The context that routes share: the client, the readers, and the threads in which blocking calls run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar, cast

import anyio
import anyio.to_thread
from fastapi import Depends, Request

from hermes_worker.api.recent_answers import RecentAnswers
from hermes_worker.api.waiting import WaitingRequests
from hermes_worker.channels.signing_keys import SigningKeys
from hermes_worker.settings.sealing import Keyring
from hermes_worker.store.access.page_logins import PageLogins
from hermes_worker.store.access.principals import Tenants
from hermes_worker.stream.changes import ChangeWatchers
from hermes_worker.stream.followers import Followers, FollowPolicy
from hermes_worker.wiring import Client

if TYPE_CHECKING:
    from hermes_worker.local.paths import StackNote
    from hermes_worker.services.submission import Submission
    from hermes_worker.store.runs.views import LastStatus

P = ParamSpec("P")
T = TypeVar("T")

STORE_THREADS = 8
"""Most calls of the store at once: fewer than there are database connections, so that none waits for one in a thread.
"""
BROKER_THREADS = 4
"""Most calls of the broker at once, in threads of their own: a broker that swallows packets must not stop the API."""
LONG_READ_THREADS = 2
"""Most exports at once: each holds a connection of the database for as long as its reader takes."""
HEALTH_THREADS = 2
"""Most health probes at once, in threads of their own: health is asked for when the others are stuck."""
ANNOUNCEMENTS_WAITING_MAX = 1_000
"""Announcements that may wait. More are dropped: they are hints, and a broker that slow is better left to the sweeper.
"""


def _make_thread_limiter(total: int) -> Callable[[], anyio.CapacityLimiter]:
    return lambda: anyio.CapacityLimiter(total)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiContext:
    """The context of one application, which its routes share."""

    client: Client
    followers: Followers
    changes: ChangeWatchers
    policy: FollowPolicy
    keyring: Keyring
    """Unseals the secrets of webhook routes."""
    proofs: Keyring
    """Proves that a cursor or an address of a file was made here. Nothing in a row is sealed with it."""
    tenants: Tenants
    page_logins: PageLogins
    began_at: int = field(default_factory=lambda: int(time.time()))
    """When this process began, in epoch seconds."""
    waiting: WaitingRequests = field(default_factory=WaitingRequests)
    """Requests that wait for the end of runs."""
    spent: RecentAnswers[Any] = field(default_factory=RecentAnswers)
    """Recent answers about what runs cost, so that readers who ask at once share one."""
    troubles: RecentAnswers[tuple[str | None, str | None]] = field(default_factory=RecentAnswers)
    """Recent answers about what is wrong with the database and the broker."""
    signing_keys: SigningKeys = field(default_factory=SigningKeys)
    """Public keys of platforms that sign the messages they bring."""
    leaving: threading.Event = field(default_factory=threading.Event)
    """Set when this process was told to stop; it still takes requests."""
    stack: Callable[[], StackNote | None] = lambda: None
    """Reads the note of the ``hermes-worker run`` stack that works on this home, for an API that is not part of that
    stack."""
    _spawned: set[asyncio.Task[None]] = field(default_factory=set)
    _store: anyio.CapacityLimiter = field(default_factory=_make_thread_limiter(STORE_THREADS))
    _long_reads: anyio.CapacityLimiter = field(default_factory=_make_thread_limiter(LONG_READ_THREADS))
    _broker: anyio.CapacityLimiter = field(default_factory=_make_thread_limiter(BROKER_THREADS))
    _health: anyio.CapacityLimiter = field(default_factory=_make_thread_limiter(HEALTH_THREADS))

    async def call_store(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the store without blocking the event loop."""
        return await anyio.to_thread.run_sync(partial(call, *args, **kwargs), limiter=self._store)

    async def run_ends(self, run_ids: Sequence[str]) -> Mapping[str, LastStatus]:
        """Load how runs ended; open runs are left out. Raises ``UnavailableError``."""
        return await self.call_store(self.client.views.load_ends, run_ids)

    async def run_long_read(self, call: Callable[[], T]) -> T:
        """Run a long read in threads that answer no other requests."""
        return await anyio.to_thread.run_sync(call, limiter=self._long_reads)

    async def tell_broker(self, call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Tell the broker something that may be lost. It is dropped when too many announcements wait already."""
        if self._broker.statistics().tasks_waiting < ANNOUNCEMENTS_WAITING_MAX:
            await anyio.to_thread.run_sync(partial(call, *args, **kwargs), limiter=self._broker)

    def adapt_to_stack(self, submission: Submission) -> Submission:
        """Fill in the model and the endpoint of the stack that works here: it may have been started with other
        settings."""
        stack = self.stack()
        if stack is None:
            return submission
        return replace(submission, model=submission.model or stack.model_name, endpoint=stack.model_key)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine to its end even if the request that began it goes away."""
        task = asyncio.get_running_loop().create_task(work)
        self._spawned.add(task)  # the loop alone would let it be collected
        task.add_done_callback(self._spawned.discard)

    async def probe(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Ask about the state of a server. A call that is given up goes on in its thread."""
        return await anyio.to_thread.run_sync(
            partial(call, *args, **kwargs), limiter=self._health, abandon_on_cancel=True
        )


async def get_context(request: Request) -> ApiContext:
    # ``async`` although it waits for nothing: FastAPI would run it in one of forty threads of its own.
    return cast("ApiContext", request.app.state.context)


Context = Annotated[ApiContext, Depends(get_context)]
