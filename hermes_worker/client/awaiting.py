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
from hermes_worker.client.address import build_acting_headers, build_address
from hermes_worker.client.callbacks import CallbackDispatcher, Callbacks
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
    build_refusal,
    run_exchange,
)
from hermes_worker.client.streaming import Resumption, ToldEvent, read_typed, read_untyped
from hermes_worker.client.waiting import read_status, run_join
from hermes_worker.client.wire import build_arguments, build_broken_off, judge_error
from hermes_worker.core.errors import format_reason

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E")


def _sending_method(
    make: Callable[P, ApiRequest[T]],
) -> Callable[Concatenate[AsyncHermesClient, P], Coroutine[Any, Any, T]]:
    """Make the method that sends the request which ``make`` builds."""

    @functools.wraps(make)
    async def method(client: AsyncHermesClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await client.send(make(*args, **kwargs))

    return method


def _paging_method(
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
        self._address = build_address(base_url, api_key, home, tls, acting=build_acting_headers(tenant, user))
        self._patience = Patience(for_s=patience_s)
        self._http = httpx2.AsyncClient(**self._address.build_options())

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncHermesClient:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def send(self, request: ApiRequest[T]) -> T:
        """Send a request of ``operations``, again where that is safe. Raises ``RefusedError``, ``UnavailableError``."""
        return await self._drive(run_exchange(request, self._patience, time.monotonic, self._address.place))

    start = _sending_method(operations.start)
    submit = _sending_method(operations.submit)
    submit_all = _sending_method(operations.submit_all)
    runs = _paging_method(operations.runs)
    run = _sending_method(operations.run)
    sheets = _paging_method(operations.sheets)
    sheet = _sending_method(operations.sheet)
    run_news = _sending_method(operations.run_news)
    whole_id = _sending_method(operations.whole_id)
    hook_calls = _sending_method(operations.hook_calls)
    trajectory = _sending_method(operations.trajectory)
    result = _sending_method(operations.result)
    explain = _sending_method(operations.explain)
    calls = _paging_method(operations.calls)
    call = _sending_method(operations.call)
    prompt = _sending_method(operations.prompt)
    tree = _sending_method(operations.tree)
    spend = _sending_method(operations.spend)
    settings = _sending_method(operations.settings)
    told_settings = _sending_method(operations.told_settings)
    session_settings = _sending_method(operations.session_settings)
    set_session_settings = _sending_method(operations.set_session_settings)
    configuration = _sending_method(operations.configuration)
    write_configuration = _sending_method(operations.write_configuration)
    configuration_versions = _sending_method(operations.configuration_versions)
    tenant_configuration = _sending_method(operations.tenant_configuration)
    write_tenant_configuration = _sending_method(operations.write_tenant_configuration)
    tenant_configuration_versions = _sending_method(operations.tenant_configuration_versions)
    artifacts = _sending_method(operations.artifacts)
    artifact = _sending_method(operations.artifact)
    checkpoints = _sending_method(operations.checkpoints)
    diff = _sending_method(operations.diff)
    restore = _sending_method(operations.restore)
    stop = _sending_method(operations.stop)
    stop_all = _sending_method(operations.stop_all)
    retry = _sending_method(operations.retry)
    pause = _sending_method(operations.pause)
    resume = _sending_method(operations.resume)
    steer = _sending_method(operations.steer)
    approvals = _sending_method(operations.approvals)
    decisions = _paging_method(operations.decisions)
    approve = _sending_method(operations.approve)
    answer = _sending_method(operations.answer)
    jobs = _sending_method(operations.jobs)
    job = _sending_method(operations.job)
    create_job = _sending_method(operations.create_job)
    change_job = _sending_method(operations.change_job)
    remove_job = _sending_method(operations.remove_job)
    pause_job = _sending_method(operations.pause_job)
    resume_job = _sending_method(operations.resume_job)
    run_job = _sending_method(operations.run_job)
    job_history = _sending_method(operations.job_history)
    coming_slots = _sending_method(operations.coming_slots)
    job_sheets = _sending_method(operations.job_sheets)
    job_sheet = _sending_method(operations.job_sheet)
    deliveries = _paging_method(operations.deliveries)
    delivery = _sending_method(operations.delivery)
    retry_delivery = _sending_method(operations.retry_delivery)
    dead_targets = _sending_method(operations.dead_targets)
    sessions = _paging_method(operations.sessions)
    session = _sending_method(operations.session)
    create_session = _sending_method(operations.create_session)
    change_session = _sending_method(operations.change_session)
    remove_session = _sending_method(operations.remove_session)
    messages = _paging_method(operations.messages)
    fork_session = _sending_method(operations.fork_session)
    compress_session = _sending_method(operations.compress_session)
    import_session = _sending_method(operations.import_session)
    search_sessions = _sending_method(operations.search_sessions)
    session_lineage = _sending_method(operations.session_lineage)
    audit = _paging_method(operations.audit)
    memory = _sending_method(operations.memory)
    change_memory = _sending_method(operations.change_memory)
    undo_memory = _sending_method(operations.undo_memory)
    settle_memory = _sending_method(operations.settle_memory)
    redact_memory = _sending_method(operations.redact_memory)
    memory_history = _sending_method(operations.memory_history)
    limits = _sending_method(operations.limits)
    key_limits = _sending_method(operations.key_limits)
    set_key_limits = _sending_method(operations.set_key_limits)
    tenant_limits = _sending_method(operations.tenant_limits)
    set_tenant_limits = _sending_method(operations.set_tenant_limits)
    provider_keys = _sending_method(operations.provider_keys)
    add_provider_key = _sending_method(operations.add_provider_key)
    remove_provider_key = _sending_method(operations.remove_provider_key)
    change_tenant_limits = _sending_method(operations.change_tenant_limits)
    tenants = _sending_method(operations.tenants)
    create_tenant = _sending_method(operations.create_tenant)
    disable_tenant = _sending_method(operations.disable_tenant)
    enable_tenant = _sending_method(operations.enable_tenant)
    set_places = _sending_method(operations.set_places)
    keys = _sending_method(operations.keys)
    create_key = _sending_method(operations.create_key)
    rotate_key = _sending_method(operations.rotate_key)
    revoke_key = _sending_method(operations.revoke_key)
    page_login = _sending_method(operations.page_login)
    open_page_login = _sending_method(operations.open_page_login)
    close_page_login = _sending_method(operations.close_page_login)
    saved_filters = _sending_method(operations.saved_filters)
    save_filter = _sending_method(operations.save_filter)
    remove_saved_filter = _sending_method(operations.remove_saved_filter)
    gateway_accounts = _sending_method(operations.gateway_accounts)
    pair_person = _sending_method(operations.pair_person)
    remove_chat_person = _sending_method(operations.remove_chat_person)
    remove_gateway_codes = _sending_method(operations.remove_gateway_codes)
    mcp_servers = _sending_method(operations.mcp_servers)
    mcp_server = _sending_method(operations.mcp_server)
    add_mcp_server = _sending_method(operations.add_mcp_server)
    approve_mcp_server = _sending_method(operations.approve_mcp_server)
    test_mcp_server = _sending_method(operations.test_mcp_server)
    remove_mcp_server = _sending_method(operations.remove_mcp_server)
    webhook_routes = _sending_method(operations.webhook_routes)
    add_webhook_route = _sending_method(operations.add_webhook_route)
    remove_webhook_route = _sending_method(operations.remove_webhook_route)
    sign_webhook_event = _sending_method(operations.sign_webhook_event)
    retention_rules = _sending_method(operations.retention_rules)
    change_retention = _sending_method(operations.change_retention)
    holds = _sending_method(operations.holds)
    place_hold = _sending_method(operations.place_hold)
    release_hold = _sending_method(operations.release_hold)
    prune = _sending_method(operations.prune)
    foretell_erasure = _sending_method(operations.foretell_erasure)
    begin_erasure = _sending_method(operations.begin_erasure)
    replay_erasure = _sending_method(operations.replay_erasure)
    erasures = _sending_method(operations.erasures)
    work_on_erasure = _sending_method(operations.work_on_erasure)
    erasure_receipts = _sending_method(operations.erasure_receipts)
    erasure_receipt = _sending_method(operations.erasure_receipt)
    backlog = _sending_method(operations.backlog)
    workers = _sending_method(operations.workers)
    text_keys = _sending_method(operations.text_keys)
    drain_worker = _sending_method(operations.drain_worker)
    provider_states = _sending_method(operations.provider_states)
    alerts = _sending_method(operations.alerts)
    open_provider_key = _sending_method(operations.open_provider_key)
    try_alerts = _sending_method(operations.try_alerts)
    alert_targets = _sending_method(operations.alert_targets)
    set_alert_targets = _sending_method(operations.set_alert_targets)
    capabilities = _sending_method(operations.capabilities)
    toolsets = _sending_method(operations.toolsets)
    skills = _sending_method(operations.skills)
    skill = _sending_method(operations.skill)
    keep_skill = _sending_method(operations.keep_skill)
    remove_skill = _sending_method(operations.remove_skill)
    health = _sending_method(operations.health)

    async def join(
        self, run_ids: Sequence[str], *, mode: Literal["all", "any"] = "all", timeout_s: float | None = None
    ) -> JoinedDocument:
        """Wait until all of up to a thousand runs have ended, or ``any`` of them, or the time is over: ``done``, and
        ``runs`` with ``status`` of those that have ended. Raises ``RefusedError``, ``UnavailableError``."""
        place = self._address.place
        return await self._drive(run_join(run_ids, mode, timeout_s, self._patience, time.monotonic, place))

    async def wait(self, run_id: str, *, timeout_s: float | None = None) -> str | None:
        """Wait for the end of a run; its status, or ``None`` when the time was over before. Raises as ``join``."""
        return read_status(await self.join([run_id], timeout_s=timeout_s))

    def events(self, run_id: str, *, after: str = "0") -> AsyncIterator[Event]:
        """Iterate over everything that happens to a run, from its beginning (or after the event with that id) to its
        end. A connection that breaks is made again and continues where it was. Raises ``RefusedError``,
        ``UnavailableError``."""
        return self._follow_stream(functools.partial(operations.events, run_id), read_typed, after)

    def told_events(self, run_id: str, *, after: str = "0") -> AsyncIterator[ToldEvent]:
        """Iterate over the events of a run with their ids, as the server wrote them. Otherwise as ``events``."""
        return self._follow_stream(functools.partial(operations.events, run_id), read_untyped, after)

    def tree_events(self, run_id: str, *, after: str = "0") -> AsyncIterator[ToldEvent]:
        """Iterate over the events of all runs of the tree that a run is in, until the last of them has ended."""
        return self._follow_stream(functools.partial(operations.tree_events, run_id), read_untyped, after)

    def changes(self, *, after: str = "", all_tenants: bool = False) -> AsyncIterator[ToldEvent]:
        """Iterate over changes of lists as they happen, beginning with the lists that differ from what the id ``after``
        says. It never ends by itself. Raises ``RefusedError``, ``UnavailableError``."""
        return self._follow_stream(functools.partial(operations.changes, all_tenants=all_tenants), read_untyped, after)

    async def follow(self, run_id: str, callbacks: Callbacks) -> ResultDocument:
        """Follow a run to its end and call back; returns its ``result``. Raises as ``events``."""
        following = CallbackDispatcher(run_id, callbacks)
        async for event in self.events(run_id):
            if (answer := following.handle_event(event)) is not None:
                with contextlib.suppress(RefusedError):  # another answer was faster
                    await self.send(answer)
        return await self.result(run_id)

    async def export(self, whom: Mapping[str, Any], *, tenant: str | None = None) -> AsyncIterator[str]:
        """Iterate over everything of a subject as JSON Lines: see ``operations.export``. An export that breaks off
        raises, because the lines that came are not all: ask again. Raises ``RefusedError``, ``UnavailableError``."""
        request = operations.export(whom, tenant=tenant)
        rest = b""
        try:
            async with self._http.stream(**build_arguments(request)) as response:
                if response.status_code != 200:
                    raise build_refusal(
                        ApiAnswer(
                            status=response.status_code, headers=dict(response.headers), body=await response.aread()
                        )
                    )
                async for chunk in response.aiter_bytes():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        yield line.decode("utf-8")
        except httpx2.HTTPError as error:
            raise build_broken_off(self._address.place, error) from None

    async def _follow_stream(
        self, request: Callable[[str], ApiRequest[None]], read: Callable[[ToldEvent], E], after: str
    ) -> AsyncIterator[E]:
        stream = Resumption(request, read, after=after, patience_s=self._patience.for_s, clock=time.monotonic)
        while not stream.is_over:
            reason: str | None = None
            try:
                async with self._http.stream(**build_arguments(stream.request)) as response:
                    begun = ApiAnswer(
                        status=response.status_code,
                        headers=dict(response.headers),
                        body=b"" if response.status_code == 200 else await response.aread(),
                    )
                    reason = stream.judge_head(begun)
                    if reason is None:
                        async for chunk in response.aiter_bytes():
                            for event in stream.take(chunk):
                                yield event
                            if stream.is_over:
                                return
            except httpx2.HTTPError as error:
                reason = format_reason(error)
            await asyncio.sleep(stream.note_end(reason or "the stream ended"))

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
                    heard = await self._send_request(step.request)
                case PauseStep():
                    await asyncio.sleep(step.seconds)
                    heard = None

    async def _send_request(self, request: ApiRequest[Any]) -> ApiAnswer | LostAnswer:
        try:
            async with self._http.stream(**build_arguments(request)) as response:
                body = bytearray()
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > ANSWER_BYTES_MAX:
                        return LostAnswer(reason=f"the answer is longer than {ANSWER_BYTES_MAX:,} bytes")
                return ApiAnswer(status=response.status_code, headers=dict(response.headers), body=bytes(body))
        except httpx2.HTTPError as error:
            return judge_error(error)
