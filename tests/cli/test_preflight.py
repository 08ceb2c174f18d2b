"""What cannot work is said when a job or a task is written down."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commandline import CommandLine


def made(hermes: CommandLine, *options: str) -> tuple[int, str]:
    ended = hermes.inline("cron", "create", "every 1h", *options)
    return ended.code, ended.said


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--script", "disk.sh", "--no-agent"), "there is no script 'disk.sh'"),
        (("Look", "--skill", "tidy"), "there is no skill 'tidy'"),
        (("Look", "--deliver", "telegram:-1001"), "TELEGRAM_BOT_TOKEN"),
        (("Look", "--deliver", "slack"), "SLACK_HOME_CHANNEL"),
        (("Look", "--deliver", "local,email:me@example.org"), "EMAIL_SMTP_HOST"),
        (("Look", "--deliver", "origin", "--origin", "telegram:5"), "TELEGRAM_BOT_TOKEN"),
        (("Look", "--deliver", "slack:#ops"), "no chat of that name"),
        (("Look", "--toolset", "telepathy"), "telepathy"),
    ],
)
def test_a_job_that_cannot_work_is_refused_unless_forced(
    hermes: CommandLine, options: tuple[str, ...], named: str
) -> None:
    code, said = made(hermes, *options)
    assert code == 2, said
    assert named in said
    assert "--force" in said
    assert len(said.splitlines()) == 1
    assert "no jobs" in hermes.inline("cron", "list").said
    if "telepathy" not in named:
        code, said = made(hermes, *options, "--force")
        assert code == 0, said


def test_a_job_that_has_what_it_needs_is_kept(hermes: CommandLine) -> None:
    for path in ("scripts/disk.sh", "skills/tidy/SKILL.md"):
        (hermes.home / path).parent.mkdir(parents=True)
        (hermes.home / path).write_text("echo hello\n")
    hermes.environ.update(TELEGRAM_BOT_TOKEN="1:abcdefgh", TELEGRAM_HOME_CHANNEL="-1001")
    options = ("Look", "--script", "disk.sh", "--skill", "tidy", "--deliver", "local,telegram,telegram:7")
    code, said = made(hermes, *options)
    assert code == 0, said


def test_a_change_that_cannot_work_is_refused_as_a_new_job_is(hermes: CommandLine) -> None:
    assert made(hermes, "Look", "--name", "look")[0] == 0
    refused = hermes.inline("cron", "edit", "look", "--deliver", "telegram:-1001")
    assert refused.code == 2
    assert "TELEGRAM_BOT_TOKEN" in refused.err
    assert hermes.inline("cron", "edit", "look", "--prompt", "Look twice").code == 0


def test_a_task_for_a_home_where_nothing_ran_says_what_to_start(tmp_path: Path) -> None:
    ended = CommandLine(tmp_path / "nowhere").inline("submit", "Hello")
    assert ended.code == 2
    assert ended.out == ""
    assert len(ended.err.splitlines()) == 1
    assert "'hermes-worker up'" in ended.err
    assert not (tmp_path / "nowhere").exists()
