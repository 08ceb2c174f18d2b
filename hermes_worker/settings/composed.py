"""All groups of settings as one frozen dataclass, and the tables that are made from their declarations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import cast

from hermes_worker import installed
from hermes_worker.core.chat_accounts import strip_account_suffix
from hermes_worker.settings.agent import AgentSettings
from hermes_worker.settings.approvals import ApprovalSettings
from hermes_worker.settings.artifacts import ArtifactSettings
from hermes_worker.settings.broker import BrokerSettings
from hermes_worker.settings.browser import BrowserSettings
from hermes_worker.settings.checkpoints import CheckpointSettings
from hermes_worker.settings.cron import CronSettings
from hermes_worker.settings.database import DatabaseSettings
from hermes_worker.settings.declaring import DeclaredSetting, declare_setting, iterate_declared
from hermes_worker.settings.delegation import DelegationSettings
from hermes_worker.settings.delivery import DeliverySettings
from hermes_worker.settings.encryption import EncryptionSettings
from hermes_worker.settings.extensions import ExtensionSettings
from hermes_worker.settings.flower import FlowerSettings
from hermes_worker.settings.gateway import GatewaySettings
from hermes_worker.settings.guardrails import GuardrailSettings
from hermes_worker.settings.kinds import DIRECTORY, FAULT_PLAN, NO_TEXT_KEY, Secret
from hermes_worker.settings.lease import LeaseSettings
from hermes_worker.settings.logs import LogSettings
from hermes_worker.settings.mcp import McpSettings
from hermes_worker.settings.memory import MemorySettings
from hermes_worker.settings.metrics import MetricsSettings
from hermes_worker.settings.models import ModelSettings
from hermes_worker.settings.object_storage import ObjectStorageSettings
from hermes_worker.settings.origins import SettingOrigin
from hermes_worker.settings.presets import PRESET
from hermes_worker.settings.retention import RetentionSettings
from hermes_worker.settings.retired import RETIRED
from hermes_worker.settings.sentinels import parse_sentinels
from hermes_worker.settings.server import ServerSettings
from hermes_worker.settings.servers import parse_servers_url
from hermes_worker.settings.skills import SkillSettings
from hermes_worker.settings.terminal import TerminalSettings
from hermes_worker.settings.tracing import TracingSettings
from hermes_worker.settings.worker import WorkerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything, in groups."""

    home: Path = declare_setting(  # noqa: RUF009 - a field
        "home",
        "HERMES_HOME",
        DIRECTORY,
        MISSING,
        audience="anyone",
        reason="state should lie elsewhere, such as on a data disk; it lies in the user's home without it.",
    )
    """Directory of state, `config.yaml` and `.env`. Not set: `~/.hermes-worker`."""
    preset: str | None = declare_setting(
        "preset",
        "HERMES_PRESET",
        PRESET,
        audience="anyone",
        reason="the machine is small, or several people share it; all is set up for one person without it.",
    )
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
    object_storage: ObjectStorageSettings = field(default_factory=ObjectStorageSettings)
    skills: SkillSettings = field(default_factory=SkillSettings)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    flower: FlowerSettings = field(default_factory=FlowerSettings)
    extensions: ExtensionSettings = field(default_factory=ExtensionSettings)
    log: LogSettings = field(default_factory=LogSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    tracing: TracingSettings = field(default_factory=TracingSettings)
    faults: str = declare_setting(
        "faults",
        "HERMES_FAULTS",
        FAULT_PLAN,
        "",
        audience="developer",
        reason="a test breaks a process at a named point; no fault can be played without it.",
    )
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
        served = (
            self.server.key,
            *self.server.previous_keys,
            self.server.embeddings_key,
            self.flower.password,
            self.gateway.transcription_key,
            self.object_storage.secret_key,
        )
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


GROUPS: Mapping[str, type] = MappingProxyType(
    {item.name: cast(type, item.default_factory) for item in fields(Settings) if isinstance(item.default_factory, type)}
)
"""The groups by their attribute of ``Settings``, in its order."""
DECLARATIONS: tuple[DeclaredSetting, ...] = tuple(
    declaration for group in (Settings, *GROUPS.values()) for _, declaration in iterate_declared(group)
)
DECLARATION_OF = MappingProxyType({declaration.key: declaration for declaration in DECLARATIONS})
VARIABLES = frozenset(variable for declaration in DECLARATIONS for variable in declaration.variables)
RETIRED_VARIABLES = frozenset(variable for each in RETIRED.values() for variable in each.variables)
SECRET_VARIABLES = frozenset(name for known in DECLARATIONS if known.kind.is_secret for name in known.variables)
