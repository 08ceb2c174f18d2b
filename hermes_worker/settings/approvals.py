"""The settings of dangerous commands."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import APPROVALS_MODE, list_of_names, one_of, optional_number

_OUTCOMES = ("ask", "deny", "approve")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalSettings:
    """Dangerous commands. What is hardline is never run, whatever is set here."""

    mode: str = declare_setting(
        "approvals.mode",
        "HERMES_APPROVALS_MODE",
        APPROVALS_MODE,
        "manual",
        audience="security",
        reason="nobody can answer, or a model should judge first; a person is asked each time without it.",
    )
    """`manual` asks a person; `smart` asks the run's model first, and then a person about what the model does not
    approve; `off` asks nobody."""
    timeout_s: float | None = declare_setting(
        "approvals.timeout",
        "HERMES_APPROVALS_TIMEOUT_S",
        optional_number(1, 31 * 86_400, "seconds"),
        3_600.0,
        audience="operator",
        reason="people answer later than after an hour; their questions count as refused without it.",
    )
    """Seconds after which a question without an answer counts as refused; 0 for never."""
    cli: str = declare_setting(
        "approvals.cli_mode",
        "HERMES_APPROVALS_CLI",
        one_of(*_OUTCOMES),
        "ask",
        audience="security",
        reason="commands of the terminal need no questions, or are never to run; they are asked about without it.",
    )
    """What happens to a dangerous command in a run from the command line."""
    api: str = declare_setting(
        "approvals.api_mode",
        "HERMES_APPROVALS_API",
        one_of(*_OUTCOMES),
        "ask",
        audience="security",
        reason="an API client cannot answer questions; its runs wait for an answer without it.",
    )
    """What happens to a dangerous command in a run submitted over the API."""
    cron: str = declare_setting(
        "approvals.cron_mode",
        "HERMES_APPROVALS_CRON",
        one_of(*_OUTCOMES),
        "deny",
        audience="security",
        reason="jobs need dangerous commands; these are refused without it.",
    )
    """What happens to a dangerous command in a scheduled run, which nobody watches."""
    webhook: str = declare_setting(
        "approvals.webhook_mode",
        "HERMES_APPROVALS_WEBHOOK",
        one_of(*_OUTCOMES),
        "deny",
        audience="security",
        reason="runs of webhooks need dangerous commands; these are refused without it.",
    )
    """What happens to a dangerous command in a run that a webhook started."""
    delegation: str = declare_setting(
        "approvals.delegation_mode",
        "HERMES_APPROVALS_DELEGATION",
        one_of(*_OUTCOMES),
        "deny",
        audience="security",
        reason="children need dangerous commands; these are refused without it.",
    )
    """What happens to a dangerous command in a child run, whatever the source of its root."""
    deny: tuple[str, ...] = declare_setting(
        "approvals.deny",
        "HERMES_APPROVALS_DENY",
        list_of_names(r"[^\x00-\x1f]{1,500}", "command patterns with * and ?"),
        (),
        audience="security",
        reason="some commands must never run here; they can be approved without it.",
    )
    """Commands that are never run, as patterns over the whole command."""
    allowed: tuple[str, ...] = declare_setting(
        "command_allowlist",
        "HERMES_COMMAND_ALLOWLIST",
        list_of_names(r"[^\x00-\x1f]{1,200}", "kinds of commands"),
        (),
        audience="anyone",
        reason="the same harmless kind is asked about again and again; every one is a question without it.",
    )
    """Kinds of dangerous commands that are not asked about, by the description a question shows."""
