"""Jobs from the command line to a mailbox and a file, through every process of ``up``."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.commandline import CommandLine, script, wait_for
from support.smtp_server import smtp_server

pytestmark = pytest.mark.e2e


def test_a_job_runs_at_its_time_and_by_hand_and_its_answer_arrives(hermes: CommandLine) -> None:
    with smtp_server() as mailbox:
        hermes.environ.update(
            EMAIL_SMTP_HOST="127.0.0.1", EMAIL_SMTP_PORT=str(mailbox.port), EMAIL_ADDRESS="hermes@example.org"
        )
        with hermes.up():
            at = (datetime.now(UTC) + timedelta(seconds=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
            soon = hermes.inline("cron", "create", at, script(final="On time."), "--deliver", "local", "--json")
            assert soon.code == 0, soon.said
            targets = "local,email:me@example.org"
            made = hermes(
                "cron", "create", "every 1m", script(final="By hand."), "--deliver", targets, "--name", "hand"
            )
            assert made.code == 0, made.said
            assert hermes.inline("cron", "run", "hand").code == 0  # its slot need not be waited for
            wait_for(lambda: mailbox.mails, saying="for the mail")
            assert hermes.inline("cron", "pause", "hand").code == 0
            assert "By hand." in mailbox.text()
            assert "Cronjob Response: hand" in mailbox.text()

            kept = Path(hermes.home) / "cron" / "output"
            job_id = json.loads(soon.out)["job_id"]
            wait_for(lambda: list((kept / job_id).glob("*.md")), saying="for the file of the one-shot")
            assert "On time." in next((kept / job_id).glob("*.md")).read_text()
            watch_by_script(hermes, kept)
            wait_for(
                lambda: any("disk is full" in mailbox.text(number) for number in range(len(mailbox.mails))),
                saying="for the script's mail",
            )
            wait_for(lambda: hermes.inline("gateway", "deliveries", "list", "--json").out.count('"delivered"') >= 4)
            assert "fired" in hermes.inline("cron", "history", "hand").out
            assert json.loads(hermes.inline("cron", "show", job_id, "--json").out)["state"] == "completed"


def watch_by_script(hermes: CommandLine, kept: Path) -> None:
    """A job that asks no model: a worker runs its script, and what it says is what is sent."""
    scripts = Path(hermes.home) / "scripts"
    scripts.mkdir()
    (scripts / "check.sh").write_text("echo the disk is full")
    options = ("--script", "check.sh", "--no-agent", "--name", "watch", "--deliver", "email:me@example.org", "--json")
    made = hermes.inline("cron", "create", "every 1h", *options)
    assert made.code == 0, made.said
    assert hermes.inline("cron", "run", "watch").code == 0
    job_id = json.loads(made.out)["job_id"]
    wait_for(lambda: list((kept / job_id).glob("*.md")), saying="for the script's document")
    wait_for(lambda: "the script's output was delivered" in hermes.inline("cron", "history", "watch").out)
