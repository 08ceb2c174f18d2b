"""What the routes share: the client, the readers, and the threads in which blocking calls run."""

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

from hermes_worker.api.recent import RecentAnswers
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
"""Calls of the store at once. Fewer than there are database connections, so that nobody queues for one in a thread."""
BROKER_THREADS = 4
"""Apart from those of the store: a broker that swallows packets must not stop the API."""
LONG_READ_THREADS = 2
"""For exports: they hold a connection of the database for as long as their reader takes."""
HEALTH_THREADS = 2
"""Apart from both: health is asked for when the others are stuck."""
ANNOUNCEMENTS_WAITING_MAX = 1_000
"""More than this are not sent: they are hints, and a broker that slow is better left to the sweeper."""


def _threads(total: int) -> Callable[[], anyio.CapacityLimiter]:
    return lambda: anyio.CapacityLimiter(total)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiContext:
    """One per application."""

    client: Client
    followers: Followers
    changes: ChangeWatchers
    policy: FollowPolicy
    keyring: Keyring
    """Opens the secrets of webhook routes."""
    proofs: Keyring
    """Says that a cursor or an address of a file is from here. Nothing in a row is sealed with it."""
    tenants: Tenants
    page_logins: PageLogins
    began_at: int = field(default_factory=lambda: int(time.time()))
    """When this process began, in epoch seconds."""
    waiting: WaitingRequests = field(default_factory=WaitingRequests)
    """Requests that wait for the end of runs."""
    spent: RecentAnswers[Any] = field(default_factory=RecentAnswers)
    """What runs cost, as somebody just asked."""
    troubles: RecentAnswers[tuple[str | None, str | None]] = field(default_factory=RecentAnswers)
    """What is wrong with the database and the broker, as somebody just asked."""
    signing_keys: SigningKeys = field(default_factory=SigningKeys)
    """Of platforms that bring what people write."""
    leaving: threading.Event = field(default_factory=threading.Event)
    """Set when this process was told to stop and still takes requests."""
    stack: Callable[[], StackNote | None] = lambda: None
    """The stack of ``hermes-worker run`` that does the work on this home, for an API that is no part of it."""
    _spawned: set[asyncio.Task[None]] = field(default_factory=set)
    _store: anyio.CapacityLimiter = field(default_factory=_threads(STORE_THREADS))
    _long_reads: anyio.CapacityLimiter = field(default_factory=_threads(LONG_READ_THREADS))
    _broker: anyio.CapacityLimiter = field(default_factory=_threads(BROKER_THREADS))
    _health: anyio.CapacityLimiter = field(default_factory=_threads(HEALTH_THREADS))

    async def store(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the store without blocking the event loop."""
        return await anyio.to_thread.run_sync(partial(call, *args, **kwargs), limiter=self._store)

    async def run_ends(self, run_ids: Sequence[str]) -> Mapping[str, LastStatus]:
        """How those of the runs ended that have. Raises ``UnavailableError``."""
        return await self.store(self.client.views.ends, run_ids)

    async def long_read(self, call: Callable[[], T]) -> T:
        """Read much, in a thread apart from those of requests that are answered at once."""
        return await anyio.to_thread.run_sync(call, limiter=self._long_reads)

    async def tell_broker(self, call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Tell the broker something that may be lost. Dropped when too much waits already."""
        if self._broker.statistics().tasks_waiting < ANNOUNCEMENTS_WAITING_MAX:
            await anyio.to_thread.run_sync(partial(call, *args, **kwargs), limiter=self._broker)

    def on_stack(self, submission: Submission) -> Submission:
        """For whoever works here: they may have been started with other settings than these."""
        stack = self.stack()
        if stack is None:
            return submission
        return replace(submission, model=submission.model or stack.model_name, endpoint=stack.model_key)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something whether or not the request that it is for is still there."""
        task = asyncio.get_running_loop().create_task(work)
        self._spawned.add(task)  # the loop alone would let it be collected
        task.add_done_callback(self._spawned.discard)

    async def probe(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Ask something about the state of a server. A call that is given up goes on in its thread."""
        return await anyio.to_thread.run_sync(
            partial(call, *args, **kwargs), limiter=self._health, abandon_on_cancel=True
        )


async def context_of(request: Request) -> ApiContext:
    # ``async`` although it waits for nothing: FastAPI would run it in one of forty threads of its own.
    return cast("ApiContext", request.app.state.context)


Context = Annotated[ApiContext, Depends(context_of)]
