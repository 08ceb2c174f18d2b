"""Everything that can be configured, read once. The only module that looks at the environment, ``.env`` or
``config.yaml``; the rest of the program receives what it needs.

A value comes from the first of these that has one: the command line (``overrides``), the environment, ``.env`` in the
home directory, the configuration of the fleet in the database, ``config.yaml`` in the home directory, the preset, the
default. An empty variable counts as not set, because that is what an unset variable becomes in a compose file.

Each setting is declared once, as a field: its key, its variables, what it may hold, its default and its meaning. The
page docs/reference/settings.md is made from that (``docs/make_reference.py``). Keys that Hermes Agent also has
keep its names, so that its ``config.yaml`` can be used as it is; what we do not use of it is noted and ignored.
"""

from __future__ import annotations

import ast
import difflib
import ipaddress
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import yaml

from hermes_worker import installed
from hermes_worker.core.budget import BudgetMode
from hermes_worker.core.chat_accounts import ACCOUNT_PATTERN, RULE_PATTERN, ChatRules, strip_account_suffix
from hermes_worker.core.chat_commands import COMMAND_RULE
from hermes_worker.core.credentials import Strategy
from hermes_worker.core.delegation import TURNS_MAX
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.settings.kinds import (
    APPROVALS_MODE,
    ARTIFACT_PATTERNS,
    BROKER_URL,
    CONTAINER_ENGINE,
    DATABASE_URL,
    DIRECTORY,
    FALLBACKS,
    FAULT_PLAN,
    FILE,
    HOST,
    MODEL_SHARES,
    NO_OPTIONS,
    NO_TEXT_KEY,
    PRICES,
    PROVIDER_OPTIONS,
    RETENTION_RULES,
    SECRET,
    SECRETS,
    SERVER_KEY,
    SWITCH,
    TENANT_KEYS,
    TEXT_KEYS,
    UMASK,
    VARIABLES,
    WEB_URL,
    ProviderOptions,
    Secret,
    SettingKind,
    TenantKey,
    command_lines,
    convert_socket_url,
    integer,
    list_of_names,
    number,
    one_of,
    optional_integer,
    optional_number,
    text_matching,
)
from hermes_worker.settings.presets import PRESET, PRESET_KEYS, find_preset_value
from hermes_worker.settings.retired import RETIRED, RetiredSetting
from hermes_worker.settings.role_secrets import (
    PROVIDER_SECRETS,
    READ_BY_LIBRARIES,
    ProcessRole,
    find_owners,
    list_withheld,
)
from hermes_worker.settings.secret_files import find_named_files, read_files
from hermes_worker.settings.secret_transfer import STARTED_UMASK, Handover, take_handover
from hermes_worker.settings.sentinels import parse_sentinels
from hermes_worker.settings.servers import parse_servers_url
from hermes_worker.system.plainfiles import read_plain

__all__ = [
    "AgentSettings",
    "ApprovalSettings",
    "ArtifactSettings",
    "BrokerSettings",
    "CronSettings",
    "DatabaseSettings",
    "DelegationSettings",
    "DeliverySettings",
    "EncryptionSettings",
    "ExtensionSettings",
    "GatewaySettings",
    "LeaseSettings",
    "LogFormat",
    "LogSettings",
    "MemorySettings",
    "ModelSettings",
    "RetentionSettings",
    "Secret",
    "ServerSettings",
    "SettingLayer",
    "SettingOrigin",
    "SettingRow",
    "SettingWithSource",
    "Settings",
    "TerminalSettings",
    "build_handover",
    "describe_settings",
    "is_loopback",
    "is_supervised",
    "list_with_sources",
    "load_settings",
    "parse_config_text",
    "render_environ",
]

# --- declaring settings ----------------------------------------------------------------------------------------------


class _Declaration(NamedTuple):
    key: str
    """Name in config.yaml and in messages: ``lease.ttl_s``."""
    variables: tuple[str, ...]
    """Environment variables, the one we document first."""
    kind: SettingKind[Any]


def _setting(key: str, variables: str, kind: SettingKind[Any], default: Any = None, *, is_shown: bool = True) -> Any:
    """A field; ``variables`` are separated by spaces. Typed ``Any`` as ``dataclasses.field`` is."""
    declaration = _Declaration(key, tuple(variables.split()), kind)
    return field(default=default, repr=is_shown, metadata={"setting": declaration})


def is_loopback(host: str) -> bool:
    """Whether a host name or address is of this machine, whatever a resolver would say."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class LogFormat(StrEnum):
    JSON = "json"
    CONSOLE = "console"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSettings:
    """Where state is kept."""

    url: str | None = _setting("database.url", "HERMES_DATABASE_URL", DATABASE_URL, is_shown=False)
    """Database that holds all state. Not set: an SQLite file in the home directory."""
    prepared_statements: bool = _setting(
        "database.prepared_statements", "HERMES_DATABASE_PREPARED_STATEMENTS", SWITCH, True
    )
    """Whether statements are prepared on PostgreSQL. `false` behind a pooler in transaction mode that does not keep
    them: PgBouncer before 1.21, or one with `max_prepared_statements` 0. Without it no process starts there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionSettings:
    """Texts in the database."""

    keys: tuple[Secret, ...] = _setting("encryption.keys", "HERMES_ENCRYPTION_KEYS", TEXT_KEYS, ())
    """Keys that texts in the database are encrypted with: the first encrypts, all decrypt. The word `clear` in the
    first place: texts are written in clear. HERMES_ENCRYPTION_KEYS_FILE names a file, which may be changed at any time.
    Not set: nothing is encrypted. See docs/encryption.md."""
    keys_command: str | None = _setting(
        "encryption.keys_command", "HERMES_ENCRYPTION_KEYS_COMMAND", text_matching(r"[^\x00-\x1f]{1,2000}", "a command")
    )
    """A command that prints the keys instead, run by every process at its start and once a minute, without a shell and
    without the secrets of the environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """What carries the hints that wake workers."""

    url: str | None = _setting("broker.url", "HERMES_BROKER_URL", BROKER_URL, is_shown=False)
    """Redis or Valkey server, 6.2 or later: `redis://`, `rediss://`, `unix://`, `redis+socket://`, or
    `redis+sentinel://user:password@sentinel:26379,sentinel2:26379/mymaster/0`. Not set: `hermes-worker up` starts one
    of its own, on a Unix socket."""

    @property
    def celery_url(self) -> str | None:
        """``url`` as kombu writes it: sockets are ``redis+socket://...?virtual_host=n``."""
        return convert_socket_url(self.url, "redis+socket", "virtual_host") if self.url else None

    @property
    def client_url(self) -> str | None:
        """``url`` as redis-py writes it: sockets are ``unix://...?db=n``."""
        return convert_socket_url(self.url, "unix", "db") if self.url else None


_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Which model answers, and where."""

    name: str | None = _setting(
        "model.default", "HERMES_MODEL", text_matching(r"[\w.:/@+-]{1,200}", "a name without spaces")
    )
    """Model of runs that name none, as the provider calls it. Not set: the provider's usual one."""
    provider: str | None = _setting(
        "model.provider",
        "HERMES_PROVIDER",
        text_matching(r"[a-z][\w.-]{0,63}", "the name of a provider", fold=str.lower),
    )
    """Who serves the model: a name from the catalogue, `custom` for a server of your own, `scripted` for none. Not set:
    the provider of the base URL, or of the first key found."""
    base_url: str | None = _setting("model.base_url", "HERMES_BASE_URL", WEB_URL)
    """Address of the API. Not set: the provider's own, or OPENAI_BASE_URL and its like next to their keys."""
    api_key: Secret | None = _setting("model.api_key", "HERMES_API_KEY", SECRET)  # noqa: RUF009 - a field
    """Key of the API. Not set: OPENAI_API_KEY, ANTHROPIC_API_KEY or OPENROUTER_API_KEY, with their provider; a
    provider's key is never sent to another provider's address."""
    proxy_url: str | None = _setting("model.proxy_url", "HERMES_MODEL_PROXY", WEB_URL)
    """A proxy (http://) that all model calls go through. Not set: none, whatever HTTPS_PROXY says."""
    more_keys: tuple[Secret, ...] = _setting("model.more_keys", "HERMES_MORE_API_KEYS", SECRETS, ())
    """More keys of the same provider, to use when one is spent or refused. Of a provider's usual variables, those
    with a number count too: OPENAI_API_KEY_2 and so on."""
    tenant_keys: tuple[TenantKey, ...] = _setting("model.tenant_keys", "HERMES_TENANT_KEYS", TENANT_KEYS, ())
    """Keys of providers that belong to tenants: `acme/openai=KEY`. A tenant that has any is asked for with these alone,
    and with no key of the installation. Several of one provider make a pool."""
    key_strategy: str = _setting(
        "model.key_strategy",
        "HERMES_KEY_STRATEGY",
        one_of(*(strategy.value for strategy in Strategy)),
        Strategy.FILL_FIRST.value,
    )
    """Which of several keys a run takes."""
    refresh_tokens: tuple[Secret, ...] = _setting("model.refresh_tokens", "HERMES_REFRESH_TOKENS", SECRETS, ())
    """Refresh tokens of logins with the provider, used before any key. All workers share the access token through the
    database, encrypted with the refresh token; replace the refresh token here after a new login."""
    token_url: str | None = _setting("model.token_url", "HERMES_TOKEN_URL", WEB_URL)
    """Where refresh tokens are exchanged (OAuth 2.0); https, or an address of this machine."""
    client_id: str | None = _setting(
        "model.client_id", "HERMES_OAUTH_CLIENT_ID", text_matching(r"[\x21-\x7e]{1,500}", "text without spaces")
    )
    """The client that logged in, as the token server knows it."""
    client_secret: Secret | None = _setting(  # noqa: RUF009 - a field
        "model.client_secret", "HERMES_OAUTH_CLIENT_SECRET", SECRET
    )
    """Its secret, for the few that have one."""
    api_mode: str | None = _setting(
        "model.api_mode",
        "HERMES_API_MODE",
        text_matching(r"[a-z0-9][a-z0-9_-]{0,63}", "the name of a wire", fold=str.lower),
    )
    """How requests are written: `chat_completions`, `codex_responses`, `anthropic_messages`, `bedrock_converse`,
    `gemini_generate`, or a wire that an enabled extension brings. Not set: what the provider and the model speak."""
    window: int | None = _setting("model.context_length", "HERMES_CONTEXT_LENGTH", optional_integer(1_024, 100_000_000))
    """Tokens that fit into the model's context window. Not set: 200,000 is assumed until a server reports fewer."""
    output_tokens_max: int | None = _setting("model.max_tokens", "HERMES_MAX_TOKENS", optional_integer(1, 10_000_000))
    """Output tokens of one reply. Not set: what the provider allows."""
    reasoning_effort: str | None = _setting("agent.reasoning_effort", "HERMES_REASONING_EFFORT", one_of(*_EFFORTS))
    """How much the model thinks; `none` for not at all. Not set: the usual value of the wire."""
    attempts_max: int = _setting("agent.api_max_retries", "HERMES_API_MAX_RETRIES", integer(1, 100), 3)
    """Attempts with one provider before the next one is tried."""
    fallbacks: tuple[str, ...] = _setting("fallback_providers", "HERMES_FALLBACK_PROVIDERS", FALLBACKS, ())
    """Providers to try, in order, when the first one fails for good: `provider:model`, or
    `provider:model@https://address` for an address of its own. Their keys come from their usual variables, or from the
    one that is named behind a `$` (`key_env` in a mapping); one without a key is skipped."""
    providers: tuple[tuple[str, ProviderOptions], ...] = _setting(
        "model.providers", "HERMES_MODEL_PROVIDERS", PROVIDER_OPTIONS, ()
    )
    """What else is said to single providers, by name: `region`, `service_tier`, and `headers` and `body` of every
    request. No place for secrets: every process sees it."""
    compacts: bool = _setting("compression.enabled", "HERMES_COMPRESSION", SWITCH, True)
    """Whether conversations that grow too long are compacted; otherwise their runs fail."""
    compact_at: float = _setting(
        "compression.threshold", "HERMES_COMPRESSION_THRESHOLD", number(0.1, 0.95, "parts of the window"), 0.5
    )
    """A conversation is compacted when it fills this share of the context window; for windows below 512,000 tokens the
    share is at least 0.75."""
    compact_models_at: tuple[tuple[str, float], ...] = _setting(
        "compression.thresholds", "HERMES_COMPRESSION_THRESHOLDS", MODEL_SHARES, ()
    )
    """Such shares of single models, by patterns of their names: `gpt-5.4*=0.85`. The first that fits counts, as it
    is."""
    compact_head_rows: int = _setting(
        "compression.protect_first_n", "HERMES_COMPRESSION_PROTECT_FIRST_N", integer(0, 1_000), 3
    )
    """Messages at the beginning of a conversation that its first summary leaves alone."""
    compact_tail_rows: int = _setting(
        "compression.protect_last_n", "HERMES_COMPRESSION_PROTECT_LAST_N", integer(3, 10_000), 20
    )
    """Messages at the end whose tool results are never shown in short."""
    compact_tail_part: float = _setting(
        "compression.target_ratio", "HERMES_COMPRESSION_TARGET_RATIO", number(0.1, 0.8, "parts of the threshold"), 0.2
    )
    """How much of the threshold the newest messages may fill that a summary leaves alone."""
    compactor: str = _setting(
        "compression.compactor",
        "HERMES_COMPACTOR",
        text_matching(r"[a-z0-9][a-z0-9_-]{0,63}", "the name of a compactor"),
        "summary",
    )
    """How a long conversation is made shorter: `summary`, or a compactor that an enabled extension brings."""
    compression_providers: tuple[str, ...] = _setting(
        "model.compression_providers", "HERMES_COMPRESSION_PROVIDERS", FALLBACKS, ()
    )
    """Providers that summarise long conversations, in order, as `provider:model`; then the providers of the
    conversation itself. Not set: only those."""
    title_providers: tuple[str, ...] = _setting("model.title_providers", "HERMES_TITLE_PROVIDERS", FALLBACKS, ())
    """Providers that find a title for a new session, written the same way. Not set: none; the title is the beginning of
    the input."""
    approval_providers: tuple[str, ...] = _setting(
        "model.approval_providers", "HERMES_APPROVAL_PROVIDERS", FALLBACKS, ()
    )
    """Providers that judge dangerous commands while `approvals.mode` is `smart`, written the same way."""
    vision_providers: tuple[str, ...] = _setting("model.vision_providers", "HERMES_VISION_PROVIDERS", FALLBACKS, ())
    """Providers that describe images (`vision_analyze`), written the same way."""
    web_extract_providers: tuple[str, ...] = _setting(
        "model.web_extract_providers", "HERMES_WEB_EXTRACT_PROVIDERS", FALLBACKS, ()
    )
    """Providers that summarise long web pages (`web_extract`), written the same way."""
    requests_per_min: int | None = _setting(
        "model.requests_per_min", "HERMES_MODEL_REQUESTS_PER_MIN", optional_integer(1, 1_000_000)
    )
    """Requests per minute that all workers together may make with one key; calls of older runs go first. Not set: what
    the provider says."""
    tokens_per_min: int | None = _setting(
        "model.tokens_per_min", "HERMES_MODEL_TOKENS_PER_MIN", optional_integer(1, 1_000_000_000)
    )
    """Input tokens per minute that all workers together may send with one key."""
    in_flight_max: int | None = _setting(
        "model.max_concurrency", "HERMES_MODEL_MAX_CONCURRENCY", optional_integer(1, 1_000_000)
    )
    """Model calls that all workers together may make at the same time with one key. Not set: no limit."""
    probe_first_s: float = _setting(
        "model.probe_first_s", "HERMES_KEY_PROBE_FIRST_S", number(0.5, 3_600.0, "seconds"), 15.0
    )
    """When a closed key is tried the first time, with the due call of one waiting run; then after twice as long, and so
    on."""
    probe_max_s: float = _setting(
        "model.probe_max_s", "HERMES_KEY_PROBE_MAX_S", number(1.0, 86_400.0, "seconds"), 600.0
    )
    """The longest time between two such tries."""
    prices: tuple[str, ...] = _setting("model.prices", "HERMES_MODEL_PRICES", PRICES, ())
    """What models cost, as `provider:model=input/output/cache read/cache write` in US dollars for a million tokens; the
    last two may be left out. They win over the built-in list."""
    is_asked_elsewhere: bool = _setting("model.asked_elsewhere", "HERMES_MODEL_ASKED_ELSEWHERE", SWITCH, False)
    """Whether only other processes ask the model, so that this one needs no key: for the API, the scheduler and tools
    workers where each process is started by itself."""
    vendor_keys: Mapping[str, Secret] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    """Every variable of the environment or ``.env`` called ``..._API_KEY``, with or without a number behind it, for
    providers beyond those three; and those of ``PROVIDER_SECRETS``."""

    def find_options(self, *names: str) -> ProviderOptions:
        """What is said to the provider that goes by these names."""
        return next((options for name, options in self.providers if name in names), NO_OPTIONS)

    @property
    def is_scripted(self) -> bool:
        """No provider, key or address is configured: the built-in scripted model answers."""
        if self.provider is not None:
            return self.provider == "scripted"
        return self.api_key is None and self.base_url is None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The HTTP API."""

    host: str = _setting(
        "server.host",
        "HERMES_SERVER_HOST API_SERVER_HOST",
        HOST,
        "127.0.0.1",
    )
    """Address to listen on. Anything but a loopback address needs `server.key`."""
    port: int = _setting("server.port", "HERMES_SERVER_PORT API_SERVER_PORT", integer(0, 65_535), 8642)
    """TCP port to listen on; 0 takes a free one."""
    key: Secret | None = _setting("server.key", "HERMES_SERVER_KEY API_SERVER_KEY", SERVER_KEY)  # noqa: RUF009 - a field
    """Bearer token that clients must send. Not set: the content of `api.key` in the home directory, which the API makes
    when it first starts."""

    previous_keys: tuple[Secret, ...] = _setting("server.previous_keys", "HERMES_SERVER_PREVIOUS_KEYS", SECRETS, ())
    """Earlier keys. They give no access. They only decrypt secrets of webhook routes, which are encrypted with the new
    key when an API starts."""

    drain_s: float = _setting("server.drain_s", "HERMES_SERVER_DRAIN_S", number(0, 3600, "seconds"), 0.0)
    """Seconds for which an API that is told to stop still takes requests, while `GET /health/ready` answers 503. Load
    balancers get that long to notice. A second signal ends it."""
    cors_origins: tuple[str, ...] = _setting(
        "server.cors_origins",
        "HERMES_SERVER_CORS_ORIGINS API_SERVER_CORS_ORIGINS",
        list_of_names(r"https?://[a-z0-9.-]{1,253}(:\d{1,5})?", "origins such as https://chat.example.org"),
        (),
    )
    """Origins of web pages that may talk to the API, with a key. Not set: no page may."""
    page: bool = _setting("server.page", "HERMES_SERVER_PAGE", SWITCH, True)
    """Whether the API serves the page for people at `/`."""
    page_hosts: tuple[str, ...] = _setting(
        "server.page_hosts",
        "HERMES_SERVER_PAGE_HOSTS",
        list_of_names(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", "host names such as hermes.example.org"),
        (),
    )
    """Host names under which browsers may open the page, without a port. `localhost`, addresses and `server.host` are
    always good. Any other name is refused: a stranger's name may lead here."""
    tls_certificate: Path | None = _setting(  # noqa: RUF009 - a field
        "server.tls_certificate", "HERMES_SERVER_TLS_CERTIFICATE", FILE
    )
    """File with the API's certificate and those between it and the authority (PEM): the API then speaks HTTPS. Not set:
    HTTP, for this machine or behind a proxy that speaks TLS."""
    tls_key: Path | None = _setting(  # noqa: RUF009 - a field
        "server.tls_key", "HERMES_SERVER_TLS_KEY", FILE
    )
    """File with the certificate's private key. Not set: it is in the same file."""
    tls_client_ca: Path | None = _setting(  # noqa: RUF009 - a field
        "server.tls_client_ca", "HERMES_SERVER_TLS_CLIENT_CA", FILE
    )
    """File with the authorities whose certificates clients must show, beside their key. Not set: none."""

    @property
    def scheme(self) -> str:
        """Of the API's address."""
        return "http" if self.tls_certificate is None else "https"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return is_loopback(self.host)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """How work is taken, kept and taken over."""

    ttl_s: float = _setting("lease.ttl_s", "HERMES_LEASE_TTL_S", number(0.5, 3600, "seconds"), 15.0)
    """Seconds that a claim holds after its last renewal. Work of a dead worker starts again after this."""
    sweep_interval_s: float = _setting(
        "lease.sweep_interval_s", "HERMES_SWEEP_INTERVAL_S", number(0.05, 300, "seconds"), 1.0
    )
    """Seconds between two looks for lapsed claims and unanswered hints."""
    resend_grace_s: float = _setting("lease.resend_grace_s", "HERMES_RESEND_GRACE_S", number(0.1, 3600, "seconds"), 3.0)
    """Seconds that work may stay unclaimed before its hint is sent again."""
    lanes_max: int = _setting("lease.lanes_max", "HERMES_LANES_MAX", integer(1, 100), 2)
    """Lanes that one worker starts at the same time to try suspects: steps whose worker vanished."""
    lane_memory_mb: int = _setting("lease.lane_memory_mb", "HERMES_LANE_MEMORY_MB", integer(0, 1_000_000), 2048)
    """Memory of a lane, in megabytes of data (Linux); 0 for no limit. In a container set less than half of the
    container's memory: a step that needs more must end the lane, not the container."""
    drain_s: float = _setting("lease.drain_s", "HERMES_DRAIN_S", number(0, 3600, "seconds"), 30.0)
    """Seconds that a worker has to finish its work when it is told to stop; then it hands the rest back."""
    drain_once_s: float = _setting("lease.drain_once_s", "HERMES_DRAIN_ONCE_S", number(0, 86_400, "seconds"), 600.0)
    """Seconds that it waits after that for tool calls that must not run twice. If something kills it earlier (the grace
    period of a pod, for example), their outcome is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Limits of a run that names none of its own."""

    iterations_max: int = _setting("agent.max_turns", "HERMES_MAX_ITERATIONS", integer(1, 100_000), 90)
    """Model calls per run."""
    wall_s_max: float = _setting("agent.max_wall_s", "HERMES_MAX_WALL_S", number(1, 31 * 86_400, "seconds"), 86_400.0)
    """Seconds from submission to the end, waiting included."""
    idle_s_max: float | None = _setting(
        "agent.gateway_timeout",
        "HERMES_MAX_IDLE_S HERMES_AGENT_TIMEOUT",
        optional_number(1, 31 * 86_400, "seconds"),
        1800.0,
    )
    """Seconds without any sign of progress before a run is given up; 0 for no limit."""
    allow_private_urls: bool = _setting("agent.allow_private_urls", "HERMES_ALLOW_PRIVATE_URLS", SWITCH, False)
    """Whether tools may fetch from addresses of the local network and of this machine. Metadata services are never
    asked."""
    redact_secrets: bool = _setting("security.redact_secrets", "HERMES_REDACT_SECRETS", SWITCH, True)
    """Whether secrets are hidden in what tools return, before it is stored or shown to a model. Logs and error messages
    never contain them, whatever is set here."""
    toolsets: tuple[str, ...] = _setting(
        "agent.toolsets", "HERMES_TOOLSETS", list_of_names(r"[\w.:-]{1,64}", "toolset names"), ()
    )
    """Toolsets of runs that name none. Empty: the usual ones."""
    context_files: bool = _setting("agent.context_files", "HERMES_CONTEXT_FILES", SWITCH, True)
    """Whether the prompt of a session that works in a given directory says what the project's file for agents says
    (`.hermes.md`, `AGENTS.md`, `CLAUDE.md`, `.cursorrules`)."""
    client_tools_s: float = _setting(
        "client_tools.timeout_s", "HERMES_CLIENT_TOOLS_TIMEOUT_S", number(1, 31 * 86_400, "seconds"), 600.0
    )
    """Seconds that a client has to bring the result of its own tool, before the run is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationSettings:
    """Child runs (`delegate_task`)."""

    children_max: int = _setting(
        "delegation.max_concurrent_children",
        "HERMES_MAX_CONCURRENT_CHILDREN DELEGATION_MAX_CONCURRENT_CHILDREN",
        integer(1, 10_000),
        3,
    )
    """Children of one run that work at the same time; more of them wait."""
    depth_max: int = _setting("delegation.max_spawn_depth", "HERMES_MAX_SPAWN_DEPTH", integer(1, 100), 1)
    """Levels of children. 1: children do not delegate."""
    iterations_max: int = _setting("delegation.max_iterations", "HERMES_CHILD_MAX_ITERATIONS", integer(1, 100_000), 50)
    """Model calls of a child, unless `delegation.budget` is `shared`."""
    budget: str = _setting(
        "delegation.budget", "HERMES_BUDGET_MODE", one_of(*(mode.value for mode in BudgetMode)), BudgetMode.SHARED.value
    )
    """`shared`: a run and all it delegates draw from its own model calls. `independent`: every child has its own.
    `mixed`: both caps hold."""
    turns_max: int = _setting("delegation.max_chained_turns", "HERMES_MAX_CHAINED_TURNS", integer(0, 10_000), TURNS_MAX)
    """Runs that background answers may begin before a person speaks again; 0 allows no work in the background."""
    timeout_s: float | None = _setting(
        "delegation.child_timeout_seconds",
        "HERMES_CHILD_TIMEOUT_S",
        optional_number(1, 31 * 86_400, "seconds"),
        None,
    )
    """Seconds a child may take before it expires and its parent gets what it has; at least 30, 0 for no limit."""
    model: str | None = _setting(
        "delegation.model", "HERMES_DELEGATION_MODEL", text_matching(r"[\w.:/@+-]{1,200}", "a name without spaces")
    )
    """Model of the children. Not set: the parent's."""


_PORT = r"[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
_IMAGE_NAME = text_matching(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}", "the name of an image")
_OBJECT_NAME = text_matching(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", "the name of an object of Kubernetes")
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds who it is (kubernetes.io/docs/tasks/run-application/access-api-from-pod)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalSettings:
    """Commands that tools run."""

    timeout_s: float = _setting(
        "terminal.timeout", "HERMES_TERMINAL_TIMEOUT_S TERMINAL_TIMEOUT", number(1, 86_400, "seconds"), 180.0
    )
    """Seconds a command may run when the model asks for no other limit."""
    env_passthrough: tuple[str, ...] = _setting(
        "terminal.env_passthrough",
        "HERMES_ENV_PASSTHROUGH TERMINAL_ENV_PASSTHROUGH",
        list_of_names(r"(?!HERMES_|API_SERVER_KEY$)[A-Za-z_][A-Za-z0-9_]*", "variable names, none of them HERMES_..."),
        (),
    )
    """Variables of the worker that commands may see beside the harmless ones (PATH, HOME, LANG ...)."""
    workspace: str = _setting(
        "terminal.workspace",
        "HERMES_WORKSPACE",
        text_matching(r"[a-z0-9][a-z0-9_-]{0,63}", "a kind of workspace"),
        "local",
    )
    """Kind of the workspaces that new sessions get: `local`, a directory of this machine, `ssh`, a directory of another
    one, `docker`, a container, `kubernetes`, a pod, or a kind that an enabled extension brings."""
    ssh_host: str | None = _setting("terminal.ssh_host", "HERMES_SSH_HOST TERMINAL_SSH_HOST", HOST)
    """Host of workspaces of the kind `ssh`."""
    ssh_user: str = _setting(
        "terminal.ssh_user",
        "HERMES_SSH_USER TERMINAL_SSH_USER",
        text_matching(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}", "a user name"),
        "hermes",
    )
    """User to be there."""
    ssh_port: int = _setting("terminal.ssh_port", "HERMES_SSH_PORT TERMINAL_SSH_PORT", integer(1, 65_535), 22)
    """Port of its ssh server."""
    ssh_key: Path | None = _setting(  # noqa: RUF009 - a field
        "terminal.ssh_key", "HERMES_SSH_KEY_PATH TERMINAL_SSH_KEY", FILE
    )
    """File with the private key for it, without a passphrase. Not set: `ssh/id_ed25519` in the home."""
    ssh_known_hosts: Path | None = _setting(  # noqa: RUF009 - a field
        "terminal.ssh_known_hosts", "HERMES_SSH_KNOWN_HOSTS", FILE
    )
    """File with the key of the host; a host that is not in it is refused. Not set: `ssh/known_hosts` in the home."""
    ssh_directory: str = _setting(
        "terminal.ssh_directory",
        "HERMES_SSH_DIRECTORY",
        text_matching(r"/[A-Za-z0-9_.][A-Za-z0-9_./-]{0,200}", "an absolute directory"),
        "/var/tmp/hermes-workspaces",
    )
    """Directory there, in which each session gets one of its own."""
    docker_host: str = _setting(
        "terminal.docker_host", "HERMES_DOCKER_HOST", CONTAINER_ENGINE, "unix:///var/run/docker.sock"
    )
    """Container engine for workspaces of the kind `docker`: `unix://PATH` of Docker's or podman's socket, or
    `tcp://HOST:PORT` of an engine that speaks TLS."""
    docker_certs: Path | None = _setting(  # noqa: RUF009 - a field
        "terminal.docker_certs", "HERMES_DOCKER_CERTS", DIRECTORY
    )
    """Directory with `ca.pem`, `cert.pem` and `key.pem` for an engine behind TLS. Not set: `docker` in the home."""
    docker_image: str = _setting(
        "terminal.docker_image", "HERMES_DOCKER_IMAGE TERMINAL_DOCKER_IMAGE", _IMAGE_NAME, "debian:stable-slim"
    )
    """Image that its containers are made of. It must be on the engine already."""
    docker_user: str = _setting(
        "terminal.docker_user",
        "HERMES_DOCKER_USER",
        text_matching(r"[1-9][0-9]{0,8}:[1-9][0-9]{0,8}", "two numbers such as 10001:10001, none of them 0"),
        "10001:10001",
    )
    """Numbers of the user and the group in containers and pods."""
    docker_network: str = _setting(
        "terminal.docker_network",
        "HERMES_DOCKER_NETWORK",
        text_matching(
            r"(?!host$|container$)[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", "a network of the engine's, but not `host`"
        ),
        "none",
    )
    """Network of the engine's that containers are in; `none` for no network."""
    docker_proxy: str | None = _setting("terminal.docker_proxy", "HERMES_DOCKER_PROXY", WEB_URL)
    """URL of a proxy in that network, the only way out of it: commands are told of it, and count as `proxy`."""
    docker_runtime: str | None = _setting(
        "terminal.docker_runtime", "HERMES_DOCKER_RUNTIME", text_matching(r"[A-Za-z0-9_./-]{1,100}", "a runtime's name")
    )
    """Runtime of the engine's for containers, such as `runsc`. Not set: its usual one."""
    docker_cpus: float = _setting("terminal.docker_cpus", "HERMES_DOCKER_CPUS", number(0.1, 1024, "processors"), 2.0)
    """Processors that all commands of a container or a pod may use together."""
    kubernetes_url: str = _setting(
        "terminal.kubernetes_url", "HERMES_KUBERNETES_URL", WEB_URL, "https://kubernetes.default.svc"
    )
    """API server for workspaces of the kind `kubernetes`."""
    kubernetes_ca: Path = _setting(  # noqa: RUF009 - a field
        "terminal.kubernetes_ca", "HERMES_KUBERNETES_CA", FILE, _ACCOUNT / "ca.crt"
    )
    """File with the certificates that its own is signed by."""
    kubernetes_account: Path = _setting(  # noqa: RUF009 - a field
        "terminal.kubernetes_account", "HERMES_KUBERNETES_ACCOUNT", FILE, _ACCOUNT / "token"
    )
    """File with the token of a service account that may make pods; read anew for each request, because it changes."""
    kubernetes_namespace: str = _setting(
        "terminal.kubernetes_namespace", "HERMES_KUBERNETES_NAMESPACE", _OBJECT_NAME, "hermes-workspaces"
    )
    """Namespace of the pods."""
    kubernetes_image: str = _setting(
        "terminal.kubernetes_image", "HERMES_KUBERNETES_IMAGE", _IMAGE_NAME, "debian:stable-slim"
    )
    """Image of the pods."""
    kubernetes_runtime: str | None = _setting("terminal.kubernetes_runtime", "HERMES_KUBERNETES_RUNTIME", _OBJECT_NAME)
    """Runtime class of the pods, such as `gvisor`. Not set: the cluster's usual one."""
    kubernetes_network: str = _setting(
        "terminal.kubernetes_network", "HERMES_KUBERNETES_NETWORK", one_of("open", "proxy", "none"), "none"
    )
    """What the network policies of the cluster let pods reach. For `none` a policy is made that lets nothing through;
    the others say what policies of yours do."""
    kubernetes_storage_mb: int | None = _setting(
        "terminal.kubernetes_storage_mb", "HERMES_KUBERNETES_STORAGE_MB", optional_integer(1, 100_000_000), None
    )
    """Size of the volume that keeps the files of a workspace when its pod goes, in megabytes. Not set: they go with
    it."""
    kubernetes_storage_class: str | None = _setting(
        "terminal.kubernetes_storage_class", "HERMES_KUBERNETES_STORAGE_CLASS", _OBJECT_NAME
    )
    """Storage class of these volumes. Not set: the cluster's usual one."""
    kubernetes_warm_pool: str | None = _setting(
        "terminal.kubernetes_warm_pool", "HERMES_KUBERNETES_WARM_POOL", _OBJECT_NAME
    )
    """A `SandboxWarmPool` of agent-sandbox, from which sessions claim their pods. Not set: pods are made."""
    remote_idle_s: float = _setting(
        "terminal.remote_idle_s", "HERMES_REMOTE_IDLE_S", number(60, 31_536_000, "seconds"), 3600.0
    )
    """Seconds without a call after which the container or pod of a workspace is removed. Files on a volume stay."""
    sandbox: str | None = _setting("terminal.sandbox", "HERMES_SANDBOX", one_of("require", "auto", "off"))
    """How commands are confined: `require` refuses them where neither bubblewrap nor Landlock works, `auto` takes the
    best that works, `off` confines none. Not set: `auto`, and `require` when the API listens beyond this machine."""
    profile: str = _setting(
        "terminal.profile", "HERMES_SANDBOX_PROFILE", one_of("workstation", "tenant"), "workstation"
    )
    """What a confined command sees beside its workspace: `workstation` all files, read-only, without credential stores
    and the home of Hermes worker; `tenant` only system directories."""
    network: str = _setting("terminal.network", "HERMES_SANDBOX_NETWORK", one_of("open", "proxy", "none"), "open")
    """Network of confined commands that people at this machine ask for: `open`, `proxy` (http and https to public
    addresses, through a proxy of the worker) or `none`."""
    network_api: str | None = _setting(
        "terminal.network_api", "HERMES_SANDBOX_NETWORK_API", one_of("open", "proxy", "none")
    )
    """The same for callers of the API. Not set: as `terminal.network`, and at most `proxy` when the API listens beyond
    this machine."""
    network_unattended: str | None = _setting(
        "terminal.network_unattended", "HERMES_SANDBOX_NETWORK_UNATTENDED", one_of("open", "proxy", "none")
    )
    """The same for webhooks, scheduled jobs and their scripts. Not set: `proxy`, or `none` if `terminal.network` is."""
    network_hosts: tuple[str, ...] = _setting(
        "terminal.network_hosts",
        "HERMES_SANDBOX_NETWORK_HOSTS",
        list_of_names(
            r"(?:\*\.)?[A-Za-z0-9](?:[A-Za-z0-9._-]{0,250}[A-Za-z0-9])?",
            "host names, or *.suffix for what is under one",
        ),
        (),
    )
    """Hosts that the proxy connects to, such as `example.org,*.example.net`. Empty: every public host."""
    network_ports: tuple[str, ...] = _setting(
        "terminal.network_ports", "HERMES_SANDBOX_NETWORK_PORTS", list_of_names(_PORT, "port numbers"), ()
    )
    """Ports that the proxy connects to beside 80 and 443. Those of mail, ssh and databases stay refused."""
    processes_max: int | None = _setting(
        "terminal.processes_max", "HERMES_COMMAND_PROCESSES_MAX", optional_integer(16, 1_000_000), 4096
    )
    """Processes and threads that a command may have; 0 for no limit."""
    open_files_max: int | None = _setting(
        "terminal.open_files_max", "HERMES_COMMAND_OPEN_FILES_MAX", optional_integer(64, 1_000_000), 16_384
    )
    """Files that one process of a command may have open; 0 for no limit."""
    file_mb_max: int | None = _setting(
        "terminal.file_mb_max", "HERMES_COMMAND_FILE_MB_MAX", optional_integer(1, 100_000_000), 10_240
    )
    """Size that a command may give to a file, in megabytes; 0 for no limit."""
    memory_mb_max: int | None = _setting(
        "terminal.memory_mb_max", "HERMES_COMMAND_MEMORY_MB_MAX", optional_integer(64, 10_000_000), 8192
    )
    """Memory that one process of a command may take, in megabytes, and all together where control groups are delegated;
    0 for no limit."""
    cpu_s_max: int | None = _setting(
        "terminal.cpu_s_max", "HERMES_COMMAND_CPU_S_MAX", optional_integer(1, 1_000_000), 3600
    )
    """Processor time that one process of a command may use, in seconds; 0 for no limit."""
    umask: int | None = _setting("terminal.umask", "HERMES_COMMAND_UMASK", UMASK)
    """Permissions that new files of commands and file tools do not get, in octal digits (`022`). Not set: those of
    the user who started the program. Its own files are always for itself alone."""
    allow_hermes_worker: bool = _setting("terminal.allow_hermes_worker", "HERMES_ALLOW_HERMES_WORKER", SWITCH, False)
    """Whether commands of agents may call `hermes-worker`, and so answer approvals, make jobs and start runs. The home
    of Hermes worker stays hidden from confined commands."""
    free_mb_min: int = _setting("terminal.free_mb_min", "HERMES_FREE_MB_MIN", integer(0, 10_000_000), 100)
    """Megabytes that must be free on the disk of the workspace before `terminal` or `write_file` begins; a command that
    leaves less is ended."""
    workspace_mb_max: int | None = _setting(
        "terminal.workspace_mb_max", "HERMES_WORKSPACE_MB_MAX", integer(0, 100_000_000)
    )
    """Megabytes that a workspace may hold, a file counting as 16 KB at least; 0 for no limit. A command that fills it
    further is ended, and `write_file` refused. Not set: no limit for the profile `workstation`, 10240 for `tenant` and
    in containers and pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserSettings:
    """Browsers for sessions."""

    is_enabled: bool = _setting("browser.enabled", "HERMES_BROWSER", SWITCH, False)
    """Whether sessions have a browser: the tools `browser_*`. Their workers need the extra `browser`, and a process of
    `hermes-worker start browser` must run; `up` starts one."""
    chromium: Path | None = _setting("browser.chromium", "HERMES_CHROMIUM", FILE)  # noqa: RUF009 - a field
    """The Chromium to start. Not set: the one on PATH."""
    browsers_max: int = _setting("browser.max", "HERMES_BROWSERS_MAX", integer(1, 200), 4)
    """Browsers of one host at a time; each takes some 300 MB."""
    idle_s: float = _setting("browser.idle_s", "HERMES_BROWSER_IDLE_S", number(5, 86_400, "seconds"), 600.0)
    """Seconds after which a browser that nobody uses is ended. Its cookies are kept for the next one of its session."""
    host: str = _setting("browser.host", "HERMES_BROWSER_HOST", HOST, "127.0.0.1")
    """Address on which a host lets workers in. What they say to each other is not encrypted."""
    address: str | None = _setting("browser.address", "HERMES_BROWSER_ADDRESS", HOST)
    """What workers call this host. Not set: as `browser.host`, and the name of the machine if that is a wildcard."""
    has_cdp: bool = _setting("browser.cdp", "HERMES_BROWSER_CDP", SWITCH, False)
    """Whether sessions have `browser_cdp` as well, which sends any command of the DevTools protocol to their page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSettings:
    """MCP servers of tenants, and processes of servers that have a command (docs/mcp.md)."""

    has_rows: bool = _setting("mcp.rows", "HERMES_MCP_ROWS", SWITCH, False)
    """Whether tenants have MCP servers of their own in the database, kept by whoever administers them. What models say
    goes to the addresses that they choose."""
    row_commands: tuple[str, ...] = _setting("mcp.row_commands", "HERMES_MCP_ROW_COMMANDS", command_lines(), ())
    """Commands that such a server may have, each with all of its arguments, quoted as for a shell. Not set: none, so
    that they have addresses only."""

    processes_max: int = _setting("mcp.max", "HERMES_MCP_MAX", integer(1, 1_000), 16)
    """Processes of one host at a time: one for each session and server that it calls."""
    idle_s: float = _setting("mcp.idle_s", "HERMES_MCP_IDLE_S", number(5, 86_400, "seconds"), 900.0)
    """Seconds after which a process that nobody calls is ended. What it remembered of its session is gone then."""
    host: str = _setting("mcp.host", "HERMES_MCP_HOST", HOST, "127.0.0.1")
    """Address on which a host lets workers in. What they say to each other is not encrypted."""
    address: str | None = _setting("mcp.address", "HERMES_MCP_ADDRESS", HOST)
    """What workers call this host. Not set: as `mcp.host`, and the name of the machine if that is a wildcard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySettings:
    """Where answers are sent. Credentials and home channels are read from the variables of their platforms."""

    alert_targets: tuple[str, ...] = _setting(
        "alerts.targets", "HERMES_ALERT_TARGETS", list_of_names(r"[^\s,]{1,300}", "targets such as telegram:-100"), ()
    )
    """Where operators are told what is wrong: a provider's key is closed, a run was quarantined, a target is dead, work
    waits too long. Not set: nowhere."""
    alert_backlog_age_s: float = _setting(
        "alerts.backlog_age_s", "HERMES_ALERT_BACKLOG_AGE_S", number(1.0, 604_800.0, "seconds"), 600.0
    )
    """How long work may wait for a worker before they are told."""
    allow_private_urls: bool = _setting(
        "delivery.allow_private_urls", "HERMES_DELIVERY_ALLOW_PRIVATE_URLS", SWITCH, False
    )
    """Whether `webhook:` and `apprise:` targets may name addresses of the local network or of this machine."""
    media_dirs: tuple[str, ...] = _setting(
        "delivery.media_dirs",
        "HERMES_MEDIA_ALLOW_DIRS",
        list_of_names(r"/[^\x00-\x1f]{1,500}", "absolute directories"),
        (),
    )
    """Directories whose files an answer may take along (`MEDIA:path`), beside the workspace of its session."""
    media_strict: bool = _setting("delivery.media_strict", "HERMES_MEDIA_DELIVERY_STRICT", SWITCH, True)
    """Whether other files may be sent only within ten minutes after they were written. Credentials are never sent."""
    channels: tuple[str, ...] = _setting(
        "delivery.channels",
        "HERMES_DELIVERY_CHANNELS",
        list_of_names(
            r"[a-z_]{2,20}:[^=,\x00-\x1f]{1,100}=[^=,\s]{1,200}", "chats by name, such as slack:#ops=C0123ABCD"
        ),
        (),
    )
    """Names for chats: with `slack:#ops=C0123ABCD`, `slack:#ops` is a target."""
    filter_silence: bool = _setting(
        "delivery.filter_silence_narration", "HERMES_FILTER_SILENCE_NARRATION", SWITCH, True
    )
    """Whether an answer that only says that it says nothing (`*(silent)*`, `...`) is withheld from people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """People who write to the agent on platforms (docs/gateway.md). Who may speak to one platform alone stands in
    `<PLATFORM>_ALLOWED_USERS` and `<PLATFORM>_GUESTS`."""

    is_enabled: bool = _setting("chats.enabled", "HERMES_GATEWAY", SWITCH, False)
    """Whether people who write to accounts are listened to. The credentials alone, which deliveries need as well, begin
    nothing."""
    allowed_users: tuple[str, ...] = _setting(
        "chats.allowed_users",
        "HERMES_GATEWAY_ALLOWED_USERS GATEWAY_ALLOWED_USERS",
        list_of_names(r"[^\s,]{1,200}", "ids of people, or * for everybody"),
        (),
    )
    """People who may write on every platform: ids, numbers and addresses, and user names as `@name`. They are owners;
    `*` makes everybody a member."""
    guests: tuple[str, ...] = _setting(
        "chats.guests",
        "HERMES_GATEWAY_GUESTS",
        list_of_names(r"[^\s,]{1,200}", "ids of people, or * for everybody"),
        (),
    )
    """People who may talk on every platform, and for whom nothing is done that has an effect; `*` for everybody."""
    groups: str = _setting("chats.groups", "HERMES_GATEWAY_GROUPS", one_of("known", "guests", "off"), "known")
    """Who may speak in groups: those who may elsewhere, everybody else as a guest, or nobody."""
    reset_mode: str = _setting(
        "chats.reset_mode", "HERMES_GATEWAY_RESET_MODE", one_of("none", "idle", "daily", "both"), "none"
    )
    """When a chat begins a new session by itself: never, after silence, at an hour of each day, or both."""
    reset_at_hour: int = _setting("chats.reset_at_hour", "HERMES_GATEWAY_RESET_AT_HOUR", integer(0, 23), 4)
    """The hour of `daily` and `both`, in the time zone of the machine that takes the message."""
    reset_idle_minutes: int = _setting(
        "chats.reset_idle_minutes", "HERMES_GATEWAY_RESET_IDLE_MINUTES", integer(1, 10_000_000), 1_440
    )
    """After how many minutes of silence `idle` and `both` end a session."""
    reset_told: bool = _setting("chats.reset_told", "HERMES_GATEWAY_RESET_TOLD", SWITCH, True)
    """Whether the chat is told of it."""
    reset_modes: tuple[str, ...] = _setting(
        "chats.reset_modes",
        "HERMES_GATEWAY_RESET_MODES",
        list_of_names(r"[a-z_]{1,30}=(none|idle|daily|both)", "`WHERE=MODE`"),
        (),
    )
    """Other modes for a platform or a type of chat (`dm`, `group`, `channel`, `thread`): `telegram=daily,group=idle`.
    That of the platform comes first."""
    strangers: str = _setting("chats.strangers", "HERMES_GATEWAY_STRANGERS", one_of("pair", "ignore"), "pair")
    """What somebody else who writes directly gets: a pairing code, or nothing."""
    busy_mode: str = _setting(
        "chats.busy_input_mode", "HERMES_GATEWAY_BUSY_INPUT_MODE", one_of("interrupt", "queue", "steer"), "interrupt"
    )
    """What a message does while the agent works on another: stop it, wait for it, or be said to it."""
    burst_s: float = _setting("chats.burst_s", "HERMES_GATEWAY_BURST_S", number(0.0, 60.0, "seconds"), 3.0)
    """What somebody writes so soon after a message of theirs that waits is one turn with it; 0 for never."""
    file_mb_max: int = _setting("chats.file_mb_max", "HERMES_GATEWAY_FILE_MB_MAX", integer(1, 100), 20)
    """MiB of a file that somebody sends. A larger one is not read further, and the agent is told so."""
    transcription_url: str | None = _setting("chats.transcription_url", "HERMES_TRANSCRIPTION_URL", WEB_URL)
    """Where voice messages and other recordings are transcribed: a service with OpenAI's `/audio/transcriptions`, such
    as `https://api.openai.com/v1`. Asked by delivery workers. Not set: nobody listens to them."""
    transcription_key: Secret | None = _setting(  # noqa: RUF009 - a field
        "chats.transcription_key", "HERMES_TRANSCRIPTION_API_KEY", SECRET
    )
    """Key of that service."""
    transcription_model: str = _setting(
        "chats.transcription_model",
        "HERMES_TRANSCRIPTION_MODEL",
        text_matching(r"[\w.:/@+-]{1,200}", "a model"),
        "whisper-1",
    )
    """Model of that service."""
    commands: tuple[str, ...] = _setting(
        "chats.commands",
        "HERMES_GATEWAY_COMMANDS",
        list_of_names(
            COMMAND_RULE,
            "`COMMAND=ROLE`, the least role that may use it, such as `jobs=member` or `model=nobody`, behind"
            " `ACCOUNT/CHAT/` for a chat; or `ACCOUNT/@PERSON/COMMAND=yes` or `=no`",
        ),
        (),
    )
    """Who may use a command, where that is not as docs/gateway.md says: `jobs=member,undo=owner,usage=nobody`; in a
    chat or all of an account: `telegram:default/-100123/undo=owner,telegram:ops/*/new=member`; and for a person,
    whatever their role: `telegram:default/@4242/stop=no`."""
    reply_to: str = _setting("chats.reply_to_mode", "HERMES_GATEWAY_REPLY_TO", one_of("off", "first", "all"), "first")
    """Which parts of an answer are replies to the message that was asked, where the platform has replies."""
    redacts_ids: bool = _setting("chats.redact_pii", "HERMES_GATEWAY_REDACT_PII", SWITCH, False)
    """Whether agents are shown ids of people and chats as hashes, on platforms where no message needs the real ones."""
    streams: bool = _setting("chats.streaming", "HERMES_GATEWAY_STREAMING", SWITCH, False)
    """Whether an answer is shown while it is written, as one message that is edited, where the platform can do that."""
    types: bool = _setting("chats.typing_indicator", "HERMES_GATEWAY_TYPING", SWITCH, False)
    """Whether a chat is shown that the agent writes, until the answer comes, where the platform can do that."""
    tool_progress: str = _setting(
        "chats.tool_progress", "HERMES_GATEWAY_TOOL_PROGRESS", one_of("off", "short", "full"), "off"
    )
    """What an answer that is shown while it is written shows of tools: nothing, which are at work and how many were, or
    the last twelve calls and how they ended."""
    tool_progress_modes: tuple[str, ...] = _setting(
        "chats.tool_progress_modes",
        "HERMES_GATEWAY_TOOL_PROGRESS_MODES",
        list_of_names(r"[a-z_]{1,30}=(off|short|full)", "`PLATFORM=MODE`"),
        (),
    )
    """Other modes for a platform: `telegram=full,slack=off`."""
    accounts: tuple[str, ...] = _setting(
        "chats.accounts", "HERMES_GATEWAY_ACCOUNTS", list_of_names(ACCOUNT_PATTERN, "accounts, as `telegram:ops`"), ()
    )
    """More accounts than one of a platform. The variables of `telegram:ops` end with its name:
    `TELEGRAM_BOT_TOKEN__OPS`."""
    chats: tuple[str, ...] = _setting(
        "chats.rules", "HERMES_GATEWAY_CHATS", list_of_names(RULE_PATTERN, "`ACCOUNT/CHAT=TENANT`"), ()
    )
    """Whose chats are: `telegram:ops/*=acme,telegram:default/-100123=globex`, with `TENANT/PROFILE` for sessions of
    their own. Others are the default tenant's."""
    lease_s: float = _setting("chats.lease_s", "HERMES_GATEWAY_LEASE_S", number(2.0, 600.0, "seconds"), 60.0)
    """For how long a gateway holds an account without renewing; another takes it then."""

    @property
    def rules(self) -> ChatRules:
        return ChatRules(self.chats)


@dataclass(frozen=True, slots=True, kw_only=True)
class CronSettings:
    """Scheduled jobs."""

    idle_s_max: float = _setting(
        "cron.inactivity_timeout",
        "HERMES_CRON_IDLE_S_MAX HERMES_CRON_TIMEOUT",
        number(0, 31 * 86_400, "seconds"),
        600.0,
    )
    """Seconds without any sign of progress before a job's run is given up, unless the job has its own limit; 0 for
    no limit."""
    script_timeout_s: float = _setting(
        "cron.script_timeout_seconds",
        "HERMES_CRON_SCRIPT_TIMEOUT_S HERMES_CRON_SCRIPT_TIMEOUT",
        number(1, 86_400, "seconds"),
        3600.0,
    )
    """Seconds a job's script may take."""
    outputs_kept: int = _setting("cron.output_retention", "HERMES_CRON_OUTPUTS_KEPT", integer(0, 1_000_000), 50)
    """How many documents of each job's runs are kept below `cron/output`; 0 keeps all."""
    wraps: bool = _setting("cron.wrap_response", "HERMES_CRON_WRAP", SWITCH, True)
    """Whether what a job delivers names the job and says how to stop it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """How long things are kept."""

    rules: tuple[str, ...] = _setting("retention.rules", "HERMES_RETENTION", RETENTION_RULES, ())
    """Rules that differ from the usual ones, for tenants without rules of their own, such as `runs=365d` or
    `firings=30d/1000`: see docs/retention.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """What agents remember between conversations."""

    is_enabled: bool = _setting("memory.memory_enabled", "HERMES_MEMORY", SWITCH, True)
    """Whether agents keep notes of their own."""
    knows_user: bool = _setting("memory.user_profile_enabled", "HERMES_MEMORY_USER", SWITCH, True)
    """Whether agents keep what they know about the user."""
    chars_max: int = _setting("memory.memory_char_limit", "HERMES_MEMORY_CHARS", integer(100, 100_000), 2200)
    """Characters of all notes together, which stand in every system prompt."""
    user_chars_max: int = _setting("memory.user_char_limit", "HERMES_MEMORY_USER_CHARS", integer(100, 100_000), 1375)
    """The same for what is known about the user."""
    write_approval: bool = _setting("memory.write_approval", "HERMES_MEMORY_APPROVAL", SWITCH, False)
    """Whether what runs want to remember waits for a person: see `hermes-worker memory approve`."""
    writers: tuple[str, ...] = _setting(
        "memory.writers",
        "HERMES_MEMORY_WRITERS",
        list_of_names("person|guest|child|webhook|cron", "`person`, `guest`, `child`, `webhook` and `cron`"),
        ("person",),
    )
    """Whose runs may change what is remembered: of a `person`, of a `guest` (a key without the scope `memory`), those
    that another run delegated (`child`), that an event began (`webhook`) or a schedule (`cron`)."""
    profile: str = _setting(
        "memory.profile",
        "HERMES_MEMORY_PROFILE",
        text_matching(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,59}", "a name of at most 60 letters, digits, '_', '.' and '-'"),
        "default",
    )
    """Which of a tenant's memories runs of this fleet have."""
    nudge_interval: int = _setting("memory.nudge_interval", "HERMES_MEMORY_NUDGE_INTERVAL", integer(0, 1_000), 0)
    """Turns of a conversation without a call of `memory`, behind which a run of its own looks for what to remember
    (docs/memory.md); 0 for never. 10 in Hermes Agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactSettings:
    """Files that runs leave."""

    patterns: tuple[str, ...] = _setting("artifacts.patterns", "HERMES_ARTIFACTS", ARTIFACT_PATTERNS, ())
    """Which files are kept of a run that names none itself, such as `*.csv,reports/**`: see docs/runs.md."""
    file_mb_max: int = _setting("artifacts.file_mb_max", "HERMES_ARTIFACT_FILE_MB", integer(1, 32), 10)
    """Megabytes of one file; a larger one is left out."""
    run_mb_max: int = _setting("artifacts.run_mb_max", "HERMES_ARTIFACT_RUN_MB", integer(1, 1_000), 50)
    """Megabytes of all files of one run together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillSettings:
    """Instructions that agents load when a task needs them."""

    writes: str = _setting("skills.writes", "HERMES_SKILL_WRITES", one_of("allow", "ask", "off"), "allow")
    """Whether agents may make and change skills: `allow`, `ask` (a person allows each change) or `off`."""
    writers: tuple[str, ...] = _setting(
        "skills.writers",
        "HERMES_SKILL_WRITERS",
        list_of_names("person|guest|child|webhook|cron", "`person`, `guest`, `child`, `webhook` and `cron`"),
        ("person",),
    )
    """Whose runs may, with the words of `memory.writers`."""
    external_dirs: tuple[str, ...] = _setting(
        "skills.external_dirs",
        "HERMES_SKILL_DIRS",
        list_of_names(r"[/~][^\x00-\x1f]{0,500}", "absolute directories"),
        (),
    )
    """Further directories of skills, beside `HOME/skills`; a name in the home stands before theirs."""
    disabled: tuple[str, ...] = _setting(
        "skills.disabled", "HERMES_SKILLS_DISABLED", list_of_names(r"[A-Za-z0-9_][\w.:-]{0,129}", "names of skills"), ()
    )
    """Skills that no agent is shown."""
    creation_nudge_interval: int = _setting(
        "skills.creation_nudge_interval", "HERMES_SKILL_NUDGE_INTERVAL", integer(0, 10_000), 0
    )
    """Model calls of a conversation without a call of `skill_manage`, behind which a run of its own looks for what
    should become a skill (docs/memory.md); 0 for never. 10 in Hermes Agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """What the files of a workspace were before an agent changed them."""

    enabled: bool = _setting("checkpoints.enabled", "HERMES_CHECKPOINTS", SWITCH, True)
    """Whether a checkpoint is made before a tool changes files of a workspace: see docs/checkpoints.md."""
    kept: int = _setting("checkpoints.max_snapshots", "HERMES_CHECKPOINTS_KEPT", integer(1, 1_000), 50)
    """Checkpoints of one workspace; the oldest go first."""
    mb_max: int = _setting("checkpoints.max_total_size_mb", "HERMES_CHECKPOINTS_MB", integer(1, 1_000_000), 500)
    """Megabytes on the disk of all checkpoints of one workspace; the newest one stays whatever it takes."""
    file_mb_max: int = _setting("checkpoints.max_file_size_mb", "HERMES_CHECKPOINT_FILE_MB", integer(1, 32), 10)
    """Megabytes of one file; a larger one is in no checkpoint, and a restore leaves it as it is."""


_OUTCOMES = ("ask", "deny", "approve")
_TIMES = integer(2, 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalSettings:
    """Dangerous commands. What is hardline is never run, whatever is set here."""

    mode: str = _setting("approvals.mode", "HERMES_APPROVALS_MODE", APPROVALS_MODE, "manual")
    """`manual` asks a person; `smart` asks the run's model first, and then a person about what the model does not
    approve; `off` asks nobody."""
    timeout_s: float | None = _setting(
        "approvals.timeout", "HERMES_APPROVALS_TIMEOUT_S", optional_number(1, 31 * 86_400, "seconds"), 60.0
    )
    """Seconds after which a question without an answer counts as refused; 0 for never."""
    cli: str = _setting("approvals.cli_mode", "HERMES_APPROVALS_CLI", one_of(*_OUTCOMES), "ask")
    """What happens to a dangerous command in a run from the command line."""
    api: str = _setting("approvals.api_mode", "HERMES_APPROVALS_API", one_of(*_OUTCOMES), "ask")
    """The same for runs submitted over the API."""
    cron: str = _setting("approvals.cron_mode", "HERMES_APPROVALS_CRON", one_of(*_OUTCOMES), "deny")
    """The same for scheduled runs, which nobody watches."""
    webhook: str = _setting("approvals.webhook_mode", "HERMES_APPROVALS_WEBHOOK", one_of(*_OUTCOMES), "deny")
    """The same for runs that a webhook started."""
    delegation: str = _setting("approvals.delegation_mode", "HERMES_APPROVALS_DELEGATION", one_of(*_OUTCOMES), "deny")
    """The same for child runs, whatever the source of their root."""
    deny: tuple[str, ...] = _setting(
        "approvals.deny",
        "HERMES_APPROVALS_DENY",
        list_of_names(r"[^\x00-\x1f]{1,500}", "command patterns with * and ?"),
        (),
    )
    """Commands that are never run, as patterns over the whole command."""
    allowed: tuple[str, ...] = _setting(
        "command_allowlist", "HERMES_COMMAND_ALLOWLIST", list_of_names(r"[^\x00-\x1f]{1,200}", "kinds of commands"), ()
    )
    """Kinds of dangerous commands that are not asked about, by the description a question shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailSettings:
    """What is said and done about an agent that repeats itself in vain."""

    warns: bool = _setting("tool_loop_guardrails.warnings_enabled", "HERMES_TOOL_LOOP_WARNINGS", SWITCH, True)
    """Whether a remark below a result tells the model that its call repeats itself in vain."""
    stops: bool = _setting("tool_loop_guardrails.hard_stop_enabled", "HERMES_TOOL_LOOP_HARD_STOP", SWITCH, False)
    """Whether such a call is blocked in the end and its turn is ended, with the exit reason `guardrail_halt`."""
    warn_exact_failure: int = _setting(
        "tool_loop_guardrails.warn_after.exact_failure", "HERMES_TOOL_LOOP_WARN_EXACT_FAILURE", _TIMES, 2
    )
    """Failures of the same call with the same arguments before the remark."""
    warn_same_tool_failure: int = _setting(
        "tool_loop_guardrails.warn_after.same_tool_failure", "HERMES_TOOL_LOOP_WARN_SAME_TOOL", _TIMES, 3
    )
    """Failures of one tool in a row before the remark."""
    warn_no_progress: int = _setting(
        "tool_loop_guardrails.warn_after.idempotent_no_progress", "HERMES_TOOL_LOOP_WARN_NO_PROGRESS", _TIMES, 2
    )
    """Equal results of a call that only reads before the remark."""
    stop_exact_failure: int = _setting(
        "tool_loop_guardrails.hard_stop_after.exact_failure", "HERMES_TOOL_LOOP_STOP_EXACT_FAILURE", _TIMES, 5
    )
    """Failures of the same call after which it is blocked."""
    stop_same_tool_failure: int = _setting(
        "tool_loop_guardrails.hard_stop_after.same_tool_failure", "HERMES_TOOL_LOOP_STOP_SAME_TOOL", _TIMES, 8
    )
    """Failures of one tool in a row after which the turn ends."""
    stop_no_progress: int = _setting(
        "tool_loop_guardrails.hard_stop_after.idempotent_no_progress", "HERMES_TOOL_LOOP_STOP_NO_PROGRESS", _TIMES, 5
    )
    """Equal results of a call that only reads after which it is blocked."""


class RemoteControl(StrEnum):
    """What may be done to a worker over the broker, with ``celery control`` or Flower."""

    READ = "read"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What Celery's own tools see of a worker, and what they may change."""

    sends_events: bool = _setting("worker.events", "HERMES_WORKER_EVENTS", SWITCH, False)
    """Whether a worker sends Celery's events from its start; Flower and `celery control enable_events` switch them on
    at any time."""
    remote_control: str = _setting(
        "worker.remote_control",
        "HERMES_REMOTE_CONTROL",
        one_of(*(level.value for level in RemoteControl)),
        RemoteControl.READ.value,
    )
    """`read` answers the commands of Celery's remote control that read, `all` also those that change a fleet
    (`shutdown`, `rate_limit`, `cancel_consumer`, `pool_grow` ...): whoever reaches the broker may send them."""
    is_debuggable: bool = _setting("worker.debuggable", "HERMES_DEBUGGABLE", SWITCH, False)
    """Whether other programs of the same user may look into the memory of the processes: for `py-spy`, `gdb` and core
    files. It holds secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowerSettings:
    """Flower, the web page that Celery engineers know (`hermes-worker start flower`)."""

    host: str = _setting("flower.host", "HERMES_FLOWER_HOST", HOST, "127.0.0.1")
    """Address to listen on."""
    port: int = _setting("flower.port", "HERMES_FLOWER_PORT", integer(0, 65_535), 5555)
    """TCP port to listen on; 0 takes a free one."""
    password: Secret | None = _setting("flower.password", "HERMES_FLOWER_PASSWORD", SECRET)  # noqa: RUF009 - a field
    """The password of that user. Without one Flower does not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionSettings:
    """What others wrote and the operator wants."""

    enabled: tuple[str, ...] = _setting(
        "extensions.enabled", "HERMES_EXTENSIONS", list_of_names(r"[a-z0-9][a-z0-9_-]{0,63}", "names of extensions"), ()
    )
    """Extensions to use, of installed packages and of `plugins/` in the home: their code runs with all rights of the
    processes. `hermes-worker extensions list` shows which there are."""
    settings: tuple[tuple[str, str], ...] = _setting("extensions.settings", "HERMES_EXTENSION_SETTINGS", VARIABLES, ())
    """What enabled extensions are to know, by the variables that they name; the variables themselves win. Not their
    secrets: every process sees it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What the process says about itself."""

    level: str = _setting(
        "logging.level", "HERMES_LOG_LEVEL", one_of("DEBUG", "INFO", "WARNING", "ERROR", fold=str.upper), "INFO"
    )
    """Least severe lines to write."""
    format: str = _setting(
        "logging.format", "HERMES_LOG_FORMAT", one_of(*(form.value for form in LogFormat)), LogFormat.CONSOLE.value
    )
    """`console` for people, `json` for log collectors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """Where Prometheus reads each process."""

    port: int | None = _setting("metrics.port", "HERMES_METRICS_PORT", optional_integer(0, 65_535))
    """Port on which every role serves `/metrics`, by convention 9464; 0 takes a free one and logs it. Not set: nobody
    listens. `up` gives its roles this port and the next ones: API, scheduler, model worker, tools worker."""
    host: str = _setting("metrics.host", "HERMES_METRICS_HOST", HOST, "127.0.0.1")
    """Address to listen on. There is no key: whoever reaches it reads how much is done and spent, but no ids, no
    names of tenants and nothing that anybody wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSettings:
    """Where traces go."""

    endpoint: str | None = _setting("tracing.endpoint", "HERMES_TRACING_ENDPOINT", WEB_URL)
    """Where a collector of OpenTelemetry takes traces by OTLP over HTTP, such as `http://collector:4318/v1/traces`. Not
    set: none are made. Needs the extra `otel`."""
    texts: bool = _setting("tracing.texts", "HERMES_TRACING_TEXTS", SWITCH, False)
    """Whether what people, models and tools wrote is in the spans as well: messages, replies, arguments and results,
    without secrets and cut to 16,000 characters each. Whoever reads the traces then reads all that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything, in groups."""

    home: Path = _setting("home", "HERMES_HOME", DIRECTORY, MISSING)  # noqa: RUF009 - a field
    """Directory of state, `config.yaml` and `.env`. Not set: `~/.hermes-worker`."""
    preset: str | None = _setting("preset", "HERMES_PRESET", PRESET)
    """Defaults for the size of an installation: `small` is a server with one core and 1 GB, `team` one machine for
    several people, `fleet` several machines. Whatever is set by itself wins."""
    database: DatabaseSettings = field(default_factory=DatabaseSettings)
    encryption: EncryptionSettings = field(default_factory=EncryptionSettings)
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    lease: LeaseSettings = field(default_factory=LeaseSettings)
    agent: AgentSettings = field(default_factory=AgentSettings)
    delegation: DelegationSettings = field(default_factory=DelegationSettings)
    terminal: TerminalSettings = field(default_factory=TerminalSettings)
    browser: BrowserSettings = field(default_factory=BrowserSettings)
    mcp: McpSettings = field(default_factory=McpSettings)
    approvals: ApprovalSettings = field(default_factory=ApprovalSettings)
    tool_loop_guardrails: GuardrailSettings = field(default_factory=GuardrailSettings)
    cron: CronSettings = field(default_factory=CronSettings)
    delivery: DeliverySettings = field(default_factory=DeliverySettings)
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    artifacts: ArtifactSettings = field(default_factory=ArtifactSettings)
    skills: SkillSettings = field(default_factory=SkillSettings)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    flower: FlowerSettings = field(default_factory=FlowerSettings)
    extensions: ExtensionSettings = field(default_factory=ExtensionSettings)
    log: LogSettings = field(default_factory=LogSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    tracing: TracingSettings = field(default_factory=TracingSettings)
    faults: str = _setting("faults", "HERMES_FAULTS", FAULT_PLAN, "")
    """Fault points to arm, for tests: see `hermes_worker/system/faults.py`."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """What was found and has no effect, as sentences to show once at the start."""
    environ: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False, compare=False)
    """The environment this process was started with, and below it ``.env``: what child processes and commands start
    from. Secrets that were given by file stand in it as if they had been given by value."""
    secret_files: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), compare=False)
    """The files that secrets came from, by the variables that name them (``HERMES_SERVER_KEY_FILE``)."""
    origins: Mapping[str, SettingOrigin] = field(
        default_factory=lambda: MappingProxyType({}), repr=False, compare=False
    )
    """Where each setting that somebody gave comes from, by key."""

    @property
    def database_url(self) -> str:
        """The configured database, or the SQLite file in ``home``."""
        return self.database.url or f"sqlite:///{self.home / 'hermes-worker.db'}"

    @property
    def variables(self) -> Mapping[str, str]:
        """What extensions find: ``environ``, and below it ``extensions.settings``."""
        given = {name: value for name, value in self.environ.items() if value.strip()}
        return {**dict(self.extensions.settings), **given}

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """What must never be seen in a log: keys, and the passwords inside URLs."""
        passwords = [parse_servers_url(url).password for url in (self.database.url, self.broker.url) if url]
        if sentinels := parse_sentinels(self.broker.url or ""):
            passwords.append(sentinels.own.get("password"))
        model = self.model
        logins = (*model.refresh_tokens, model.client_secret, *(each.key for each in model.tenant_keys))
        served = (self.server.key, *self.server.previous_keys, self.flower.password, self.gateway.transcription_key)
        keys = (model.api_key, *model.more_keys, *logins, *served, *model.vendor_keys.values())
        texts = (key for key in self.encryption.keys if key.reveal() != NO_TEXT_KEY)
        declared = installed.get_installed().secret_variables
        others = (value.strip() for name, value in self.environ.items() if strip_account_suffix(name) in declared)
        return (
            *(key for key in keys if key),
            *texts,
            *(Secret(password) for password in passwords if password),
            *(Secret(value) for value in others if value),
        )


_GROUPS: Mapping[str, type] = MappingProxyType(
    {
        "database": DatabaseSettings,
        "encryption": EncryptionSettings,
        "broker": BrokerSettings,
        "model": ModelSettings,
        "server": ServerSettings,
        "lease": LeaseSettings,
        "agent": AgentSettings,
        "delegation": DelegationSettings,
        "terminal": TerminalSettings,
        "browser": BrowserSettings,
        "mcp": McpSettings,
        "approvals": ApprovalSettings,
        "tool_loop_guardrails": GuardrailSettings,
        "cron": CronSettings,
        "delivery": DeliverySettings,
        "gateway": GatewaySettings,
        "retention": RetentionSettings,
        "memory": MemorySettings,
        "artifacts": ArtifactSettings,
        "skills": SkillSettings,
        "checkpoints": CheckpointSettings,
        "worker": WorkerSettings,
        "flower": FlowerSettings,
        "extensions": ExtensionSettings,
        "log": LogSettings,
        "metrics": MetricsSettings,
        "tracing": TracingSettings,
    }
)


def _iterate_declared(group: type) -> Iterator[tuple[Field[Any], _Declaration]]:
    for item in fields(group):
        if declaration := item.metadata.get("setting"):
            yield item, declaration


_DECLARATIONS: tuple[_Declaration, ...] = tuple(
    declaration for group in (Settings, *_GROUPS.values()) for _, declaration in _iterate_declared(group)
)
_DECLARATION_OF = MappingProxyType({declaration.key: declaration for declaration in _DECLARATIONS})
_VARIABLES = frozenset(variable for declaration in _DECLARATIONS for variable in declaration.variables)
_RETIRED_VARIABLES = frozenset(variable for each in RETIRED.values() for variable in each.variables)
_SECRET_VARIABLES = frozenset(name for known in _DECLARATIONS if known.kind.is_secret for name in known.variables)


# --- keys of the original -------------------------------------------------------------------------------------------


def _split_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_REFERENCE_TOP_LEVEL = _split_words(
    "_config_version always_log_local auxiliary bedrock browser checkpoints code_execution"
    " compression computer_use context context_file_max_chars credential_pool_strategies curator custom_providers"
    " dashboard delegation desktop discord display fallback_model file_read_max_chars"
    " filter_silence_narration gateway goals group_sessions_per_user honcho hooks hooks_auto_accept human_delay"
    " image_gen kanban known_plugin_toolsets lsp matrix mattermost max_concurrent_sessions max_live_sessions mcp"
    " mcp_discovery_timeout mcp_servers memory moa model_catalog multiplex_profiles network onboarding openrouter"
    " paste_collapse_char_threshold paste_collapse_threshold paste_collapse_threshold_fallback personalities"
    " platform_hints platform_toolsets platforms plugins prefill_messages_file privacy profile_routes prompt_caching"
    " providers quick_commands require_mention reset_triggers secrets security session_reset sessions signal skills"
    " slack smart_model_routing streaming stt stt_echo_transcripts telegram thread_sessions_per_user timezone"
    " tool_output tools toolsets tts unauthorized_dm_behavior updates vertex video_gen voice web"
    " whatsapp x_search"
)
"""Top-level keys of Hermes Agent 0.19 (hermes_cli/config.py, DEFAULT_CONFIG and the extra known roots)."""
_REFERENCE_KEYS = _split_words(
    "memory.provider memory.flush_min_turns"
    " browser.allow_private_urls browser.auto_local_for_private_urls browser.camofox browser.cdp_url"
    " browser.cloud_provider browser.command_timeout browser.dialog_policy browser.dialog_timeout_s browser.engine"
    " browser.inactivity_timeout browser.record_sessions "
    "compression.abort_on_summary_failure compression.hygiene_hard_message_limit compression.in_place"
    " compression.summary_model compression.summary_provider compression.summary_base_url"
    " agent.clarify_timeout agent.coding_context agent.coding_instructions agent.disabled_toolsets"
    " agent.environment_hint agent.environment_probe agent.gateway_auto_continue_freshness"
    " agent.gateway_notify_interval agent.gateway_timeout_warning agent.image_input_mode"
    " agent.intent_ack_continuation agent.local_stream_stale_timeout agent.max_verify_nudges"
    " agent.parallel_tool_call_guidance agent.reasoning_overrides agent.restart_drain_timeout"
    " cron.max_parallel_jobs cron.mirror_delivery cron.provider cron.session_db_timeout_seconds"
    " agent.service_tier agent.task_completion_guidance agent.tool_use_enforcement agent.verify_guidance"
    " agent.verify_on_stop agent.verbose agent.system_prompt logging.backup_count logging.max_size_mb"
    " terminal.auto_source_bashrc terminal.backend terminal.container_cpu"
    " terminal.container_disk terminal.container_memory terminal.container_persistent terminal.cwd"
    " terminal.daemon_term_grace_seconds terminal.daytona_image terminal.docker_env terminal.docker_extra_args"
    " terminal.docker_forward_env terminal.docker_image terminal.docker_mount_cwd_to_workspace"
    " terminal.docker_network terminal.docker_run_as_host_user terminal.docker_volumes terminal.home_mode"
    " terminal.lifetime_seconds terminal.modal_image terminal.modal_mode terminal.persistent_shell"
    " terminal.shell_init_files terminal.singularity_image terminal.sudo_password"
)
"""Keys of the original inside groups that we have as well."""


# --- loading ---------------------------------------------------------------------------------------------------------


class SettingLayer(StrEnum):
    """Who said what a setting says."""

    RUN = "run"
    SESSION = "session"
    TENANT = "tenant"
    COMMAND_LINE = "command_line"
    ENVIRONMENT = "environment"
    DOTENV = "dotenv"
    FLEET = "fleet"
    """The configuration in the database."""
    FILE = "file"
    PRESET = "preset"
    DERIVED = "derived"
    """Nobody: it follows from other settings."""
    DEFAULT = "default"


class SettingOrigin(NamedTuple):
    """Where the value of a setting comes from."""

    layer: SettingLayer
    place: str
    """In words: ``HERMES_MODEL in the environment``."""


class _FoundValue(NamedTuple):
    raw: object
    source: str
    """Completes the sentence "but ... says"."""
    layer: SettingLayer = SettingLayer.DEFAULT


class _Sources:
    """Everything that was given, in order of precedence."""

    def __init__(
        self,
        overrides: Mapping[str, object],
        environ: Mapping[str, str],
        dotenv: Mapping[str, str],
        config: Mapping[str, object],
        withheld: frozenset[str] = frozenset(),
        fleet: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.withheld = withheld
        """Settings that exist and are not for this process."""
        self._fleet = fleet
        self._overrides = overrides
        self._environ = environ
        self._dotenv = dotenv
        self._config = config

    def origins(self) -> Mapping[str, SettingOrigin]:
        """Where each setting that was given comes from, by key."""
        found = ((declaration.key, self.find(declaration)) for declaration in _DECLARATIONS)
        return {key: SettingOrigin(each.layer, each.source) for key, each in found if each is not None}

    def find(self, declaration: _Declaration | RetiredSetting) -> _FoundValue | None:
        if self._overrides.get(declaration.key) is not None:
            return _FoundValue(self._overrides[declaration.key], "the command line", SettingLayer.COMMAND_LINE)
        for layer, place, variables in (
            (SettingLayer.ENVIRONMENT, "the environment", self._environ),
            (SettingLayer.DOTENV, ".env", self._dotenv),
        ):
            for name in declaration.variables:
                if variables.get(name, "").strip():
                    return _FoundValue(variables[name], f"{name} in {place}", layer)
        if (said := self._fleet.get(declaration.key)) is not None:
            return _FoundValue(said, f"{declaration.key} in the configuration of the fleet", SettingLayer.FLEET)
        if self._config.get(declaration.key) not in (None, ""):
            raw = self._expand_variables(declaration.key, self._config[declaration.key])
            return _FoundValue(raw, f"{declaration.key} in config.yaml", SettingLayer.FILE)
        if declaration.key in PRESET_KEYS and (usual := find_preset_value(self._preset, declaration.key)) is not None:
            return _FoundValue(usual, f"preset {self._preset}", SettingLayer.PRESET)
        return None

    @cached_property
    def _preset(self) -> str | None:
        chosen: str | None = _read_value(self, _DECLARATION_OF["preset"], None)
        return chosen

    def find_variable(self, name: str) -> _FoundValue | None:
        for place, variables in (("the environment", self._environ), (".env", self._dotenv)):
            if variables.get(name, "").strip():
                return _FoundValue(variables[name].strip(), f"{name} in {place}")
        return None

    def variable_names(self) -> frozenset[str]:
        return frozenset(self._environ) | frozenset(self._dotenv)

    def _expand_variables(self, key: str, raw: object) -> object:
        if isinstance(raw, list):
            return [self._expand_variables(key, item) for item in raw]
        return (
            _VARIABLE.sub(lambda match: self._find_variable_value(key, match[1]), raw) if isinstance(raw, str) else raw
        )

    def _find_variable_value(self, key: str, name: str) -> str:
        found = self.find_variable(name)
        if found is None:
            raise ConfigurationError(f"{key} in config.yaml refers to ${{{name}}}, which is not set.")
        return str(found.raw)


_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def load_settings(
    environ: Mapping[str, str] | None = None,
    *,
    home: Path | None = None,
    overrides: Mapping[str, object] = MappingProxyType({}),
    config_text: str | None = None,
    fleet: Mapping[str, str] = MappingProxyType({}),
) -> Settings:
    """Read all settings. Creates and changes nothing. ``config_text`` stands in for what ``config.yaml`` says, and
    ``fleet`` is what the configuration in the database says (``overriding.fleet_values``).

    ``environ`` stands in for the environment of the process; ``home`` for HERMES_HOME. ``overrides`` maps keys
    (``server.port``) to what the command line said; ``None`` means it said nothing. Raises ``ConfigurationError``:
    one sentence that names the key, where its value came from and what is allowed.
    """
    handed = _receive_handover() if environ is None else Handover()
    environ = {**(os.environ if environ is None else environ), **handed.variables}
    _require_known_keys(overrides)
    home = _find_home(home or overrides.get("home"), environ)
    own = {} if handed.is_complete else _read_dotenv(home / ".env")
    environ, dotenv, files = _read_secret_files(environ, own, is_handed=handed.is_complete)
    config, notes = ({}, []) if handed.is_complete else _read_config(home / "config.yaml", config_text)
    sources = _Sources(overrides, environ, dotenv, config, handed.withheld, fleet)
    settings = Settings(
        home=home,
        **{name: group(**_read_values(group, sources)) for name, group in _GROUPS.items() if group not in _MADE_APART},
        model=_build_model(sources),
        terminal=_build_terminal(sources),
        preset=_read_value(sources, _DECLARATION_OF["preset"], None),
        faults=_read_value(sources, _DECLARATION_OF["faults"], ""),
        notes=()
        if handed.is_complete
        else (*notes, *_dotenv_notes(home / ".env"), *_variable_notes(sources), *_retired_notes(sources)),
        environ=MappingProxyType({**dotenv, **environ}),
        secret_files=MappingProxyType(files),
        origins=MappingProxyType(_find_origins(handed, sources)),
    )
    _check_together(settings, handed.withheld)
    return settings


def _find_origins(handed: Handover, sources: _Sources) -> dict[str, SettingOrigin]:
    """Who was handed everything was handed this as well: all of it stands in the environment."""
    if not handed.is_complete:
        return dict(sources.origins())
    return {key: SettingOrigin(SettingLayer(layer), place) for key, (layer, place) in handed.origins.items()}


_MADE_APART = (ModelSettings, TerminalSettings)
_handed = Handover()
"""What was handed to this process, once it was looked for."""


def _receive_handover() -> Handover:
    global _handed
    if found := take_handover(os.environ):
        _handed = found
        for name in READ_BY_LIBRARIES & found.variables.keys():
            os.environ[name] = found.variables[name]
    return _handed


def is_supervised() -> bool:
    """Whether ``up`` or ``run`` started this process as one of its roles."""
    return _handed.is_complete


def _read_secret_files(
    environ: Mapping[str, str], dotenv: Mapping[str, str], *, is_handed: bool
) -> tuple[Mapping[str, str], Mapping[str, str], dict[str, str]]:
    """Both with what the files of secrets say, and which files those are. Who was handed its secrets does not read
    them; it has to know what no command may see."""
    if is_handed:
        return environ, dotenv, find_named_files(environ, _may_come_by_file)
    below = read_files(dotenv, _may_come_by_file, place=".env")
    above = read_files(environ, _may_come_by_file, place="the environment")
    return above.variables, below.variables, {**below.files, **above.files}


def _may_come_by_file(variable: str) -> bool:
    """A secret of ours, or one that a role needs. Other people's variables that sound secret may mean something else by
    ``_FILE``, and what a library reads by itself it would not find."""
    if variable in READ_BY_LIBRARIES:
        return False
    return variable in _SECRET_VARIABLES or bool(_find_owners(variable, ""))


def _build_terminal(sources: _Sources) -> TerminalSettings:
    given = TerminalSettings(**_read_values(TerminalSettings, sources))
    if given.umask is None and (found := sources.find_variable(STARTED_UMASK)):
        return replace(given, umask=UMASK.parse(found.raw))
    return given


def _require_known_keys(overrides: Mapping[str, object]) -> None:
    for key in overrides:
        if key not in _DECLARATION_OF:
            raise ConfigurationError(f"{key!r} is not a setting{_format_suggestion(key, _DECLARATION_OF)}.")


def _find_home(given: object, environ: Mapping[str, str]) -> Path:
    declaration = _DECLARATION_OF["home"]
    if given is not None:
        return Path(_parse_value(declaration, _FoundValue(given, "the command line")))
    if variable := environ.get("HERMES_HOME", "").strip():
        return Path(_parse_value(declaration, _FoundValue(variable, "HERMES_HOME in the environment")))
    user_home = environ.get("HOME", "").strip()
    return (Path(user_home) if user_home else Path.home()) / ".hermes-worker"


def _read_values(group: type, sources: _Sources) -> dict[str, Any]:
    return {
        item.name: _read_value(sources, declaration, item.default) for item, declaration in _iterate_declared(group)
    }


def _read_value(sources: _Sources, declaration: _Declaration, default: object) -> Any:
    found = sources.find(declaration)
    return default if found is None else _parse_value(declaration, found)


def _parse_value(declaration: _Declaration, found: _FoundValue) -> Any:
    kind = declaration.kind
    try:
        return kind.parse(found.raw)
    except (ValueError, TypeError):
        said = f"says {found.raw!r}" if kind.is_quotable else "says something else"
    except ConfigurationError as error:
        said = f"is wrong: {str(error).removesuffix('.')}"
    raise ConfigurationError(f"{declaration.key} must be {kind.allowed}, but {found.source} {said}.")


def _format_suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _check_together(settings: Settings, withheld: frozenset[str]) -> None:
    server = settings.server
    if server.key is None and not server.is_loopback and "server.key" not in withheld:
        raise ConfigurationError(
            f"server.key (HERMES_SERVER_KEY) must be set when server.host is {server.host!r},"
            " because others than this machine can connect to that address."
        )
    _check_logins(settings.model)
    if settings.encryption.keys and settings.encryption.keys_command:
        raise ConfigurationError(
            "encryption.keys and encryption.keys_command (HERMES_ENCRYPTION_KEYS_COMMAND) are both set; remove one of"
            " them."
        )


def _check_logins(model: ModelSettings) -> None:
    if not model.refresh_tokens:
        return
    if model.token_url is None:
        raise ConfigurationError("model.token_url (HERMES_TOKEN_URL) must be set because model.refresh_tokens is.")
    parts = urlsplit(model.token_url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise ConfigurationError("model.token_url (HERMES_TOKEN_URL) must begin with https://: a login is sent there.")
    if any(len(token.reveal()) < _REFRESH_TOKEN_CHARS_MIN for token in model.refresh_tokens):
        raise ConfigurationError(
            f"model.refresh_tokens (HERMES_REFRESH_TOKENS) must be tokens of at least {_REFRESH_TOKEN_CHARS_MIN}"
            " characters."
        )
    if model.is_scripted:
        raise ConfigurationError(
            "model.provider (HERMES_PROVIDER) or model.base_url must be set because model.refresh_tokens is."
        )


_REFRESH_TOKEN_CHARS_MIN = 16
"""Shorter ones could be guessed, and what they encrypt with them."""


# --- the model -------------------------------------------------------------------------------------------------------


class _Vendor(NamedTuple):
    provider: str
    key_variable: str
    url_variable: str
    host: str


_VENDORS = (
    _Vendor("openai", "OPENAI_API_KEY", "OPENAI_BASE_URL", "api.openai.com"),
    _Vendor("anthropic", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "api.anthropic.com"),
    _Vendor("openrouter", "OPENROUTER_API_KEY", "OPENROUTER_BASE_URL", "openrouter.ai"),
)
"""In the order in which their keys are looked for when nothing else says whom to ask."""


def _build_model(sources: _Sources) -> ModelSettings:
    given = ModelSettings(**_read_values(ModelSettings, sources), vendor_keys=_find_vendor_keys(sources))
    if given.provider == "scripted" or "model.api_key" in sources.withheld:
        return given
    if given.api_key is not None:
        return given if given.provider or given.base_url else replace(given, provider=_guess_provider(given.api_key))
    if given.provider or given.base_url:
        return _add_vendor_key(_find_vendor(given), given, sources)
    for vendor in _VENDORS:
        if vendor.key_variable in given.vendor_keys:
            return _add_vendor_key(vendor, given, sources)
    for vendor in _VENDORS:
        if base_url := _check_variable(sources, vendor.url_variable, WEB_URL):
            return replace(given, base_url=base_url)
    return replace(given, provider="scripted")


def _find_vendor_keys(sources: _Sources) -> Mapping[str, Secret]:
    """Keys by variable. Of other people's variables that happen to end so, a wrong value is nobody's business."""
    ours = {vendor.key_variable for vendor in _VENDORS}
    keys = {}
    for name in sorted(sources.variable_names() - _VARIABLES):
        is_known = _KEY_VARIABLE.fullmatch(name) or name in PROVIDER_SECRETS
        if name in ours or (is_known and _is_key(sources.find_variable(name))):
            keys[name] = _check_variable(sources, name, SECRET)
    return MappingProxyType({name: key for name, key in keys.items() if key is not None})


_KEY_VARIABLE = re.compile(r"\w+_API_KEY(?:_\d{1,2})?")


def _is_key(found: _FoundValue | None) -> bool:
    try:
        return found is not None and bool(SECRET.parse(found.raw))
    except ValueError:
        return False


def _find_vendor(model: ModelSettings) -> _Vendor | None:
    """Whose key may be sent: the named provider's, or that of the owner of the address."""
    if model.provider:
        return next((vendor for vendor in _VENDORS if vendor.provider == model.provider), None)
    host = (urlsplit(model.base_url or "").hostname or "").lower().removesuffix(".")
    return next((v for v in _VENDORS if host == v.host or host.endswith(f".{v.host}")), None)


def _add_vendor_key(vendor: _Vendor | None, model: ModelSettings, sources: _Sources) -> ModelSettings:
    if vendor is None:
        return model
    key = model.vendor_keys.get(vendor.key_variable)
    base_url = model.base_url or _check_variable(sources, vendor.url_variable, WEB_URL)
    if key is None and base_url is None and not model.refresh_tokens and not model.is_asked_elsewhere:
        raise ConfigurationError(
            f"model.api_key must be set because model.provider is {model.provider!r}: set {vendor.key_variable}."
        )
    return replace(model, provider=vendor.provider, api_key=key, base_url=base_url)


def _guess_provider(key: Secret) -> str:
    """Whose key this is, by the prefixes that Anthropic and OpenRouter use; OpenAI's when it has neither."""
    text = key.reveal()
    return "anthropic" if text.startswith("sk-ant-") else "openrouter" if text.startswith("sk-or-") else "openai"


def _check_variable(sources: _Sources, name: str, kind: SettingKind[Any]) -> Any:
    """The value of a variable that is no setting of ours; ``None`` when it is not set."""
    found = sources.find_variable(name)
    return None if found is None else _parse_value(_Declaration(name, (name,), kind), found)


# --- files -----------------------------------------------------------------------------------------------------------

_DOTENV_LINE = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*(.*)")
_DOUBLE_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"[ \t]*(?:#.*)?')
_SINGLE_QUOTED = re.compile(r"'([^']*)'[ \t]*(?:#.*)?")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


_FILE_BYTES_MAX = 4_000_000


def _read_text(path: Path) -> str | None:
    """The file's text; ``None`` when there is no such file."""
    try:
        content = read_plain(path, bytes_max=_FILE_BYTES_MAX + 1)
        if len(content) > _FILE_BYTES_MAX:
            raise ConfigurationError(f"{path} cannot be read: it has more than {_FILE_BYTES_MAX} bytes.")
        return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(f"{path} cannot be read: {reason}.") from error


def _read_dotenv(path: Path) -> dict[str, str]:
    """Variables of a ``.env`` file: ``NAME=value`` lines, quoted or not, with or without ``export``. Nothing in it is
    expanded or executed."""
    variables = {}
    for position, raw_line in enumerate((_read_text(path) or "").splitlines(), start=1):
        line = raw_line.strip()
        if not line or line.startswith("#"):
            continue
        match = _DOTENV_LINE.fullmatch(line)
        value = _dotenv_value(match[2]) if match else None
        if match is None or value is None:
            # The line is not shown: it may be half a key.
            raise ConfigurationError(f"line {position} of {path} must have the form NAME=value.")
        variables[match[1]] = value
    return variables


def _dotenv_value(text: str) -> str | None:
    if text.startswith('"'):
        quoted = _DOUBLE_QUOTED.fullmatch(text)
        return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), quoted[1]) if quoted else None
    if text.startswith("'"):
        quoted = _SINGLE_QUOTED.fullmatch(text)
        return quoted[1] if quoted else None
    return re.sub(r"[ \t]+#.*", "", text).strip()


def _dotenv_notes(path: Path) -> Iterator[str]:
    if path.exists() and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        yield f"{path} can be read by other users of this machine; chmod 600 it."


def _variable_notes(sources: _Sources) -> Iterator[str]:
    for name in sorted(sources.variable_names() - _VARIABLES - _RETIRED_VARIABLES):
        if name.startswith("HERMES_") and (close := difflib.get_close_matches(name, _VARIABLES, n=1, cutoff=0.85)):
            yield f"{name} is not a setting and has no effect; did you mean {close[0]}?"


def _retired_notes(sources: _Sources) -> Iterator[str]:
    for each in RETIRED.values():
        if (found := sources.find(each)) is not None:
            yield f"{each.key} ({found.source}) {each.explanation}; leave it out."


def _read_config(path: Path | str, text: str | None = None) -> tuple[dict[str, object], list[str]]:
    """Our keys of ``config.yaml`` with their raw values, and a note about the original's keys that we do not use.
    ``text`` stands in for the file."""
    text = _read_text(Path(path)) if text is None else text
    if text is None:
        return {}, []
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}" if mark else ""
        raise ConfigurationError(f"{path} is not valid YAML{place}.") from None
    if document is None:
        return {}, []
    if not isinstance(document, dict):
        raise ConfigurationError(f"{path} must be a mapping of setting groups, such as 'model:'.")
    config: dict[str, object] = {}
    unused = []
    for key, value in _flatten_keys(document):
        if key in _CONFIG_KEYS or key in RETIRED:
            config[key] = value
        elif key in _REFERENCE_TOP_LEVEL or key in _REFERENCE_KEYS:
            unused.append(key)
        else:
            known = (*_CONFIG_KEYS, *_REFERENCE_KEYS, *_REFERENCE_TOP_LEVEL, *_CONFIG_GROUPS)
            raise ConfigurationError(f"{key!r} in {path} is not a setting{_format_suggestion(key, known)}.")
    notes = [f"Hermes worker does not use these keys of {path}: {', '.join(unused)}."] if unused else []
    return config, notes


_CONFIG_KEYS = tuple(key for key in _DECLARATION_OF if key != "home")
"""The home directory is where config.yaml is, so it cannot be named there."""
_CONFIG_GROUPS = frozenset(key.partition(".")[0] for key in _DECLARATION_OF if "." in key)


def _flatten_keys(document: Mapping[object, object]) -> Iterator[tuple[str, object]]:
    """Dotted keys of the groups we have; other keys as they are."""
    for name, value in document.items():
        if name not in _CONFIG_GROUPS:
            yield str(name), value
        elif isinstance(value, dict):
            yield from _flatten_below(str(name), value)
        elif name == "model" and isinstance(value, str):
            yield "model.default", value
        elif value is not None:
            raise ConfigurationError(f"{name} in config.yaml must be a mapping of settings.")


def _flatten_below(group: str, values: Mapping[object, object]) -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        key = f"{group}.{name}"
        if isinstance(value, dict) and any(known.startswith(f"{key}.") for known in _CONFIG_KEYS):
            yield from _flatten_below(key, value)
        else:
            yield key, value


# --- handing on ------------------------------------------------------------------------------------------------------


def render_environ(settings: Settings) -> dict[str, str]:
    """An environment for child processes, in which ``load_settings`` gives these very settings.

    It is the environment this process was started with, with every setting spelled out, so that a child started
    later does not pick up an edit of ``config.yaml`` that its siblings do not have. Holds secrets: what is handed to
    another process goes through ``build_handover``.
    """
    environ = {name: value for name, value in settings.environ.items() if name not in _VARIABLES}
    for group in (settings, *(getattr(settings, name) for name in _GROUPS)):
        for item, declaration in _iterate_declared(type(group)):
            value = getattr(group, item.name)
            # A limit that is ``None`` was taken off and must not come back as the default.
            is_given = value is not None or item.default not in (None, MISSING)
            if is_given and (text := declaration.kind.render(value)):
                environ[declaration.variables[0]] = text
    return environ


def build_handover(settings: Settings, *roles: ProcessRole) -> tuple[dict[str, str], Handover]:
    """The environment of a child process that has these roles, without any secret, and what it gets by descriptor:
    the secrets of its roles. Its ``load_settings`` reads no file and gives ``settings``, but for the secrets of
    others."""
    environ = {}
    secrets = {}
    for name, value in render_environ(settings).items():
        whose = None if _is_harmless_setting(name) else _find_owners(name, value)
        if whose is not None and not _is_needed_by_api(settings, name):
            whose -= {ProcessRole.API}
        if whose is None:
            environ[name] = value
        elif not whose.isdisjoint(roles) or _is_for_commands(settings, name, roles):
            secrets[name] = value
    environ |= settings.secret_files
    return environ, Handover(
        variables=secrets, is_complete=True, withheld=list_withheld(roles), origins=dict(settings.origins)
    )


def _find_owners(variable: str, value: str) -> frozenset[ProcessRole] | None:
    """As ``owners``; of a secret that an extension declares, the roles that it names."""
    roles = installed.get_installed().secret_variables.get(strip_account_suffix(variable))
    return find_owners(variable, value) if roles is None else frozenset(ProcessRole(role) for role in roles)


def _is_needed_by_api(settings: Settings, variable: str) -> bool:
    """Whether the API needs this secret if it knows requests of a platform by it: where the platform brings any. What
    answers are sent with may be the same secret, and says nothing of that."""
    usual = strip_account_suffix(variable)
    needs = installed.get_installed().webhook_needs.get(usual, ())
    ending = variable.removeprefix(usual)
    return not needs or (
        settings.gateway.is_enabled
        and all((settings.environ.get(f"{need}{ending}") or settings.environ.get(need, "")).strip() for need in needs)
    )


def _is_harmless_setting(variable: str) -> bool:
    """One of ours that is not secret, whatever its name or value sounds like."""
    return variable in _VARIABLES and variable not in _SECRET_VARIABLES


def _is_for_commands(settings: Settings, variable: str, roles: Iterable[ProcessRole]) -> bool:
    return variable in settings.terminal.env_passthrough and ProcessRole.TOOLS in roles


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingWithSource:
    """What a setting says, and who said so."""

    key: str
    variable: str
    value: str | None
    """As it is written in the environment; ``None`` for one that is not set, and for every secret."""
    is_secret: bool
    is_set: bool
    layer: SettingLayer
    origin: str
    """The layer in words."""
    doc: str


def list_with_sources(settings: Settings) -> Iterator[SettingWithSource]:
    """What every setting of a process says, in the order of the groups, and where that comes from. No secret is told.
    One that is for other processes only counts as set where it was given."""
    docs = _field_docs()
    for name, group in (("", Settings), *_GROUPS.items()):
        values = getattr(settings, name) if name else settings
        for item, declaration in _iterate_declared(group):
            value = getattr(values, item.name)
            text = "" if value is None else declaration.kind.render(value)
            default = "" if item.default in (None, MISSING) else declaration.kind.render(item.default)
            origin = settings.origins.get(declaration.key) or _origin_of_default(text, default)
            yield SettingWithSource(
                key=declaration.key,
                variable=declaration.variables[0],
                value=None if declaration.kind.is_secret or not text else text,
                is_secret=declaration.kind.is_secret,
                is_set=bool(text) or declaration.key in settings.origins,
                layer=origin.layer,
                origin=origin.place,
                doc=docs[group.__name__, item.name],
            )


def _origin_of_default(text: str, default: str) -> SettingOrigin:
    if text == default:
        return SettingOrigin(SettingLayer.DEFAULT, "default")
    return SettingOrigin(SettingLayer.DERIVED, "other settings")


def parse_config_text(text: str, *, place: str) -> dict[str, object]:
    """What a text that is written as ``config.yaml`` says of our settings, retired ones among them, by key, as YAML
    reads it. Raises ``ConfigurationError``, in words that call it ``place``."""
    return _read_config(place, text)[0]


def find_setting(key: str) -> tuple[str, SettingKind[Any]]:
    """The variable of a setting and what it may hold. Raises ``ConfigurationError`` for what is none."""
    if key in RETIRED:
        raise ConfigurationError(f"{key} {RETIRED[key].explanation}.")
    if key not in _CONFIG_KEYS:
        raise ConfigurationError(f"{key!r} is not a setting{_format_suggestion(key, _CONFIG_KEYS)}.")
    declaration = _DECLARATION_OF[key]
    return declaration.variables[0], declaration.kind


class SettingRow(NamedTuple):
    """One line of the configuration table."""

    key: str
    variable: str
    allowed: str
    """What its value may be, as errors say it."""
    is_secret: bool
    default: str
    """Empty when the setting is not set by default."""
    doc: str


def describe_settings() -> Iterator[SettingRow]:
    """Every setting, in the order of the groups."""
    docs = _field_docs()
    for group in (Settings, *_GROUPS.values()):
        for item, declaration in _iterate_declared(group):
            has_default = item.default not in (None, MISSING)
            kind = declaration.kind
            yield SettingRow(
                key=declaration.key,
                variable=declaration.variables[0],
                allowed=kind.allowed,
                is_secret=kind.is_secret,
                default=kind.render(item.default) if has_default else "",
                doc=docs[group.__name__, item.name],
            )


_READING_DOCS = Lock()


def _field_docs() -> dict[tuple[str, str], str]:
    """The docstrings under the fields. Two requests may ask at the same time, and Python 3.11 fails when two threads
    make syntax trees at once."""
    with _READING_DOCS:
        return _read_field_docs()


@lru_cache(1)
def _read_field_docs() -> dict[tuple[str, str], str]:
    """Read from this file: Python throws them away."""
    docs = {}
    for node in ast.parse(Path(__file__).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            for declared, documented in pairwise(node.body):
                match declared, documented:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                        docs[node.name, name] = " ".join(doc.split())
    return docs
