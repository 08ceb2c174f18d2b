"""The same verb over a server and over its database, and what is equal in what both print."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from serving import Served
from support.commandline import CommandLine, Finished

PASSING = re.compile(
    r"--wait-id \d+|"
    r"\b\d+(\.\d)? (s|min|h|d)\b( ago)?|\bnow\b|"
    r'wall_clock +\d+ +0 +\d+|"wall_clock": {[^}]*}|"(oldest_age_s|lasts_s)": [0-9.]+|(?<!\S)-{2,}(?!\S)| +'
)
"""What depends on when one asks and who asked before, and the widths of columns that hold it."""
TIME = re.compile(r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d")
EPOCH = re.compile(r"\b\d{10}\.\d+\b")
IDS = re.compile(
    r"(run|dlv|key|era|mem)_[0-9a-f]{12,32}|hwk_[\w-]+|\b[0-9a-f]{12}\b|(?<=[ ])[\w-]{43}\b|\b[0-9a-f]{32,64}\b"
)


def local_line(api: Served) -> CommandLine:
    """At the machine of the server itself, over its database."""
    settings = api.client.settings
    return CommandLine(
        settings.home, {"HERMES_DATABASE_URL": settings.database_url, "HERMES_BROKER_URL": str(settings.broker.url)}
    )


def at_server(url: str, tmp_path: Path, key_file: Path) -> CommandLine:
    """On a machine without a home; its database and its broker would not answer."""
    elsewhere = tmp_path / "laptop" / "nothing"
    return CommandLine(
        elsewhere,
        {
            "HERMES_SERVER_URL": url,
            "HERMES_SERVER_KEY_FILE": str(key_file),
            "HERMES_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
            "HERMES_BROKER_URL": "redis://127.0.0.1:1/0",
        },
    )


def keyed_file(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def said(finished: Finished) -> tuple[int, str]:
    """How a command ended and what it printed, but for what passes."""
    return finished.code, PASSING.sub(" ", finished.out)


def fixed(finished: Finished) -> tuple[int, str]:
    """The same without ids and times, for commands that make things of their own."""
    code, out = said(finished)
    return code, IDS.sub("ID", EPOCH.sub("T", TIME.sub("T", out)))


def same(local: CommandLine, remote: CommandLine, lines: Sequence[Sequence[str]]) -> None:
    """Each of ``lines`` prints over a server what it prints over the database, and ends alike."""
    for words in lines:
        here, there = local.inline(*words), remote.inline(*words)
        assert here.code in (0, 1), (words, here.err)
        assert said(there) == said(here), (words, there.err)
        assert _notes(there.err) == _notes(here.err), words


def _notes(err: str) -> list[str]:
    return [line for line in err.splitlines() if not line.startswith("note: others may read")]


def played(
    hermes: CommandLine, lines: Sequence[Sequence[str]], environ: Mapping[str, str] | None = None
) -> list[object]:
    """What came of commands that change something, one after the other."""
    hermes.environ |= environ or {}
    return [(list(words), *fixed(hermes.inline(*words))) for words in lines]
