"""Which targets can be sent to, by the names of the variables that workers have."""

from __future__ import annotations

import pytest

from hermes_worker.channels.readiness import explain_undeliverable, list_set_variables
from hermes_worker.channels.targets import TargetError

SET = {
    "TELEGRAM_BOT_TOKEN": "1:x",
    "SLACK_BOT_TOKEN__OPS": "xoxb",
    "DISCORD_BOT_TOKEN": " ",
    "OPENAI_API_KEY": "sk-1",
    "EMAIL_SMTP_HOST": "mail.example.org",
}


def test_a_worker_says_which_variables_of_platforms_it_has_and_nothing_else() -> None:
    assert list_set_variables(SET) == {"TELEGRAM_BOT_TOKEN", "SLACK_BOT_TOKEN__OPS", "EMAIL_SMTP_HOST"}


@pytest.mark.parametrize(
    "deliver",
    ["telegram:42", "telegram", "slack@ops:C1", "local", "all", "origin", "webhook:https://example.org/x", ""],
)
def test_what_some_worker_has_credentials_for_can_be_sent(deliver: str) -> None:
    assert explain_undeliverable([frozenset(), list_set_variables(SET)], deliver) is None


@pytest.mark.parametrize(
    ("deliver", "sender", "missing"),
    [
        ("discord:42", "discord", "DISCORD_BOT_TOKEN"),
        (["local", "slack:C1"], "slack", "SLACK_BOT_TOKEN"),
        ("telegram@ops:42", "telegram@ops", "TELEGRAM_BOT_TOKEN"),
        ("email:me@example.org", "email", "EMAIL_ADDRESS"),
    ],
)
def test_what_no_worker_has_credentials_for_is_explained(deliver: str | list[str], sender: str, missing: str) -> None:
    why = explain_undeliverable([list_set_variables(SET)], deliver)
    assert why is not None
    assert why.startswith(f"nothing can be sent to {sender}: no worker that delivers has {missing}")


def test_nothing_is_known_while_no_worker_says_what_it_has() -> None:
    assert explain_undeliverable([], "discord:42") is None
    with pytest.raises(TargetError):
        explain_undeliverable([frozenset()], "nowhere:42")
