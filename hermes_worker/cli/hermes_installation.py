"""Read the home of an installation of Hermes Agent: its settings, its jobs, and what else is there. The files come from
strangers. Pure, but that it reads.

Where the original keeps what is in https://github.com/NousResearch/hermes-agent (0.19): ``config.yaml``, ``.env``,
``state.db``, ``memories``, ``skills``, ``cron/jobs.json``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import yaml

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.settings.config_editing import set_value
from hermes_worker.settings.config_files import find_setting, read_dotenv
from hermes_worker.system.plainfiles import NotPlain, read_plain
from scheduler.definition import JobRequest

_FILE_BYTES_MAX = 4_000_000
_SKILLS_MAX = 2_000
_DEEPEST_SKILL = 3
ELSEWHERE: Final[Mapping[str, str]] = MappingProxyType(
    {
        ".env": "secrets are not copied; put those that you still need into .env of the home here",
        "auth.json": "logins are not copied; 'hermes-worker init' asks for a key",
        "SOUL.md": "copy it into the home here: agents read it there",
        "plugins": "plugins of the original do not run here; 'hermes-worker extensions' lists what does",
        "hooks": "copy a directory with a HOOK.yaml into hooks of the home here, and enable it (docs/hooks.md)",
        "pairing": "people are let in with 'hermes-worker gateway pair'",
        "profiles": "each profile is an installation of its own: import its directory for a tenant of its own",
        "scripts": "copy those that jobs name into scripts of the home here",
        "webhook_subscriptions.json": "routes are made with 'hermes-worker gateway webhooks'",
        "mcp-tokens": "MCP servers are added with 'hermes-worker mcp add', which asks for a login",
        "checkpoints": "checkpoints are of the original's own store",
        "skins": "the terminal here has no skins",
    }
)
"""What of an installation is not taken, and what to do instead."""
_ELSEWHERE_KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "mcp_servers": "add each with 'hermes-worker mcp add'",
        "terminal.backend": "terminal.workspace and terminal.sandbox say it here",
        "terminal.cwd": "chats and jobs name their directory",
        "timezone": "each job has a time zone of its own",
        "display": "it is about the original's terminal",
        "gateway": "see 'chats.*' in docs/reference/settings.md",
    }
)
_UNKNOWN = "no such setting here"


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenPart:
    """Something of the installation, and what became of it."""

    part: str
    what: str
    is_taken: bool
    why: str = ""
    """What became of it otherwise, or what was left out of it."""


@dataclass(slots=True)
class ReadConfig:
    """The text of ``config.yaml`` here with the settings of the original, and what became of each."""

    text: str
    findings: list[TakenPart] = field(default_factory=list)


def merge_config(source: Path, text: str, *, without_model: str = "") -> ReadConfig:
    """Merge the settings of Hermes Agent's ``config.yaml`` that have the same meaning here into ``text``, our own
    configuration. A ``without_model`` that is not empty leaves out the settings of the model, and is the reason that is
    reported. Raises ``ConfigurationError`` when the file cannot be read."""
    merged = ReadConfig(text)
    try:
        document = yaml.safe_load(_read(source / "config.yaml") or "")
    except yaml.YAMLError:
        raise ConfigurationError(f"{source / 'config.yaml'} is no YAML") from None
    for key, value in _flatten(document if isinstance(document, dict) else {}):
        why = without_model if key.startswith("model.") else ""
        why = why or _take_setting(merged, key, value)
        merged.findings.append(TakenPart(part="config", what=key, is_taken=not why, why=why))
    return merged


def _take_setting(merged: ReadConfig, key: str, value: object) -> str:
    """Take one setting. Returns why it cannot be taken; empty where it was."""
    try:
        _, kind = find_setting(key)
    except ConfigurationError:
        return _ELSEWHERE_KEYS.get(key) or _ELSEWHERE_KEYS.get(key.partition(".")[0]) or _UNKNOWN
    if kind.is_secret:
        return "it is a secret; put it into .env of the home here"
    try:
        kind.parse(value)
        merged.text = set_value(merged.text, key, value)
    except (ConfigurationError, ValueError, TypeError) as error:
        return f"its value cannot be used here: {error}"
    return ""


def _flatten(document: Mapping[object, object], above: str = "") -> Iterator[tuple[str, object]]:
    for name, value in document.items():
        key = f"{above}{name}"
        if key == "model" and isinstance(value, str):
            yield "model.default", value
        elif isinstance(value, dict) and value and key.count(".") < 3 and not _is_setting(key):
            yield from _flatten(value, f"{key}.")
        elif value not in (None, "", [], {}):
            yield key, value


def _is_setting(key: str) -> bool:
    try:
        find_setting(key)
    except ConfigurationError:
        return False
    return True


def list_skills(source: Path) -> Sequence[tuple[str | None, Path]]:
    """List the skills of the installation: their categories, and their folders."""
    root = source / "skills"
    found = sorted(path.parent for path in root.rglob("SKILL.md"))[:_SKILLS_MAX] if root.is_dir() else []
    places = [(path, path.relative_to(root).parts) for path in found]
    return [
        (parts[0] if len(parts) > 1 else None, path)
        for path, parts in places
        if 0 < len(parts) <= _DEEPEST_SKILL and not any(part.startswith(".") for part in parts)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundJob:
    """A job of the original, as a request to make one here."""

    old_id: str
    request: JobRequest
    is_enabled: bool
    left_out: tuple[str, ...] = ()
    """What of it has no counterpart, in words."""


def read_jobs(source: Path) -> list[FoundJob]:
    """Read the jobs of the installation. Raises ``ConfigurationError`` where the file cannot be read."""
    text = _read(source / "cron" / "jobs.json")
    if text is None:
        return []
    try:
        document = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{source / 'cron' / 'jobs.json'} is no JSON") from None
    rows = document.get("jobs") if isinstance(document, dict) else document
    return [_read_job(row) for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _read_job(row: Mapping[str, Any]) -> FoundJob:
    left_out = [name for name in ("context_from", "attach_to_session") if row.get(name)]
    repeat = row.get("repeat")
    times = repeat.get("times") if isinstance(repeat, dict) else repeat
    done = repeat.get("completed") if isinstance(repeat, dict) else 0
    more = {
        "skills": tuple(map(str, row["skills"])) if isinstance(row.get("skills"), list) else (),
        "toolsets": tuple(map(str, row["enabled_toolsets"])) if isinstance(row.get("enabled_toolsets"), list) else (),
        "origin": _format_origin(row.get("origin")),
        "directory": row.get("workdir"),
        **{name: row.get(name) for name in ("model", "provider", "base_url", "script", "no_agent")},
    }
    return FoundJob(
        old_id=str(row.get("id") or row.get("job_id") or ""),
        request=JobRequest(
            prompt=str(row["prompt"]) if row.get("prompt") else None,
            schedule=_format_schedule(row),
            name=str(row["name"]) if row.get("name") else None,
            deliver=str(row["deliver"]) if row.get("deliver") else None,
            repeat=max(1, times - (done if isinstance(done, int) else 0)) if isinstance(times, int) and times else None,
            more={name: value for name, value in more.items() if value not in (None, "", (), False)},
        ),
        is_enabled=bool(row.get("enabled", True)),
        left_out=tuple(left_out),
    )


def _format_schedule(row: Mapping[str, Any]) -> str:
    """Write a schedule as people write it here."""
    schedule = row.get("schedule")
    if not isinstance(schedule, dict):
        return str(schedule or "")
    match schedule.get("kind"):
        case "interval":
            return f"every {schedule.get('minutes')}m"
        case "cron":
            return str(schedule.get("expr") or "")
        case "once":
            return str(schedule.get("run_at") or "")
    return str(row.get("schedule_display") or "")


def _format_origin(origin: object) -> str | None:
    if not isinstance(origin, dict) or origin.get("platform") in (None, "api_server", "cli", "local"):
        return None
    parts = (origin.get("platform"), origin.get("chat_id"), origin.get("thread_id"))
    return ":".join(str(part) for part in parts if part)


def list_left(source: Path) -> list[TakenPart]:
    """List what of the installation is not taken, with what to do instead."""
    found = [(name, why) for name, why in ELSEWHERE.items() if (source / name).exists()]
    return [TakenPart(part="files", what=_name_file(source, name), is_taken=False, why=why) for name, why in found]


def _name_file(source: Path, name: str) -> str:
    """Name a file; of one with secrets the names of its variables, so that people see which they need."""
    if name != ".env":
        return name
    try:
        return f".env ({', '.join(sorted(read_dotenv(source / name))) or 'empty'})"
    except ConfigurationError:
        return name


def _read(path: Path) -> str | None:
    """Read a text; ``None`` where there is no such file. Raises ``ConfigurationError``."""
    try:
        data = read_plain(path, bytes_max=_FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except (NotPlain, OSError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    if len(data) > _FILE_BYTES_MAX:
        raise ConfigurationError(f"{path} has more than {_FILE_BYTES_MAX} bytes")
    return data.decode("utf-8-sig", "replace")
