"""The methods of both kinds of clients, one for each operation, with their types for either kind. Composes the
operations of the kernel and those of all features."""

from __future__ import annotations

import functools
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from hermes_worker.client import operations
from hermes_worker.client.address import Address, build_acting_headers, build_address
from hermes_worker.client.conversation import ClientConversation, ClientTransport
from hermes_worker.operation import ApiRequest, Portion

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class UnloadedOperation:
    """An operation of a feature whose module is not imported yet."""

    module: str
    name: str

    def load(self) -> Any:
        """Import the operation."""
        return getattr(import_module(self.module), self.name)


class FeatureOperations:
    """The operations of a feature, by their names. They are imported when one is used: schemas need pydantic, which
    takes longer than all that the client itself imports, and most programs use few features."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> UnloadedOperation:
        return UnloadedOperation(self._module, name)


if TYPE_CHECKING:
    from hermes_worker.features.alerts import operations as of_alerts
    from hermes_worker.features.artifacts import operations as of_artifacts
    from hermes_worker.features.audit import operations as of_audit
    from hermes_worker.features.checkpoints import operations as of_checkpoints
    from hermes_worker.features.configurations import operations as of_configurations
    from hermes_worker.features.deliveries import operations as of_deliveries
    from hermes_worker.features.encryption import operations as of_encryption
    from hermes_worker.features.forks import operations as of_forks
    from hermes_worker.features.mcp_servers import operations as of_mcp_servers
    from hermes_worker.features.memory import operations as of_memory
    from hermes_worker.features.provider_keys import operations as of_provider_keys
    from hermes_worker.features.retention import operations as of_retention
    from hermes_worker.features.skills import operations as of_skills
    from hermes_worker.features.spend import operations as of_spend
    from hermes_worker.features.tenants import operations as of_tenants
    from hermes_worker.features.webhooks import operations as of_webhooks
else:
    of_alerts = FeatureOperations("hermes_worker.features.alerts.operations")
    of_artifacts = FeatureOperations("hermes_worker.features.artifacts.operations")
    of_audit = FeatureOperations("hermes_worker.features.audit.operations")
    of_checkpoints = FeatureOperations("hermes_worker.features.checkpoints.operations")
    of_configurations = FeatureOperations("hermes_worker.features.configurations.operations")
    of_deliveries = FeatureOperations("hermes_worker.features.deliveries.operations")
    of_encryption = FeatureOperations("hermes_worker.features.encryption.operations")
    of_forks = FeatureOperations("hermes_worker.features.forks.operations")
    of_mcp_servers = FeatureOperations("hermes_worker.features.mcp_servers.operations")
    of_memory = FeatureOperations("hermes_worker.features.memory.operations")
    of_provider_keys = FeatureOperations("hermes_worker.features.provider_keys.operations")
    of_retention = FeatureOperations("hermes_worker.features.retention.operations")
    of_skills = FeatureOperations("hermes_worker.features.skills.operations")
    of_spend = FeatureOperations("hermes_worker.features.spend.operations")
    of_tenants = FeatureOperations("hermes_worker.features.tenants.operations")
    of_webhooks = FeatureOperations("hermes_worker.features.webhooks.operations")


class CallMethod(Protocol[P, T_co]):
    """A method that returns what the server answers: at once, or as a coroutine."""

    @overload
    def __get__(self, client: BlockingMethods, kind: Any = None) -> Callable[P, T_co]: ...

    @overload
    def __get__(self, client: AwaitingMethods, kind: Any = None) -> Callable[P, Coroutine[Any, Any, T_co]]: ...

    @overload
    def __get__(self, client: None, kind: type[BlockingMethods]) -> Callable[Concatenate[BlockingMethods, P], T_co]: ...

    @overload
    def __get__(
        self, client: None, kind: type[AwaitingMethods]
    ) -> Callable[Concatenate[AwaitingMethods, P], Coroutine[Any, Any, T_co]]: ...


class IterationMethod(Protocol[P, T_co]):
    """A method that iterates over what the server sends."""

    @overload
    def __get__(self, client: BlockingMethods, kind: Any = None) -> Callable[P, Iterator[T_co]]: ...

    @overload
    def __get__(self, client: AwaitingMethods, kind: Any = None) -> Callable[P, AsyncIterator[T_co]]: ...

    @overload
    def __get__(
        self, client: None, kind: type[BlockingMethods]
    ) -> Callable[Concatenate[BlockingMethods, P], Iterator[T_co]]: ...

    @overload
    def __get__(
        self, client: None, kind: type[AwaitingMethods]
    ) -> Callable[Concatenate[AwaitingMethods, P], AsyncIterator[T_co]]: ...


def _call(make: Callable[Concatenate[ClientConversation, P], Coroutine[Any, Any, T]]) -> CallMethod[P, T]:
    """Make the method that runs a coroutine of the conversation."""

    @functools.wraps(make)
    def method(client: ClientMethods, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return client._finish(make(client._conversation, *args, **kwargs))

    return cast("CallMethod[P, T]", method)


def _iterate(make: Callable[Concatenate[ClientConversation, P], AsyncGenerator[T, None]]) -> IterationMethod[P, T]:
    """Make the method that iterates over an asynchronous iterator of the conversation."""

    @functools.wraps(make)
    def method(client: ClientMethods, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return client._finish_iteration(make(client._conversation, *args, **kwargs))

    return cast("IterationMethod[P, T]", method)


class LazyMethod:
    """A method that is made when it is first looked up on a client or its class."""

    def __init__(self, make_method: Callable[[Any], Any], operation: UnloadedOperation) -> None:
        self._make_method = make_method
        self._operation = operation

    def __get__(self, client: Any, kind: Any = None) -> Any:
        return self._method.__get__(client, kind)

    @functools.cached_property
    def _method(self) -> Any:
        # Two threads may make it at once; either is as good.
        return self._make_method(self._operation.load())


def _send(make: Callable[P, ApiRequest[T]]) -> CallMethod[P, T]:
    """Make the method that sends the request which ``make`` builds."""
    if isinstance(make, UnloadedOperation):
        return cast("CallMethod[P, T]", LazyMethod(_send, make))

    @functools.wraps(make)
    async def send(conversation: ClientConversation, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await conversation.send(make(*args, **kwargs))

    return _call(send)


def _make_page_method(make: Callable[P, ApiRequest[Portion[T]]]) -> IterationMethod[P, T]:
    """Make the method that iterates over a list, page after page."""
    if isinstance(make, UnloadedOperation):
        return cast("IterationMethod[P, T]", LazyMethod(_make_page_method, make))

    @functools.wraps(make)
    async def read_pages(
        conversation: ClientConversation, /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[T, None]:
        request: ApiRequest[Portion[T]] | None = make(*args, **kwargs)
        while request is not None:
            page = await conversation.send(request)
            for item in page.items:
                yield item
            request = page.following

    return _iterate(read_pages)


class ClientMethods(ABC):
    """The methods of a client of one API server."""

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
        address = build_address(base_url, api_key, home, tls, acting=build_acting_headers(tenant, user))
        self._conversation = ClientConversation(address, patience_s, self._open_transport(address))

    @abstractmethod
    def _open_transport(self, address: Address) -> ClientTransport:
        """Open a transport to a server."""

    @abstractmethod
    def _finish(self, coroutine: Coroutine[Any, Any, T]) -> Any:
        """Return what a method of this kind of client returns for a coroutine."""

    @abstractmethod
    def _finish_iteration(self, items: AsyncGenerator[T, None]) -> Any:
        """Return what a method of this kind of client returns for an asynchronous iterator."""

    close = _call(ClientConversation.close)
    start = _send(operations.start)
    submit = _send(operations.submit)
    submit_all = _send(operations.submit_all)
    runs = _make_page_method(operations.runs)
    run = _send(operations.run)
    sheets = _make_page_method(operations.sheets)
    sheet = _send(operations.sheet)
    run_news = _send(operations.run_news)
    whole_id = _send(operations.whole_id)
    hook_calls = _send(operations.hook_calls)
    trajectory = _send(operations.trajectory)
    result = _send(operations.result)
    explain = _send(operations.explain)
    calls = _make_page_method(operations.calls)
    call = _send(operations.call)
    prompt = _send(operations.prompt)
    tree = _send(operations.tree)
    spend = _send(of_spend.spend)
    settings = _send(operations.settings)
    told_settings = _send(operations.told_settings)
    session_settings = _send(operations.session_settings)
    set_session_settings = _send(operations.set_session_settings)
    configuration = _send(of_configurations.configuration)
    write_configuration = _send(of_configurations.write_configuration)
    configuration_versions = _send(of_configurations.configuration_versions)
    tenant_configuration = _send(of_configurations.tenant_configuration)
    write_tenant_configuration = _send(of_configurations.write_tenant_configuration)
    tenant_configuration_versions = _send(of_configurations.tenant_configuration_versions)
    artifacts = _send(of_artifacts.artifacts)
    artifact = _send(of_artifacts.artifact)
    checkpoints = _send(of_checkpoints.checkpoints)
    diff = _send(of_checkpoints.diff)
    restore = _send(of_checkpoints.restore)
    stop = _send(operations.stop)
    stop_all = _send(operations.stop_all)
    retry = _send(operations.retry)
    fork_run = _send(of_forks.fork_run)
    replays = _send(of_forks.replays)
    replay = _send(of_forks.replay)
    grade_replay = _send(of_forks.grade_replay)
    compare_runs = _send(of_forks.compare_runs)
    pause = _send(operations.pause)
    resume = _send(operations.resume)
    steer = _send(operations.steer)
    approvals = _send(operations.approvals)
    decisions = _make_page_method(operations.decisions)
    approve = _send(operations.approve)
    answer = _send(operations.answer)
    jobs = _send(operations.jobs)
    job = _send(operations.job)
    create_job = _send(operations.create_job)
    change_job = _send(operations.change_job)
    remove_job = _send(operations.remove_job)
    pause_job = _send(operations.pause_job)
    resume_job = _send(operations.resume_job)
    run_job = _send(operations.run_job)
    job_history = _send(operations.job_history)
    coming_slots = _send(operations.coming_slots)
    job_sheets = _send(operations.job_sheets)
    job_sheet = _send(operations.job_sheet)
    deliveries = _make_page_method(of_deliveries.deliveries)
    delivery = _send(of_deliveries.delivery)
    send_message = _send(of_deliveries.send_message)
    retry_delivery = _send(of_deliveries.retry_delivery)
    dead_targets = _send(of_deliveries.dead_targets)
    sessions = _make_page_method(operations.sessions)
    session = _send(operations.session)
    create_session = _send(operations.create_session)
    change_session = _send(operations.change_session)
    remove_session = _send(operations.remove_session)
    messages = _make_page_method(operations.messages)
    fork_session = _send(operations.fork_session)
    compress_session = _send(operations.compress_session)
    import_session = _send(operations.import_session)
    search_sessions = _send(operations.search_sessions)
    session_lineage = _send(operations.session_lineage)
    audit = _make_page_method(of_audit.audit)
    memory = _send(of_memory.memory)
    change_memory = _send(of_memory.change_memory)
    undo_memory = _send(of_memory.undo_memory)
    settle_memory = _send(of_memory.settle_memory)
    redact_memory = _send(of_memory.redact_memory)
    memory_history = _send(of_memory.memory_history)
    limits = _send(of_tenants.limits)
    key_limits = _send(of_tenants.key_limits)
    set_key_limits = _send(of_tenants.set_key_limits)
    tenant_limits = _send(of_tenants.tenant_limits)
    set_tenant_limits = _send(of_tenants.set_tenant_limits)
    provider_keys = _send(of_provider_keys.provider_keys)
    add_provider_key = _send(of_provider_keys.add_provider_key)
    remove_provider_key = _send(of_provider_keys.remove_provider_key)
    change_tenant_limits = _send(of_tenants.change_tenant_limits)
    tenants = _send(of_tenants.tenants)
    create_tenant = _send(of_tenants.create_tenant)
    disable_tenant = _send(of_tenants.disable_tenant)
    enable_tenant = _send(of_tenants.enable_tenant)
    set_places = _send(of_tenants.set_places)
    keys = _send(of_tenants.keys)
    create_key = _send(of_tenants.create_key)
    rotate_key = _send(of_tenants.rotate_key)
    revoke_key = _send(of_tenants.revoke_key)
    page_login = _send(operations.page_login)
    open_page_login = _send(operations.open_page_login)
    close_page_login = _send(operations.close_page_login)
    saved_filters = _send(operations.saved_filters)
    save_filter = _send(operations.save_filter)
    remove_saved_filter = _send(operations.remove_saved_filter)
    gateway_accounts = _send(operations.gateway_accounts)
    pair_person = _send(operations.pair_person)
    remove_chat_person = _send(operations.remove_chat_person)
    remove_gateway_codes = _send(operations.remove_gateway_codes)
    mcp_servers = _send(of_mcp_servers.mcp_servers)
    mcp_server = _send(of_mcp_servers.mcp_server)
    add_mcp_server = _send(of_mcp_servers.add_mcp_server)
    approve_mcp_server = _send(of_mcp_servers.approve_mcp_server)
    test_mcp_server = _send(of_mcp_servers.test_mcp_server)
    remove_mcp_server = _send(of_mcp_servers.remove_mcp_server)
    webhook_routes = _send(of_webhooks.webhook_routes)
    add_webhook_route = _send(of_webhooks.add_webhook_route)
    remove_webhook_route = _send(of_webhooks.remove_webhook_route)
    sign_webhook_event = _send(of_webhooks.sign_webhook_event)
    retention_rules = _send(of_retention.retention_rules)
    change_retention = _send(of_retention.change_retention)
    holds = _send(of_retention.holds)
    place_hold = _send(of_retention.place_hold)
    release_hold = _send(of_retention.release_hold)
    prune = _send(of_retention.prune)
    foretell_erasure = _send(of_retention.foretell_erasure)
    begin_erasure = _send(of_retention.begin_erasure)
    replay_erasure = _send(of_retention.replay_erasure)
    erasures = _send(of_retention.erasures)
    work_on_erasure = _send(of_retention.work_on_erasure)
    erasure_receipts = _send(of_retention.erasure_receipts)
    erasure_receipt = _send(of_retention.erasure_receipt)
    backlog = _send(operations.backlog)
    workers = _send(operations.workers)
    text_keys = _send(of_encryption.text_keys)
    drain_worker = _send(operations.drain_worker)
    provider_states = _send(operations.provider_states)
    alerts = _send(of_alerts.alerts)
    open_provider_key = _send(operations.open_provider_key)
    try_alerts = _send(of_alerts.try_alerts)
    alert_targets = _send(of_alerts.alert_targets)
    set_alert_targets = _send(of_alerts.set_alert_targets)
    capabilities = _send(operations.capabilities)
    toolsets = _send(operations.toolsets)
    skills = _send(operations.skills)
    skill = _send(of_skills.skill)
    keep_skill = _send(of_skills.keep_skill)
    remove_skill = _send(of_skills.remove_skill)
    health = _send(operations.health)
    join = _call(ClientConversation.join)
    wait = _call(ClientConversation.wait)
    events = _iterate(ClientConversation.events)
    told_events = _iterate(ClientConversation.told_events)
    tree_events = _iterate(ClientConversation.tree_events)
    changes = _iterate(ClientConversation.changes)
    follow = _call(ClientConversation.follow)
    export = _iterate(ClientConversation.export)


class BlockingMethods(ClientMethods):
    """Methods that return when the server has answered."""


class AwaitingMethods(ClientMethods):
    """Methods that return coroutines and asynchronous iterators."""
