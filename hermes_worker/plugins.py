"""Foreign extensions: which there are, which the operator enabled, and how they get into this process.

Three places are looked at: ``hermes_worker/addons``, which comes with the product, installed packages with an entry
point of the group ``hermes_worker.extensions``, and the directories below ``HOME/plugins``. An extension that is not
enabled by name is never imported: what it would bring is read from its manifest, ``plugin.yaml``, beside its code.

An enabled extension is the operator's own code: it runs with all rights of the process, in every process. It is
imported when a process begins, never in the thread of an event loop and never inside a transaction.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import stat
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from hermes_worker import installed, mcp
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.extension import (
    API_VERSION,
    Extension,
    ExtensionConflict,
    Installed,
    Reference,
    SettingDeclaration,
    find_missing_settings,
    fold_extensions,
    load_reference,
)
from hermes_worker.settings import Settings
from hermes_worker.settings.declared import read_values
from hermes_worker.settings.role_secrets import ProcessRole, is_secret
from hermes_worker.system.plainfiles import read_plain

if TYPE_CHECKING:
    from importlib import metadata

GROUP = "hermes_worker.extensions"
"""The group of entry points: the name of one is that of the extension, its value ``package.module:EXTENSION``."""
MANIFEST = "plugin.yaml"
_ADDONS = "hermes_worker.addons"
_PACKAGE = "hermes_plugins"
"""The package as which the directories below ``HOME/plugins`` are imported: ``hermes_plugins.NAME``."""
_MANIFEST_BYTES_MAX = 100_000
_BRINGS = (
    *("tools", "toolsets", "providers", "wires", "channels", "workspaces", "routers", "commands", "settings"),
    *("hooks", "context_sources", "compactors", "memory_providers", "tool_sources", "skills", "agents"),
)
_BUILT_IN_CHOICES = frozenset({"local", "summary"})
"""The plugs that the settings choose by default: looking them up would load declarations for nothing."""
_starting = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The facts that an extension states without being imported."""

    name: str
    version: str = ""
    api_version: int = API_VERSION
    summary: str = ""
    brings: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """Names by kind: ``tools``, ``providers`` ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailableExtension:
    """An extension that could be enabled."""

    name: str
    place: str
    """Its origin, for people: the distribution with its version, or the directory."""
    source: metadata.EntryPoint | Path
    manifest: Manifest | None
    """``None`` for one without a manifest."""
    problem: str = ""
    """Why it cannot be used; empty when nothing is known against it."""


# --- what is there ---------------------------------------------------------------------------------------------------


def list_available(home: Path) -> tuple[AvailableExtension, ...]:
    """Every extension that could be enabled, in the order of their names. Imports none of them."""
    found = (*list_addons(), *_list_packages(), *_list_directories(home), *_list_hook_directories(home))
    return tuple(sorted(found, key=lambda one: (one.name, one.place)))


def list_addons() -> Iterator[AvailableExtension]:
    """The extensions that come with the product."""
    for path in sorted(_get_addons_dir().glob(f"*/{MANIFEST}")):
        name = path.parent.name
        manifest = read_manifest(path, name)
        yield AvailableExtension(name=name, place="comes with Hermes worker", source=path.parent, manifest=manifest)


def is_unverified(name: str) -> bool:
    """Whether an extension comes with the product and was never tried against its service."""
    return name not in _TRIED and any(name == one.name for one in list_addons())


_TRIED = frozenset({"memory_hindsight"})
"""Add-ons that were tried against the vendor's own server (tests/extensions/test_hindsight_server.py)."""


def _get_addons_dir() -> Path:
    return Path(__file__).with_name("addons")


def _list_packages() -> Iterator[AvailableExtension]:
    from importlib import metadata  # not for those who enable nothing

    for point in metadata.entry_points(group=GROUP):
        dist = point.dist
        place = f"{dist.name} {dist.version}" if dist is not None else point.value
        manifest, problem = None, ""
        try:
            manifest = _find_manifest(point)
        except ConfigurationError as error:
            problem = str(error)
        yield AvailableExtension(name=point.name, place=place, source=point, manifest=manifest, problem=problem)


def _find_manifest(point: metadata.EntryPoint) -> Manifest | None:
    """The manifest of a package: its file lies in the top-level package, which is found without being imported."""
    top = point.module.partition(".")[0]
    found = importlib.util.find_spec(top) if top not in sys.modules else sys.modules[top].__spec__
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        if (path := Path(folder) / MANIFEST).exists():
            return read_manifest(path, point.name)
    return None


def _list_directories(home: Path) -> Iterator[AvailableExtension]:
    folder = get_plugins_dir(home)
    try:
        names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith((".", "_")))
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        path = folder / name
        manifest, problem = None, ""
        try:
            _require_ours(path)
            manifest = read_manifest(path / MANIFEST, name)
        except FileNotFoundError:
            problem = f"{str(path)!r} holds no {MANIFEST}, which names the plugin and what it brings"
        except ConfigurationError as error:
            problem = str(error)
        yield AvailableExtension(name=name, place=str(path), source=path, manifest=manifest, problem=problem)


def _list_hook_directories(home: Path) -> Iterator[AvailableExtension]:
    from hermes_worker.hook_directories import get_hooks_dir, read_hook_file

    folder = get_hooks_dir(home)
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] not in "._")
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        path, manifest, problem = folder / name, None, ""
        try:
            _require_ours(path)
            summary, events = read_hook_file(path)
            manifest = Manifest(
                name=name, summary=summary, brings=MappingProxyType({"hooks": (name,), "events": events})
            )
        except ConfigurationError as error:
            problem = str(error)
        yield AvailableExtension(name=name, place=str(path), source=path, manifest=manifest, problem=problem)


def get_plugins_dir(home: Path) -> Path:
    """The directory in which an operator puts plugins."""
    return home / "plugins"


def read_manifest(path: Path, name: str) -> Manifest:
    """Read a manifest. Raises ``FileNotFoundError``, and ``ConfigurationError`` for a file that is no manifest of the
    extension ``name``.
    """
    import yaml

    try:
        text = read_plain(path, bytes_max=_MANIFEST_BYTES_MAX).decode("utf-8")
        document = yaml.safe_load(text)
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ConfigurationError(f"{str(path)!r} cannot be read as YAML: {type(error).__name__}") from error
    if not isinstance(document, dict) or document.get("name") != name:
        raise ConfigurationError(f"{str(path)!r} must be a mapping with name: {name}")
    brings = {kind: _parse_names(path, document, f"provides_{kind}") for kind in _BRINGS}
    version = document.get("api_version", API_VERSION)
    if not isinstance(version, int):
        raise ConfigurationError(f"api_version in {str(path)!r} must be a number, such as {API_VERSION}")
    return Manifest(
        name=name,
        version=str(document.get("version", "")),
        api_version=version,
        summary=" ".join(str(document.get("description", "")).split()),
        brings=MappingProxyType({kind: names for kind, names in brings.items() if names}),
    )


def _parse_names(path: Path, document: Mapping[Any, Any], key: str) -> tuple[str, ...]:
    given = document.get(key) or ()
    if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
        raise ConfigurationError(f"{key} in {str(path)!r} must be a list of names")
    return tuple(given)


def _require_ours(path: Path) -> None:
    """Raise ``ConfigurationError`` for a file that other users may write: they may have written it."""
    for place in (path.parent, path):
        found = place.stat()
        if found.st_uid not in (os.geteuid(), 0) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ConfigurationError(
                f"{str(place)!r} can be changed by others, so no code is loaded from there; make it yours alone "
                f"(chmod go-w {place})"
            )


# --- into this process -----------------------------------------------------------------------------------------------


def begin_extensions(settings: Settings, *, needs_servers: bool = True) -> Installed:
    """Put the enabled extensions in force. Idempotent for the same settings. Without ``needs_servers``, a file of MCP
    servers that cannot be used counts as none.

    Raises ``ConfigurationError``: one sentence for everything that keeps them from being used.
    """
    enabled, modules = settings.extensions.enabled, settings.extensions.modules
    try:
        servers = _load_mcp_servers(settings.home)
    except ConfigurationError:
        if needs_servers:
            raise
        servers = ()
    chosen = (settings.terminal.workspace, settings.model.compactor, settings.model.api_mode)
    key = (str(settings.home), enabled, modules, *chosen, servers, settings.browser)
    with _starting:
        if _BegunFor.key == key and _BegunFor.installed is not None:
            installed.put_in_force(_BegunFor.installed)
            return _BegunFor.installed
        found = installed.get_only_built_in()
        ours = (*servers, *_load_browser(settings))
        if enabled or modules or ours:
            foreign = (*_import_all(settings.home, enabled), *_import_modules(modules))
            found = _fold_extensions(settings, (*installed.load_built_in(), *ours, *foreign))
        _require_chosen(settings, found)
        installed.put_in_force(found)
        _BegunFor.key, _BegunFor.installed = key, found
        return found


def use_extensions(settings: Settings, extensions: Sequence[Extension]) -> Installed:
    """Put the enabled extensions of ``settings`` and ``extensions`` in force, until ``forget_extensions``: for tests of
    extensions. Raises ``ConfigurationError``."""
    begin_extensions(settings)
    modules = _import_modules(settings.extensions.modules)
    enabled = (*_import_all(settings.home, settings.extensions.enabled), *modules)
    found = _fold_extensions(settings, (*installed.load_built_in(), *enabled, *extensions))
    installed.put_in_force(found)
    _BegunFor.installed = found
    return found


def forget_extensions() -> None:
    """Have the next ``begin_extensions`` begin anew."""
    _BegunFor.key = _BegunFor.installed = None
    installed.put_in_force(None)


def _require_chosen(settings: Settings, found: Installed) -> None:
    """Require that each plug which the settings name is there. Raises ``ExtensionConflict``."""
    chosen: tuple[tuple[str, str | None, Collection[str]], ...] = (
        ("terminal.workspace (HERMES_WORKSPACE)", settings.terminal.workspace, found.workspaces),
        ("compression.compactor (HERMES_COMPACTOR)", settings.model.compactor, found.compactors),
        ("model.api_mode (HERMES_API_MODE)", settings.model.api_mode, found.wires),
    )
    for key, name, there in chosen:
        if name is not None and name not in _BUILT_IN_CHOICES and name not in there:
            raise ExtensionConflict(
                f"{key} is {name!r}, which no enabled extension brings: choose one of {', '.join(there)}"
            )


def _fold_extensions(settings: Settings, extensions: Sequence[Extension]) -> Installed:
    """Put the extensions together. Required settings are not asked for here but by ``require_settings``: a command that
    lists runs needs no key of a warehouse.
    """
    declared = [item for one in extensions for item in one.settings]
    _require_declared(settings, declared)
    values = read_values(declared, settings.variables)
    return fold_extensions(extensions, values, withheld=[item.variable for item in declared])


def _require_declared(settings: Settings, declared: Sequence[SettingDeclaration]) -> None:
    """Require that each name in ``extensions.settings`` belongs to an extension, and is no secret. Raises
    ``ExtensionConflict``.
    """
    known = {item.variable: item for item in declared}
    for name, _ in settings.extensions.settings:
        if name not in known:
            raise ExtensionConflict(f"extensions.settings names {name}, which no enabled extension declares")
        if known[name].is_secret:
            raise ExtensionConflict(
                f"extensions.settings names {name}, which is a secret: set the variable, or {name}_FILE to a file"
            )


def require_settings(settings: Settings, roles: Collection[ProcessRole]) -> None:
    """See that the enabled extensions have the settings that processes of ``roles`` use.

    Raises ``ExtensionConflict`` that names what is missing.
    """
    found = begin_extensions(settings)
    values = read_values(found.settings.values(), settings.variables)
    if lacking := find_missing_settings(found.list_bringing("settings"), values, roles=[role.value for role in roles]):
        raise ExtensionConflict("; ".join(lacking))


class _BegunFor:
    """The home and the names for which the extensions of this process were imported."""

    key: tuple[object, ...] | None = None
    installed: Installed | None = None


def _load_mcp_servers(home: Path) -> tuple[Extension, ...]:
    """An extension for each MCP server of this home; what reads their file takes long to import. Raises
    ``ConfigurationError``."""
    if not mcp.has_servers(home):
        return ()
    from hermes_worker.mcp.extensions import build_server_extensions

    return build_server_extensions(home)


def _load_browser(settings: Settings) -> tuple[Extension, ...]:
    """The tools of a browser, where sessions have one."""
    if not settings.browser.is_enabled:
        return ()
    from hermes_worker.browser.declarations import build_browser_extension

    return (build_browser_extension(has_cdp=settings.browser.has_cdp),)


def check_extensions(settings: Settings, enabled: Sequence[str], *more: Extension) -> None:
    """Check that these extensions, and ``more``, can be used together, with all they require: imports them. Raises
    ``ConfigurationError``.
    """
    ours = (*installed.load_built_in(), *_load_mcp_servers(settings.home), *_load_browser(settings), *more)
    extensions = (*ours, *_import_all(settings.home, enabled))
    fold_extensions(extensions, read_values((item for one in extensions for item in one.settings), settings.variables))


def build_compactor(name: str) -> Any:
    """The ``Compactor`` of this name, built with the settings of its extension. Raises ``ConfigurationError``."""
    _require_quiet()
    found = installed.get_installed()
    for one in found.list_bringing("compactors"):
        for declared in one.compactors:
            if declared.name == name:
                return load_reference(declared.implementation)(found.values[one.name])
    raise ExtensionConflict(f"no enabled extension brings the compactor {name!r}")


def preload_references(references: Sequence[Reference]) -> None:
    """Import foreign code before it is used, so that it is never imported in the middle of something. Raises
    ``ConfigurationError``.
    """
    _require_quiet()
    for reference in references:
        load_reference(reference)


def _import_all(home: Path, enabled: Sequence[str]) -> tuple[Extension, ...]:
    if not enabled:
        return ()
    _require_quiet()
    there = list_available(home)
    return tuple(_import(name, [one for one in there if one.name == name], home) for name in enabled)


def _import(name: str, found: Sequence[AvailableExtension], home: Path) -> Extension:
    if not found:
        raise ExtensionConflict(
            f"the extension {name!r} is enabled (extensions.enabled) and is not there: install its package, put it "
            f"into {str(get_plugins_dir(home) / name)!r}, or disable it"
        )
    if len(found) > 1:
        places = " and ".join(one.place for one in found)
        raise ExtensionConflict(f"two extensions are named {name!r}, in {places}: remove one of them")
    [one] = found
    if one.problem:
        raise ExtensionConflict(f"the extension {name!r} cannot be used: {one.problem}")
    if one.manifest is not None and one.manifest.api_version != API_VERSION:
        # Said before it is imported: what it imports may not be there.
        raise ExtensionConflict(
            f"the extension {name!r} is made for version {one.manifest.api_version} of the extension interface, and "
            f"this is version {API_VERSION}: install a version of it that fits, or disable it"
        )
    try:
        extension = _load_source(one.source, home)
    except (Exception, SystemExit) as error:  # others wrote it; whatever it raises keeps it from being used
        raise ExtensionConflict(f"the extension {name!r} cannot be imported: {_format_error(error)}") from error
    if not isinstance(extension, Extension):
        raise ExtensionConflict(f"the extension {name!r} must be a hermes_worker.extension.Extension")
    if extension.name != name:
        raise ExtensionConflict(f"the extension {name!r} calls itself {extension.name!r}; both must be the same")
    _require_secret_names(extension)
    if one.manifest is not None and (silent := _find_unexpected(extension, one.manifest)):
        raise ExtensionConflict(f"the extension {name!r} brings what its {MANIFEST} does not name: {', '.join(silent)}")
    return extension


def _import_modules(names: Sequence[str]) -> tuple[Extension, ...]:
    """The tools and agents of the operator's own modules."""
    if not names:
        return ()
    from hermes_worker.agent.tools.modules import load_module_extension  # few installations have some

    _require_quiet()
    found = tuple(load_module_extension(name) for name in names)
    for extension in found:
        _require_secret_names(extension)
    return found


def _require_secret_names(extension: Extension) -> None:
    for item in extension.settings:
        if item.is_secret and not is_secret(item.variable, "a value"):
            raise ExtensionConflict(
                f"{item.variable} of the extension {extension.name!r} holds a secret and is not called like one: its "
                "name must end in _TOKEN, _SECRET, _PASSWORD or _API_KEY, so that it is taken out of every environment"
            )


def _load_source(source: metadata.EntryPoint | Path, home: Path) -> Any:
    if not isinstance(source, Path):
        return source.load()
    from hermes_worker.hook_directories import build_hook_extension, get_hooks_dir

    if source.parent == _get_addons_dir():
        return importlib.import_module(f"{_ADDONS}.{source.name}").EXTENSION
    return build_hook_extension(source) if source.parent == get_hooks_dir(home) else _load_plugin(source)


def _format_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def list_brought(extension: Extension) -> dict[str, tuple[str, ...]]:
    """The names of what an extension brings, by kind; the parts of a memory provider count as the provider."""
    of_memory = [source for one in extension.memory_providers for source in one.context_sources()]
    found = {
        "tools": tuple(one.name for one in extension.tools),
        "toolsets": tuple(extension.toolsets),
        "providers": tuple(one.name for one in extension.providers),
        "wires": tuple(one.name for one in extension.wires),
        "channels": tuple(one.name for one in extension.channels),
        "workspaces": tuple(one.name for one in extension.workspaces),
        "routers": tuple(one.name for one in extension.routers),
        "commands": tuple(one.name for one in extension.commands),
        "tool_sources": tuple(one.name for one in extension.tool_sources),
        "context_sources": tuple(one.name for one in extension.context_sources if one not in of_memory),
        "compactors": tuple(one.name for one in extension.compactors),
        "memory_providers": tuple(one.name for one in extension.memory_providers),
        "settings": tuple(one.variable for one in extension.settings),
        "hooks": tuple(one.name for one in extension.hooks if not one.of_memory),
        "skills": tuple(one.folder for one in extension.skills),
        "agents": tuple(one.name for one in extension.agents),
        "upkeep": tuple(one.name for one in extension.upkeep),
        "prompt_blocks": tuple(one.name for one in extension.prompt_blocks),
        "tables": tuple(str(one).rpartition(":")[2] for one in extension.tables),
    }
    return {kind: names for kind, names in found.items() if names}


def _find_unexpected(extension: Extension, manifest: Manifest) -> list[str]:
    """What an operator who read the manifest would not expect, as sentences."""
    return [
        f"{name} ({kind})"
        for kind, names in list_brought(extension).items()
        for name in names
        if name not in manifest.brings.get(kind, ())
    ]


def _load_plugin(folder: Path) -> Any:
    """The ``EXTENSION`` of the package in ``folder``, imported as ``hermes_plugins.NAME``."""
    if _PACKAGE not in sys.modules:
        package = ModuleType(_PACKAGE, "Plugins of this installation's home.")
        package.__path__ = []
        sys.modules[_PACKAGE] = package
    name = f"{_PACKAGE}.{folder.name.replace('-', '_')}"
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(folder / "__init__.py"):
        return known.EXTENSION
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{str(folder)!r} is no Python package")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module.EXTENSION


def _require_quiet() -> None:
    """Raise ``RuntimeError`` in the thread of an event loop: importing may take long, and the loop would stand
    still.
    """
    import asyncio  # most commands import no extension and need no loop

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("extensions are imported when a process begins, never in the thread of an event loop")
