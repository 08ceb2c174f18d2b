"""An event of somebody else's becomes a run, and its answer a mail: through every process of ``up``."""

from __future__ import annotations

import json
import subprocess

import pytest
from support.commandline import CommandLine, Running, script, wait_for
from support.documents import blocks_of, shell_environ
from support.smtp_server import smtp_server

pytestmark = pytest.mark.e2e


def test_an_event_becomes_a_run_whose_answer_arrives(hermes: CommandLine) -> None:
    with smtp_server() as mailbox:
        hermes.environ.update(
            EMAIL_SMTP_HOST="127.0.0.1", EMAIL_SMTP_PORT=str(mailbox.port), EMAIL_ADDRESS="hermes@example.org"
        )
        with hermes.up():
            prompt = script(final="Reviewed.") + " {pull_request.title}"
            made = hermes(
                *("gateway", "webhooks", "add", "review", "--prompt", prompt, "--events", "pull_request"),
                *("--filter", '{"field": "action", "equals": "opened"}', "--deliver", "email:me@example.org"),
            )
            assert made.code == 0, made.said
            assert "/webhooks/review" in made.out
            payload = json.dumps({"action": "opened", "pull_request": {"title": "T"}})
            sent = hermes("gateway", "webhooks", "test", "review", "--payload", payload, "--event", "pull_request")
            assert sent.code == 0, sent.said
            assert sent.out.startswith("202")
            wait_for(lambda: mailbox.mails, saying="for the mail")
            assert "Reviewed." in mailbox.text()


def test_the_block_of_the_documentation_works_as_pasted(shared: tuple[CommandLine, Running]) -> None:
    hermes, _ = shared
    block = next(block for block in blocks_of("docs/webhooks.md") if "webhooks test" in block)
    ended = subprocess.run(
        ["bash", "-ec", block], env=shell_environ(hermes), capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert '202 {"status":"accepted","route":"review"' in ended.stdout
    assert ended.stderr == ""
