"""The health and the capabilities of a server, its toolsets and skills, as the API answers them, the client returns
them and commands print them."""

from __future__ import annotations

from typing import Literal

from hermes_worker.resource import Resource


class Health(Resource):
    """This process answers."""

    status: Literal["ok"] = "ok"
    platform: Literal["hermes-agent"] = "hermes-agent"
    version: str


class AuthObject(Resource):
    type: Literal["bearer"] = "bearer"
    required: Literal[True] = True


class RuntimeObject(Resource):
    """The side on which agents and their tools run: this one, never the client's."""

    mode: Literal["server_agent"] = "server_agent"
    tool_execution: Literal["server"] = "server"
    split_runtime: Literal[False] = False


class EndpointObject(Resource):
    method: str
    path: str


class CapabilitiesObject(Resource):
    """The capabilities of this server."""

    object: Literal["hermes.api_server.capabilities"] = "hermes.api_server.capabilities"
    platform: Literal["hermes-agent"] = "hermes-agent"
    version: str
    model: str
    auth: AuthObject
    runtime: RuntimeObject
    features: dict[str, bool | str]
    endpoints: dict[str, EndpointObject]


class ToolsetObject(Resource):
    """A named group of tools."""

    name: str
    label: str
    description: str
    enabled: bool
    """Whether a run that names no toolsets has it."""
    configured: bool
    """Whether it has tools here."""
    tools: list[str]


class ToolsetList(Resource):
    object: Literal["list"] = "list"
    data: list[ToolsetObject]


class SkillObject(Resource):
    """Instructions that a run can be given by name."""

    name: str
    description: str
    category: str | None = None


class SkillList(Resource):
    object: Literal["list"] = "list"
    data: list[SkillObject]
