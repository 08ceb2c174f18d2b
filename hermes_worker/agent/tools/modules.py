"""Tools and agents of a module of the operator's own, named in ``extensions.modules`` (HERMES_TOOLS)."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TypeVar

from hermes_worker.agent.tools.functions import DeclaredFunction
from hermes_worker.extension import Agent, Extension, ExtensionConflict, SettingDeclaration, ToolDeclaration
from hermes_worker.setting_groups import is_group, settings_of

_Found = TypeVar("_Found")


def load_module_extension(name: str) -> Extension:
    """Import a module and make an extension of its tools and agents, called as the module. Raises
    ``ExtensionConflict``."""
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:  # the operator wrote it; whatever it raises keeps it from being used
        why = f"{type(error).__name__}: {error}".rstrip(": ")
        raise ExtensionConflict(
            f"the module {name!r} of extensions.modules (HERMES_TOOLS) cannot be imported: {why}; install it where "
            "Hermes worker is installed, or name its folder in PYTHONPATH"
        ) from error
    agents = tuple({id(one): one for one in _find_all(module, Agent)}.values())
    tools = _list_tools(module, agents)
    if not tools and not agents:
        raise ExtensionConflict(
            f"the module {name!r} of extensions.modules (HERMES_TOOLS) has neither a tool nor an agent: decorate a "
            "function with hermes_worker.extending.tool"
        )
    return Extension(
        name=name.replace(".", "-").strip("_").lower()[:64],
        version="",
        summary=f"Tools and agents of {name}.",
        tools=tools,
        agents=agents,
        settings=_list_settings(tools),
    )


def _find_all(module: ModuleType, kind: type[_Found]) -> Iterator[_Found]:
    return (value for name, value in vars(module).items() if isinstance(value, kind) and not name.startswith("_"))


def _list_tools(module: ModuleType, agents: Sequence[Agent]) -> tuple[ToolDeclaration, ...]:
    """List the tools of a module and those that its agents name as objects, each once."""
    of_agents = (one for agent in agents for one in agent.tools if not isinstance(one, str))
    return tuple({id(one): one for one in (*_find_all(module, ToolDeclaration), *of_agents)}.values())


def _list_settings(tools: Sequence[ToolDeclaration]) -> tuple[SettingDeclaration, ...]:
    """List the settings that functions take as groups, each once."""
    kinds = (kind for one in tools if isinstance(one, DeclaredFunction) for kind in one.given)
    groups = dict.fromkeys(kind for kind in kinds if is_group(kind))
    return tuple({item.variable: item for group in groups for item in settings_of(group)}.values())
