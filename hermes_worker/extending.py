"""What an extension of others is written with: one place to import from, which stays where it is.

Everything else of the product may move from one version to the next; what stands here moves only together with
``API_VERSION``.
"""

from __future__ import annotations

from hermes_worker.agent.prompt.compaction import CompactionPlan
from hermes_worker.agent.prompt.compactors import Compactor
from hermes_worker.agent.prompt.sources import ContextFacts
from hermes_worker.agent.tools.base import Tool, ToolContext, ToolResult
from hermes_worker.agent.tools.functions import Deadline, Key, Progress, Stop, ToolFailed, Values, tool
from hermes_worker.agent.tools.sources import ToolGone, ToolSource
from hermes_worker.channels.catalog import ChatForm, ChatShape, Platform, Sending, TextLimit, TextUnit
from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import (
    Exchange,
    Outcome,
    Part,
    Receipt,
    failure,
    is_success,
    json_object,
    json_request,
)
from hermes_worker.channels.targets import Target
from hermes_worker.core.hooks import HookEvent
from hermes_worker.core.messages import Message, Role
from hermes_worker.core.replay import Replay
from hermes_worker.extension import (
    API_VERSION,
    Agent,
    AgentBudget,
    CommandDeclaration,
    CompactorDeclaration,
    ContextSourceDeclaration,
    Extension,
    HookDeclaration,
    MemoryProviderDeclaration,
    RouterDeclaration,
    SettingDeclaration,
    SettingType,
    ToolDeclaration,
    ToolSourceDeclaration,
    ToolSpec,
    WireDeclaration,
    WorkspaceDeclaration,
)
from hermes_worker.models.catalog import ProviderRow
from hermes_worker.net.http import HttpRequest, HttpResponse
from hermes_worker.setting_groups import setting, settings_of
from hermes_worker.workspaces.base import (
    CommandResult,
    HostLost,
    HostUnreachable,
    KnownFiles,
    PathNotFound,
    Workspace,
    WorkspaceError,
    WorkspaceReset,
)
from hermes_worker.workspaces.ref import OpeningOptions

__all__ = [
    "API_VERSION",
    "Agent",
    "AgentBudget",
    "ChatForm",
    "ChatShape",
    "CommandDeclaration",
    "CommandResult",
    "CompactionPlan",
    "Compactor",
    "CompactorDeclaration",
    "ContextFacts",
    "ContextSourceDeclaration",
    "Deadline",
    "DeliveryError",
    "Exchange",
    "Extension",
    "HookDeclaration",
    "HookEvent",
    "HostLost",
    "HostUnreachable",
    "HttpRequest",
    "HttpResponse",
    "Key",
    "KnownFiles",
    "MemoryProviderDeclaration",
    "Message",
    "OpeningOptions",
    "Outcome",
    "Part",
    "PathNotFound",
    "Platform",
    "Progress",
    "ProviderRow",
    "Receipt",
    "Replay",
    "Role",
    "RouterDeclaration",
    "SendErrorKind",
    "Sending",
    "SettingDeclaration",
    "SettingType",
    "Stop",
    "Target",
    "TextLimit",
    "TextUnit",
    "Tool",
    "ToolContext",
    "ToolDeclaration",
    "ToolFailed",
    "ToolGone",
    "ToolResult",
    "ToolSource",
    "ToolSourceDeclaration",
    "ToolSpec",
    "Values",
    "WireDeclaration",
    "Workspace",
    "WorkspaceDeclaration",
    "WorkspaceError",
    "WorkspaceReset",
    "failure",
    "is_success",
    "json_object",
    "json_request",
    "local_workspace",
    "setting",
    "settings_of",
    "tool",
]


def local_workspace(root: str, options: OpeningOptions) -> Workspace:
    """A directory of this machine, as the kind ``local`` opens it: for kinds that change where, or how, it is. Raises
    ``WorkspaceError``."""
    from hermes_worker.workspaces.opening import open_local

    return open_local(root, options)
