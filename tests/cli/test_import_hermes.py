"""An installation of Hermes Agent is taken over part by part, and what is left is told with what to do instead."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.commandline import CommandLine

from hermes_worker.cli.hermes_installation import list_skills, merge_config, read_jobs
from hermes_worker.core.errors import ConfigurationError

_JOBS = [
    {
        "id": "abc123abc123",
        "name": "News",
        "prompt": "Summarise the news",
        "schedule": {"kind": "cron", "expr": "0 9 * * *"},
        "repeat": {"times": 5, "completed": 3},
        "deliver": "local",
    },
    {
        "id": "def",
        "name": "Watch",
        "prompt": "Look",
        "schedule": {"kind": "interval", "minutes": 30},
        "enabled": False,
        "context_from": ["abc123abc123"],
        "origin": {"platform": "telegram", "chat_id": "-1", "thread_id": "7"},
    },
    {"id": "ghi", "name": "Broken", "prompt": "x", "schedule": {"kind": "cron", "expr": "99 9 * * *"}},
]


def installation(path: Path) -> Path:
    """The home of an installation of the original."""
    for folder in ("memories", "cron", "skills/house/tidy", "plugins"):
        (path / folder).mkdir(parents=True)
    (path / "config.yaml").write_text(
        "model: {default: some-model, provider: openrouter}\nagent: {max_turns: 55}\nterminal: {backend: docker}\n"
        "approvals: {mode: maybe}\n"
    )
    (path / ".env").write_text("OPENROUTER_API_KEY=sk-or-v1-secret\n")
    (path / "memories" / "USER.md").write_text("Likes tea.\n§\nLives in Bern.")
    skill = "---\nname: tidy\ndescription: Tidies the house well.\n---\n\nTidy up.\n"
    (path / "skills" / "house" / "tidy" / "SKILL.md").write_text(skill)
    (path / "cron" / "jobs.json").write_text(json.dumps({"jobs": _JOBS}))
    with closing(sqlite3.connect(path / "state.db")) as database:
        database.execute("create table sessions (id text, title text, started_at real)")
        database.execute("create table messages (id integer primary key, session_id text, role text, content text)")
        database.execute("insert into sessions values ('s1', 'First talk', 1.0)")
        database.executemany(
            "insert into messages (session_id, role, content) values ('s1', ?, ?)",
            [("user", "hello"), ("assistant", "good day")],
        )
        database.commit()
    return path


def rows(text: str) -> dict[tuple[str, str], str]:
    """What became of each thing, by its part and its name."""
    lines = text.splitlines()
    table = lines[next(number for number, line in enumerate(lines) if line.startswith("PART")) + 1 :]
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in table if line[0] != " "]
    return {(part, what): became for part, what, became, *_ in cells}


def test_what_has_a_counterpart_is_taken_and_the_rest_is_told(hermes: CommandLine, tmp_path: Path) -> None:
    source = installation(tmp_path / "original")
    dry = hermes.inline("data", "import-hermes", str(source), "--dry-run")
    assert (dry.code, rows(dry.out)["jobs", "News"]) == (0, "would be taken"), dry.said
    assert not (hermes.home / "config.yaml").exists()

    done = hermes.inline("data", "import-hermes", str(source))
    assert done.code == 0, done.said
    became = rows(done.out)
    assert {what: how for (_, what), how in became.items()} == {
        "model.default": "left",
        "model.provider": "left",
        "agent.max_turns": "taken",
        "terminal.backend": "left",
        "approvals.mode": "left",
        "tidy": "taken",
        "USER.md": "taken",
        "state.db": "taken",
        "News": "taken",
        "Watch": "taken",
        "Broken": "left",
        ".env (OPENROUTER_API_KEY)": "left",
        "plugins": "left",
    }
    assert "sk-or-v1-secret" not in done.said
    assert "max_turns: 55" in (hermes.home / "config.yaml").read_text()
    assert "Lives in Bern." in hermes.inline("memory", "show").out
    assert "good day" in hermes.inline("sessions", "show", "s1", "--messages").out
    jobs = {job["name"]: job for job in map(json.loads, hermes.inline("cron", "list", "-o", "json").out.splitlines())}
    assert (jobs["News"]["state"], jobs["Watch"]["state"]) == ("scheduled", "paused")

    again = rows(hermes.inline("data", "import-hermes", str(source)).out)
    assert (again["jobs", "News"], again["memory", "USER.md"]) == ("left", "taken")
    assert len(hermes.inline("cron", "list", "-o", "name").out.splitlines()) == 2


def test_a_directory_that_is_no_installation_is_refused(hermes: CommandLine, tmp_path: Path) -> None:
    refused = hermes.inline("data", "import-hermes", str(tmp_path))
    assert (refused.code, "is no home of Hermes Agent" in refused.err) == (2, True)


def test_a_job_is_read_as_it_is_written_here(tmp_path: Path) -> None:
    news, watch, _ = read_jobs(installation(tmp_path))
    assert (news.request.schedule, news.request.repeat, news.is_enabled) == ("0 9 * * *", 2, True)
    assert (watch.request.schedule, watch.request.more["origin"]) == ("every 30m", "telegram:-1:7")
    assert (watch.is_enabled, watch.left_out) == (False, ("context_from",))


@pytest.mark.parametrize(
    "text",
    [
        '{"jobs": 5}',
        "[]",
        '[1, null, {"schedule": 3, "repeat": "x", "skills": 4}]',
        '{"jobs": [{"repeat": {}}]}',
        "null",
    ],
)
def test_odd_files_of_jobs_break_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "cron").mkdir()
    (tmp_path / "cron" / "jobs.json").write_text(text)
    assert len(read_jobs(tmp_path)) <= 1


@pytest.mark.parametrize("text", ["[1]", "a: &a [*a]", "model: 5", "agent: {max_turns: {a: b}}"])
def test_odd_settings_are_left_and_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    merged = merge_config(tmp_path, "")
    assert not any(each.is_taken for each in merged.findings) and merged.text == ""


def test_files_that_cannot_be_read_are_refused_with_their_path(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("? {a: b}\n: c")
    (tmp_path / "cron").mkdir()
    (tmp_path / "cron" / "jobs.json").mkdir()
    for read in (lambda: merge_config(tmp_path, ""), lambda: read_jobs(tmp_path)):
        with pytest.raises(ConfigurationError, match=str(tmp_path)):
            read()


def test_hidden_folders_hold_no_skills(tmp_path: Path) -> None:
    for folder in (".hub/x", "tidy", "house/tidy", "a/b/c/d"):
        (tmp_path / "skills" / folder).mkdir(parents=True)
        (tmp_path / "skills" / folder / "SKILL.md").touch()
    found = [(category, path.name) for category, path in list_skills(tmp_path)]
    assert found == [("house", "tidy"), (None, "tidy")]
