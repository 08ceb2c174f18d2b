"""``HOME/hooks/NAME/``: hooks as Hermes Agent has them, a ``HOOK.yaml`` with the events and a ``handler.py``.

Such a directory is an extension that brings one observer. What is read here imports nothing; ``handler.py`` is imported
by the workers that call it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.hooks import GATEWAY_BASES, HOOK_EVENTS, HookKind, expand_events
from hermes_worker.extension import Extension, HookDeclaration
from hermes_worker.system.plainfiles import read_plain

HOOK_FILE = "HOOK.yaml"
_HANDLER = "handler.py"
_PACKAGE = "hermes_hooks"
"""The package as which ``HOME/hooks`` is imported: ``hermes_hooks.NAME.handler``."""
_BYTES_MAX = 100_000


def get_hooks_dir(home: Path) -> Path:
    """The directory in which an operator puts hooks of this kind."""
    return home / "hooks"


def read_hook_file(folder: Path) -> tuple[str, tuple[str, ...]]:
    """The description of a directory's hook, and the events that it names. Raises ``ConfigurationError``."""
    path = folder / HOOK_FILE
    try:
        document = yaml.safe_load(read_plain(path, bytes_max=_BYTES_MAX).decode("utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(f"{str(folder)!r} holds no {HOOK_FILE}, which names the hook and its events") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ConfigurationError(f"{str(path)!r} cannot be read as YAML: {type(error).__name__}") from error
    if not isinstance(document, dict) or document.get("name") != folder.name:
        raise ConfigurationError(f"{str(path)!r} must be a mapping with name: {folder.name}")
    named = document.get("events")
    if not isinstance(named, list) or not named or not all(isinstance(event, str) for event in named):
        raise ConfigurationError(f"events in {str(path)!r} must be a list of names, such as agent:end")
    if not (folder / _HANDLER).is_file():
        raise ConfigurationError(f"{str(folder)!r} holds no {_HANDLER}")
    if not filter_handled(named):
        raise ConfigurationError(f"none of the events in {str(path)!r} ever happens here; docs/hooks.md has a table")
    return " ".join(str(document.get("description", "")).split()), tuple(named)


def filter_handled(events: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Keep those of ``events`` that a handler is called for: the gateway's, as far as they happen here."""
    return tuple(
        event
        for event in expand_events(events)
        if event.partition(":")[0] in GATEWAY_BASES and HOOK_EVENTS.get(event) is HookKind.OBSERVER
    )


def build_hook_extension(folder: Path) -> Extension:
    """The extension that a directory is. Imports nothing; the package of its handler is made known. Raises
    ``ConfigurationError``."""
    summary, events = read_hook_file(folder)
    module = f"{_PACKAGE}.{folder.name.replace('-', '_')}"
    for name, path in ((_PACKAGE, []), (module, [str(folder)])):
        _make_package(name, path)
    hook = HookDeclaration(
        name=folder.name, events=filter_handled(events), implementation=f"{module}.handler:handle", is_handler=True
    )
    return Extension(name=folder.name, version="", summary=summary, hooks=(hook,))


def _make_package(name: str, path: list[str]) -> Any:
    known = sys.modules.get(name)
    if known is None or list(getattr(known, "__path__", ())) != path:
        package = ModuleType(name, "Hooks of this installation's home.")
        package.__path__ = path
        sys.modules[name] = package
