"""Everything that can be configured, read once. No other package looks at the environment, ``.env`` or
``config.yaml``; the rest of the program receives what it needs.

A value comes from the first of these that has one: the command line (``overrides``), the environment, ``.env`` in the
home directory, the configuration of the fleet in the database, ``config.yaml`` in the home directory, the preset, the
default. An empty variable counts as not set, because that is what an unset variable becomes in a compose file.

Each setting is declared once, as a field in the module of its group: its key, its variables, what it may hold, its
default and its meaning. The page docs/reference/settings.md is made from that (``docs/make_reference.py``). Keys that
Hermes Agent also has keep its names, so that its ``config.yaml`` can be used as it is; what we do not use of it is
noted and ignored.
"""

from __future__ import annotations

from hermes_worker.settings.agent import AgentSettings
from hermes_worker.settings.approvals import ApprovalSettings
from hermes_worker.settings.artifacts import ArtifactSettings
from hermes_worker.settings.broker import BrokerSettings
from hermes_worker.settings.browser import BrowserSettings
from hermes_worker.settings.checkpoints import CheckpointSettings
from hermes_worker.settings.composed import Settings
from hermes_worker.settings.config_files import find_setting, parse_config_text
from hermes_worker.settings.cron import CronSettings
from hermes_worker.settings.database import DatabaseSettings
from hermes_worker.settings.delegation import DelegationSettings
from hermes_worker.settings.delivery import DeliverySettings
from hermes_worker.settings.describing import SettingRow, SettingWithSource, describe_settings, list_with_sources
from hermes_worker.settings.encryption import EncryptionSettings
from hermes_worker.settings.extensions import ExtensionSettings
from hermes_worker.settings.flower import FlowerSettings
from hermes_worker.settings.gateway import GatewaySettings
from hermes_worker.settings.guardrails import GuardrailSettings
from hermes_worker.settings.handing import build_handover, render_environ
from hermes_worker.settings.kinds import Secret, TenantKey
from hermes_worker.settings.lease import LeaseSettings
from hermes_worker.settings.loading import is_supervised, load_settings
from hermes_worker.settings.logs import LogFormat, LogSettings
from hermes_worker.settings.mcp import McpSettings
from hermes_worker.settings.memory import MemorySettings
from hermes_worker.settings.metrics import MetricsSettings
from hermes_worker.settings.models import ModelSettings
from hermes_worker.settings.origins import SettingLayer, SettingOrigin
from hermes_worker.settings.retention import RetentionSettings
from hermes_worker.settings.server import ServerSettings, is_loopback
from hermes_worker.settings.skills import SkillSettings
from hermes_worker.settings.terminal import TerminalSettings
from hermes_worker.settings.tracing import TracingSettings
from hermes_worker.settings.worker import RemoteControl, WorkerSettings

__all__ = [
    "AgentSettings",
    "ApprovalSettings",
    "ArtifactSettings",
    "BrokerSettings",
    "BrowserSettings",
    "CheckpointSettings",
    "CronSettings",
    "DatabaseSettings",
    "DelegationSettings",
    "DeliverySettings",
    "EncryptionSettings",
    "ExtensionSettings",
    "FlowerSettings",
    "GatewaySettings",
    "GuardrailSettings",
    "LeaseSettings",
    "LogFormat",
    "LogSettings",
    "McpSettings",
    "MemorySettings",
    "MetricsSettings",
    "ModelSettings",
    "RemoteControl",
    "RetentionSettings",
    "Secret",
    "ServerSettings",
    "SettingLayer",
    "SettingOrigin",
    "SettingRow",
    "SettingWithSource",
    "Settings",
    "SkillSettings",
    "TenantKey",
    "TerminalSettings",
    "TracingSettings",
    "WorkerSettings",
    "build_handover",
    "describe_settings",
    "find_setting",
    "is_loopback",
    "is_supervised",
    "list_with_sources",
    "load_settings",
    "parse_config_text",
    "render_environ",
]
