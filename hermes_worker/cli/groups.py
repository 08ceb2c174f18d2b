"""How commands are grouped: the headings of ``--help``, groups made of verbs of several modules, and old spellings.

A declaration whose name has two words, as ``data backup``, is a verb of a group. Neither the help of a group nor one of
its verbs imports the other verbs.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NoReturn

import click

from hermes_worker import installed
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.extension import OWN_PACKAGES, CommandDeclaration, load_reference
from hermes_worker.system import platforms

SECTIONS = (
    "Work",
    "Conversations",
    "Schedules and chats",
    "This machine",
    "Operate",
    "Administer",
    "Develop",
)
"""The headings of ``--help`` in their order. A command that names none of them stands under ``OTHERS``."""
OTHERS = "Extensions"

MOVED: Mapping[str, str] = MappingProxyType(
    {
        "alerts": "fleet alerts",
        "api": "start api",
        "audit": "data audit",
        "backlog": "fleet backlog",
        "backup": "data backup",
        "beat": "start beat",
        "browser": "start browser",
        "chaos": "dev chaos",
        "check": "config check",
        "deliveries": "gateway deliveries",
        "encryption": "data encryption",
        "erase": "data erase",
        "export": "data export",
        "flower": "start flower",
        "gateway": "start gateway",  # without a verb, which is how the role was started
        "keys": "tenants keys",
        "mcp-host": "start mcp-host",
        "migrate": "data migrate",
        "providers": "fleet providers",
        "prune": "data prune",
        "restore": "data restore",
        "retention": "data retention",
        "scripted-model": "dev scripted-model",
        "spend": "runs spend",
        "tools": "extensions tools",
        "tools list": "extensions tools",
        "webhook": "gateway webhooks",
        "worker": "start worker",
        "workers": "fleet workers",
        "workspaces": "data workspaces",
    }
)
"""Old spellings, which work for one release, and the new ones."""
_SYNONYMS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "abort": ("stop",),
        "add": ("create", "new"),
        "cancel": ("stop",),
        "cat": ("show",),
        "continue": ("resume",),
        "delete": ("remove", "revoke"),
        "describe": ("show",),
        "disable": ("pause",),
        "enable": ("resume",),
        "forget": ("remove", "delete"),
        "get": ("show",),
        "inbox": ("approvals",),
        "info": ("show", "status"),
        "inspect": ("show",),
        "jobs": ("cron",),
        "kill": ("stop", "down"),
        "log": ("logs",),
        "ls": ("list",),
        "new": ("create",),
        "ps": ("top", "status"),
        "questions": ("approvals",),
        "remove": ("delete", "revoke"),
        "restart": ("up",),
        "rm": ("remove", "delete"),
        "schedule": ("cron",),
        "slots": ("next", "history"),
        "start": ("up",),
        "stop": ("stop", "down"),
        "tail": ("watch", "logs"),
        "undelete": ("restore",),
        "unpause": ("resume",),
        "view": ("show",),
    }
)
"""What people call commands that have another name."""
_SUGGESTED_MAX = 3

start = click.Group(
    "start",
    help="Run one process of a fleet, in the foreground.\n\n'hermes-worker up' runs all of them on one machine.",
)
fleet = click.Group(
    "fleet", help="Watch and steer a fleet: its workers, its backlog, its alerts and its provider keys."
)
data = click.Group("data", help="Migrate, back up, keep, encrypt, hand out and delete what is stored.")
dev = click.Group("dev", help="Try things: examples, a scripted model, and a crash lab.")


def load_declarations() -> Mapping[str, CommandDeclaration]:
    """Load the commands of all enabled extensions, with those of others that the home of the environment enables. A
    configuration that cannot be used adds none; a command that needs it says what is wrong."""
    from hermes_worker import plugins, settings

    try:
        return plugins.begin_extensions(settings.load_settings()).commands
    except ConfigurationError:
        return installed.get_installed().commands


def find_moved(words: Sequence[str]) -> tuple[str, str] | None:
    """Find the old spelling that a command line begins with, and the new one; ``None`` when it begins with none, or
    with a command that an extension brings. ``gateway``, a group now, was replaced only where no verb follows."""
    is_group = words[0] in {new.partition(" ")[0] for new in MOVED.values()}
    if _has_verb(words) if is_group else words[0] in load_declarations():
        return None
    return next(((old, MOVED[old]) for n in (2, 1) if (old := " ".join(words[:n])) in MOVED), None)


def _has_verb(words: Sequence[str]) -> bool:
    second = words[1] if len(words) > 1 else ""
    return second in ("-h", "--help") or bool(second and not second.startswith("-"))


class DeclaredGroup(click.Group):
    """A group of declared commands. Each is imported when it is asked for."""

    path = ""
    """What is written before its verbs; nothing for the whole command line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.find_declared(load_declarations()))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a verb. Other extensions are only looked at when nothing built in has the name."""
        name, built_in = self._spell_path(cmd_name), installed.get_installed().commands
        declared = built_in.get(name)
        if declared is None and (own := self._find_own(cmd_name)) is not None:
            return own
        declared = declared or load_declarations().get(name)
        if declared is None:
            return None
        if sentence := platforms.find_refusal(name, sys.platform, sys.version_info[:2]):
            raise ConfigurationError(sentence)
        if any(other.startswith(f"{name} ") for other in built_in):
            return MixedGroup(declared)
        command: click.Command = load_reference(declared.implementation)
        # An extension may add a verb to any group of ours; a group of its own keeps its callback and options.
        return MixedGroup(declared) if _is_ours(declared) and isinstance(command, click.Group) else command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            _print_help(ctx)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] == "help" and self.get_command(ctx, "help") is None:
            if len(args) == 1:
                _print_help(ctx)
            args = [*args[1:], "--help"]
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            near = self._suggest(ctx, error.command_name)
            said = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise click.NoSuchCommand(error.command_name, f"{error.message}{said}", ctx=ctx) from None

    def _suggest(self, ctx: click.Context, word: str) -> Sequence[str]:
        """Suggest what a wrong word may mean: a verb of this group, else a command of another one, written whole."""
        here = self.list_commands(ctx)
        if near := _choose_near(word, {name: [name] for name in here}):
            return near
        return _choose_near(word, _list_paths())

    def find_declared(self, found: Mapping[str, CommandDeclaration]) -> dict[str, CommandDeclaration]:
        """Find the commands right below this group, by their last word."""
        below = {
            name.removeprefix(self._spell_path("")): one
            for name, one in found.items()
            if name.startswith(self._spell_path(""))
        }
        return {name: one for name, one in below.items() if " " not in name}

    def _find_own(self, name: str) -> click.Command | None:
        return None

    def _spell_path(self, name: str) -> str:
        return f"{self.path} {name}" if self.path else name


class MixedGroup(DeclaredGroup):
    """A group that has declared verbs beside those of its own module, which is imported for its own verbs and its help
    only."""

    def __init__(self, declared: CommandDeclaration) -> None:
        super().__init__(declared.name.rpartition(" ")[2], help=declared.summary)
        self.path = declared.name
        self._reference = declared.implementation

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._load_base().commands})

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        base = self._load_base()
        self.help, self.epilog = base.help, base.epilog
        super().format_help(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = {name: command.get_short_help_str(100) for name, command in self._load_base().commands.items()}
        declared = {name: one.summary for name, one in self.find_declared(load_declarations()).items()}
        if rows := sorted((own | declared).items()):
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def _find_own(self, name: str) -> click.Command | None:
        return self._load_base().commands.get(name)

    def _load_base(self) -> click.Group:
        base: click.Group = load_reference(self._reference)
        return base


class CommandTree(DeclaredGroup):
    """The whole command line."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that ``args`` begin with. An old spelling is answered with a line on stderr."""
        if args[0] in MOVED and (moved := find_moved(args)) is not None:
            old, new = moved
            args = [*new.split(), *args[len(old.split()) :]]
            if not ctx.resilient_parsing:
                click.echo(
                    f"note: 'hermes-worker {old}' is now 'hermes-worker {new}'; the old spelling goes with the next "
                    "release",
                    err=True,
                )
        return super().resolve_command(ctx, args)

    def _suggest(self, ctx: click.Context, word: str) -> Sequence[str]:
        return _choose_near(word, _list_paths())

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = self.find_declared(load_declarations())
        for section in (*SECTIONS, OTHERS):
            rows = [(name, one.summary) for name, one in found.items() if _choose_section(one) == section]
            if rows:
                with formatter.section(section):
                    formatter.write_dl(rows)


def _print_help(ctx: click.Context) -> NoReturn:
    click.echo(ctx.get_help(), color=ctx.color)
    ctx.exit()


def _choose_near(word: str, paths: Mapping[str, Sequence[str]]) -> list[str]:
    """Choose the commands that a wrong word may mean. ``paths`` are commands by their last word."""
    found = [path for name in (word, *_SYNONYMS.get(word, ())) for path in paths.get(name, ())]
    if not found:
        found = [path for name in difflib.get_close_matches(word, paths) for path in paths[name]]
    return list(dict.fromkeys(found))[:_SUGGESTED_MAX]


def _list_paths() -> dict[str, list[str]]:
    """List all commands by their last word. This imports all of ours, which is for a wrong word alone."""
    found: dict[str, list[str]] = {}
    for path, declared in load_declarations().items():
        found.setdefault(path.rpartition(" ")[2], []).append(path)
        command = load_reference(declared.implementation) if _is_ours(declared) else None
        for name in command.commands if isinstance(command, click.Group) else ():
            found.setdefault(name, []).append(f"{path} {name}")
    return {name: sorted(dict.fromkeys(paths), key=lambda path: path.count(" ")) for name, paths in found.items()}


def _is_ours(declared: CommandDeclaration) -> bool:
    return str(declared.implementation).partition(".")[0] in OWN_PACKAGES


def _choose_section(declared: CommandDeclaration) -> str:
    return declared.section if declared.section in SECTIONS else OTHERS
