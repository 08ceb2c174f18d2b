"""The client for asyncio: the methods of ``blocking`` as coroutines, and streams as asynchronous iterators."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import httpx2

from hermes_worker.client import operations
from hermes_worker.client.address import acting_headers, address_of
from hermes_worker.client.callbacks import Callbacks, Following
from hermes_worker.client.documents import JoinedDocument, ResultDocument
from hermes_worker.client.events import Event
from hermes_worker.client.exchange import (
    ANSWER_BYTES_MAX,
    ApiAnswer,
    ApiRequest,
    Exchange,
    Heard,
    LostAnswer,
    Patience,
    PauseStep,
    RefusedError,
    SendStep,
    exchange,
    refusal,
)
from hermes_worker.client.streaming import Resumption, ToldEvent, typed, untyped
from hermes_worker.client.waiting import joining, status_of
from hermes_worker.client.wire import broken_off, lost, parts_of
from hermes_worker.core.errors import reason_of

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E")


def _sends(make: Callable[P, ApiRequest[T]]) -> Callable[Concatenate[AsyncHermesClient, P], Coroutine[Any, Any, T]]:
    """Make the method that sends the request which ``make`` builds."""

    @functools.wraps(make)
    async def method(client: AsyncHermesClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await client.send(make(*args, **kwargs))

    return method


def _pages(
    make: Callable[P, ApiRequest[operations.Portion[T]]],
) -> Callable[Concatenate[AsyncHermesClient, P], AsyncIterator[T]]:
    """The method that asks for page after page."""

    @functools.wraps(make)
    async def method(client: AsyncHermesClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        request: ApiRequest[operations.Portion[T]] | None = make(*args, **kwargs)
        while request is not None:
            page = await client.send(request)
            for item in page.items:
                yield item
            request = page.following

    return method


class AsyncHermesClient:
    """A client of one API server, for one event loop."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        home: Path | None = None,
        patience_s: float = 60.0,
        tls: ssl.SSLContext | None = None,
        tenant: str | None = None,
        user: str | None = None,
    ) -> None:
        """Connect to the server at ``base_url``.

        Without ``api_key`` the key of the installation in ``home`` is used (``None``: HERMES_HOME, else
        ``~/.hermes-worker``); it is sent to a server of this machine, or, when you name the ``home``, to any.
        ``patience_s`` is for how long a request is sent again, where that is safe, and a broken stream is resumed,
        before that is an error. ``tls`` is for an authority of your own, and for a certificate of this client. With the
        installation's own key, ``tenant`` is the tenant that it acts for, and ``user`` the person at the command line.

        Raises ``ConfigurationError`` when the address or the key cannot be used.
        """
        self._address = address_of(base_url, api_key, home, tls, acting=acting_headers(tenant, user))
        self._patience = Patience(for_s=patience_s)
        self._http = httpx2.AsyncClient(**self._address.options())

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncHermesClient:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def send(self, request: ApiRequest[T]) -> T:
        """Send a request of ``operations``, again where that is safe. Raises ``RefusedError``, ``UnavailableError``."""
        return await self._drive(exchange(request, self._patience, time.monotonic, self._address.place))

    start = _sends(operations.start)
    submit = _sends(operations.submit)
    submit_all = _sends(operations.submit_all)
    runs = _pages(operations.runs)
    run = _sends(operations.run)
    sheets = _pages(operations.sheets)
    sheet = _sends(operations.sheet)
    run_news = _sends(operations.run_news)
    whole_id = _sends(operations.whole_id)
    hook_calls = _sends(operations.hook_calls)
    trajectory = _sends(operations.trajectory)
    result = _sends(operations.result)
    explain = _sends(operations.explain)
    calls = _pages(operations.calls)
    call = _sends(operations.call)
    prompt = _sends(operations.prompt)
    tree = _sends(operations.tree)
    spend = _sends(operations.spend)
    settings = _sends(operations.settings)
    told_settings = _sends(operations.told_settings)
    session_settings = _sends(operations.session_settings)
    set_session_settings = _sends(operations.set_session_settings)
    configuration = _sends(operations.configuration)
    write_configuration = _sends(operations.write_configuration)
    configuration_versions = _sends(operations.configuration_versions)
    tenant_configuration = _sends(operations.tenant_configuration)
    write_tenant_configuration = _sends(operations.write_tenant_configuration)
    tenant_configuration_versions = _sends(operations.tenant_configuration_versions)
    artifacts = _sends(operations.artifacts)
    artifact = _sends(operations.artifact)
    checkpoints = _sends(operations.checkpoints)
    diff = _sends(operations.diff)
    restore = _sends(operations.restore)
    stop = _sends(operations.stop)
    stop_all = _sends(operations.stop_all)
    retry = _sends(operations.retry)
    pause = _sends(operations.pause)
    resume = _sends(operations.resume)
    steer = _sends(operations.steer)
    approvals = _sends(operations.approvals)
    decisions = _pages(operations.decisions)
    approve = _sends(operations.approve)
    answer = _sends(operations.answer)
    jobs = _sends(operations.jobs)
    job = _sends(operations.job)
    create_job = _sends(operations.create_job)
    change_job = _sends(operations.change_job)
    remove_job = _sends(operations.remove_job)
    pause_job = _sends(operations.pause_job)
    resume_job = _sends(operations.resume_job)
    run_job = _sends(operations.run_job)
    job_history = _sends(operations.job_history)
    coming_slots = _sends(operations.coming_slots)
    job_sheets = _sends(operations.job_sheets)
    job_sheet = _sends(operations.job_sheet)
    deliveries = _pages(operations.deliveries)
    delivery = _sends(operations.delivery)
    retry_delivery = _sends(operations.retry_delivery)
    dead_targets = _sends(operations.dead_targets)
    sessions = _pages(operations.sessions)
    session = _sends(operations.session)
    create_session = _sends(operations.create_session)
    change_session = _sends(operations.change_session)
    remove_session = _sends(operations.remove_session)
    messages = _pages(operations.messages)
    fork_session = _sends(operations.fork_session)
    compress_session = _sends(operations.compress_session)
    import_session = _sends(operations.import_session)
    search_sessions = _sends(operations.search_sessions)
    session_lineage = _sends(operations.session_lineage)
    audit = _pages(operations.audit)
    memory = _sends(operations.memory)
    change_memory = _sends(operations.change_memory)
    undo_memory = _sends(operations.undo_memory)
    settle_memory = _sends(operations.settle_memory)
    redact_memory = _sends(operations.redact_memory)
    memory_history = _sends(operations.memory_history)
    limits = _sends(operations.limits)
    key_limits = _sends(operations.key_limits)
    set_key_limits = _sends(operations.set_key_limits)
    tenant_limits = _sends(operations.tenant_limits)
    set_tenant_limits = _sends(operations.set_tenant_limits)
    provider_keys = _sends(operations.provider_keys)
    add_provider_key = _sends(operations.add_provider_key)
    remove_provider_key = _sends(operations.remove_provider_key)
    change_tenant_limits = _sends(operations.change_tenant_limits)
    tenants = _sends(operations.tenants)
    create_tenant = _sends(operations.create_tenant)
    disable_tenant = _sends(operations.disable_tenant)
    enable_tenant = _sends(operations.enable_tenant)
    set_places = _sends(operations.set_places)
    keys = _sends(operations.keys)
    create_key = _sends(operations.create_key)
    rotate_key = _sends(operations.rotate_key)
    revoke_key = _sends(operations.revoke_key)
    page_login = _sends(operations.page_login)
    open_page_login = _sends(operations.open_page_login)
    close_page_login = _sends(operations.close_page_login)
    saved_filters = _sends(operations.saved_filters)
    save_filter = _sends(operations.save_filter)
    remove_saved_filter = _sends(operations.remove_saved_filter)
    gateway_accounts = _sends(operations.gateway_accounts)
    pair_person = _sends(operations.pair_person)
    remove_chat_person = _sends(operations.remove_chat_person)
    remove_gateway_codes = _sends(operations.remove_gateway_codes)
    mcp_servers = _sends(operations.mcp_servers)
    mcp_server = _sends(operations.mcp_server)
    add_mcp_server = _sends(operations.add_mcp_server)
    approve_mcp_server = _sends(operations.approve_mcp_server)
    test_mcp_server = _sends(operations.test_mcp_server)
    remove_mcp_server = _sends(operations.remove_mcp_server)
    webhook_routes = _sends(operations.webhook_routes)
    add_webhook_route = _sends(operations.add_webhook_route)
    remove_webhook_route = _sends(operations.remove_webhook_route)
    sign_webhook_event = _sends(operations.sign_webhook_event)
    retention_rules = _sends(operations.retention_rules)
    change_retention = _sends(operations.change_retention)
    holds = _sends(operations.holds)
    place_hold = _sends(operations.place_hold)
    release_hold = _sends(operations.release_hold)
    prune = _sends(operations.prune)
    foretell_erasure = _sends(operations.foretell_erasure)
    begin_erasure = _sends(operations.begin_erasure)
    replay_erasure = _sends(operations.replay_erasure)
    erasures = _sends(operations.erasures)
    work_on_erasure = _sends(operations.work_on_erasure)
    erasure_receipts = _sends(operations.erasure_receipts)
    erasure_receipt = _sends(operations.erasure_receipt)
    backlog = _sends(operations.backlog)
    workers = _sends(operations.workers)
    text_keys = _sends(operations.text_keys)
    drain_worker = _sends(operations.drain_worker)
    provider_states = _sends(operations.provider_states)
    alerts = _sends(operations.alerts)
    open_provider_key = _sends(operations.open_provider_key)
    try_alerts = _sends(operations.try_alerts)
    alert_targets = _sends(operations.alert_targets)
    set_alert_targets = _sends(operations.set_alert_targets)
    capabilities = _sends(operations.capabilities)
    toolsets = _sends(operations.toolsets)
    skills = _sends(operations.skills)
    skill = _sends(operations.skill)
    keep_skill = _sends(operations.keep_skill)
    remove_skill = _sends(operations.remove_skill)
    health = _sends(operations.health)

    async def join(
        self, run_ids: Sequence[str], *, mode: Literal["all", "any"] = "all", timeout_s: float | None = None
    ) -> JoinedDocument:
        """Wait until all of up to a thousand runs have ended, or ``any`` of them, or the time is over: ``done``, and
        ``runs`` with ``status`` of those that have ended. Raises ``RefusedError``, ``UnavailableError``."""
        place = self._address.place
        return await self._drive(joining(run_ids, mode, timeout_s, self._patience, time.monotonic, place))

    async def wait(self, run_id: str, *, timeout_s: float | None = None) -> str | None:
        """Wait for the end of a run; its status, or ``None`` when the time was over before. Raises as ``join``."""
        return status_of(await self.join([run_id], timeout_s=timeout_s))

    def events(self, run_id: str, *, after: str = "0") -> AsyncIterator[Event]:
        """Iterate over everything that happens to a run, from its beginning (or after the event with that id) to its
        end. A connection that breaks is made again and continues where it was. Raises ``RefusedError``,
        ``UnavailableError``."""
        return self._followed(functools.partial(operations.events, run_id), typed, after)

    def told_events(self, run_id: str, *, after: str = "0") -> AsyncIterator[ToldEvent]:
        """Iterate over the events of a run with their ids, as the server wrote them. Otherwise as ``events``."""
        return self._followed(functools.partial(operations.events, run_id), untyped, after)

    def tree_events(self, run_id: str, *, after: str = "0") -> AsyncIterator[ToldEvent]:
        """Iterate over the events of all runs of the tree that a run is in, until the last of them has ended."""
        return self._followed(functools.partial(operations.tree_events, run_id), untyped, after)

    def changes(self, *, after: str = "", all_tenants: bool = False) -> AsyncIterator[ToldEvent]:
        """Iterate over changes of lists as they happen, beginning with the lists that differ from what the id ``after``
        says. It never ends by itself. Raises ``RefusedError``, ``UnavailableError``."""
        return self._followed(functools.partial(operations.changes, all_tenants=all_tenants), untyped, after)

    async def follow(self, run_id: str, callbacks: Callbacks) -> ResultDocument:
        """Follow a run to its end and call back; returns its ``result``. Raises as ``events``."""
        following = Following(run_id, callbacks)
        async for event in self.events(run_id):
            if (answer := following.take(event)) is not None:
                with contextlib.suppress(RefusedError):  # another answer was faster
                    await self.send(answer)
        return await self.result(run_id)

    async def export(self, whom: Mapping[str, Any], *, tenant: str | None = None) -> AsyncIterator[str]:
        """Iterate over everything of a subject as JSON Lines: see ``operations.export``. An export that breaks off
        raises, because the lines that came are not all: ask again. Raises ``RefusedError``, ``UnavailableError``."""
        request = operations.export(whom, tenant=tenant)
        rest = b""
        try:
            async with self._http.stream(**parts_of(request)) as response:
                if response.status_code != 200:
                    raise refusal(
                        ApiAnswer(
                            status=response.status_code, headers=dict(response.headers), body=await response.aread()
                        )
                    )
                async for chunk in response.aiter_bytes():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        yield line.decode("utf-8")
        except httpx2.HTTPError as error:
            raise broken_off(self._address.place, error) from None

    async def _followed(
        self, request: Callable[[str], ApiRequest[None]], read: Callable[[ToldEvent], E], after: str
    ) -> AsyncIterator[E]:
        stream = Resumption(request, read, after=after, patience_s=self._patience.for_s, clock=time.monotonic)
        while not stream.is_over:
            reason: str | None = None
            try:
                async with self._http.stream(**parts_of(stream.request)) as response:
                    begun = ApiAnswer(
                        status=response.status_code,
                        headers=dict(response.headers),
                        body=b"" if response.status_code == 200 else await response.aread(),
                    )
                    reason = stream.begun(begun)
                    if reason is None:
                        async for chunk in response.aiter_bytes():
                            for event in stream.take(chunk):
                                yield event
                            if stream.is_over:
                                return
            except httpx2.HTTPError as error:
                reason = reason_of(error)
            await asyncio.sleep(stream.ended(reason or "the stream ended"))

    async def _drive(self, asking: Exchange[T]) -> T:
        heard: Heard = None
        while True:
            try:
                step = asking.send(heard)
            except StopIteration as end:
                result: T = end.value
                return result
            match step:
                case SendStep():
                    heard = await self._sent(step.request)
                case PauseStep():
                    await asyncio.sleep(step.seconds)
                    heard = None

    async def _sent(self, request: ApiRequest[Any]) -> ApiAnswer | LostAnswer:
        try:
            async with self._http.stream(**parts_of(request)) as response:
                body = bytearray()
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > ANSWER_BYTES_MAX:
                        return LostAnswer(reason=f"the answer is longer than {ANSWER_BYTES_MAX:,} bytes")
                return ApiAnswer(status=response.status_code, headers=dict(response.headers), body=bytes(body))
        except httpx2.HTTPError as error:
            return lost(error)
