"""An observer through the whole product: enabled by name, told by workers, recorded, and in nobody's way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commandline import CommandLine, call, script, wait_for

pytestmark = pytest.mark.e2e

_HANDLER = """
from pathlib import Path

def handle(event_type, context):
    with Path({told!r}).open("a") as file:
        file.write(f"{{event_type}} {{context['event_id']}}\\n")
    if event_type == "agent:step":
        raise ValueError("not today")
"""


def test_a_directory_in_hooks_is_told_of_a_run_once_it_is_enabled(tmp_path: Path) -> None:
    hermes = CommandLine(tmp_path / "home")
    told = tmp_path / "told.txt"
    hook = tmp_path / "home" / "hooks" / "diary"
    hook.mkdir(parents=True)
    (hook / "HOOK.yaml").write_text("name: diary\ndescription: Writes down.\nevents: [agent:step, agent:end]\n")
    (hook / "handler.py").write_text(_HANDLER.format(told=str(told)))
    assert hermes("extensions", "enable", "diary").code == 0

    with hermes.up():
        run_id = hermes("submit", script(call("todo"), final="Done.")).out.strip()
        shown = wait_for(lambda: _settled(hermes, run_id))
        watched = hermes.inline("runs", "watch", run_id)

    assert watched.code == 0, watched.said
    assert sorted((row["event"], row["attempts"]) for row in shown) == [
        ("agent:end", 1),
        ("agent:step", 1),
        ("agent:step", 1),
    ]
    assert sorted(told.read_text().splitlines()) == sorted(f"{row['event']} {row['event_id']}" for row in shown)
    assert [row["reason"] for row in shown if row["event"] == "agent:step"] == ["ValueError: not today"] * 2


def _settled(hermes: CommandLine, run_id: str) -> list[dict[str, object]] | None:
    rows = [json.loads(line) for line in hermes.inline("runs", "hooks", run_id, "--json").out.splitlines()]
    is_over = any(row["event"] == "agent:end" for row in rows) and all(row["settled_at"] for row in rows)
    return rows if is_over else None
