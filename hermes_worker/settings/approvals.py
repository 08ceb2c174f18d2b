"""The settings of dangerous commands."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import APPROVALS_MODE, list_of_names, one_of, optional_number

_OUTCOMES = ("ask", "deny", "approve")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalSettings:
    """Dangerous commands. What is hardline is never run, whatever is set here."""

    mode: str = declare_setting("approvals.mode", "HERMES_APPROVALS_MODE", APPROVALS_MODE, "manual")
    """`manual` asks a person; `smart` asks the run's model first, and then a person about what the model does not
    approve; `off` asks nobody."""
    timeout_s: float | None = declare_setting(
        "approvals.timeout", "HERMES_APPROVALS_TIMEOUT_S", optional_number(1, 31 * 86_400, "seconds"), 60.0
    )
    """Seconds after which a question without an answer counts as refused; 0 for never."""
    cli: str = declare_setting("approvals.cli_mode", "HERMES_APPROVALS_CLI", one_of(*_OUTCOMES), "ask")
    """What happens to a dangerous command in a run from the command line."""
    api: str = declare_setting("approvals.api_mode", "HERMES_APPROVALS_API", one_of(*_OUTCOMES), "ask")
    """The same for runs submitted over the API."""
    cron: str = declare_setting("approvals.cron_mode", "HERMES_APPROVALS_CRON", one_of(*_OUTCOMES), "deny")
    """The same for scheduled runs, which nobody watches."""
    webhook: str = declare_setting("approvals.webhook_mode", "HERMES_APPROVALS_WEBHOOK", one_of(*_OUTCOMES), "deny")
    """The same for runs that a webhook started."""
    delegation: str = declare_setting(
        "approvals.delegation_mode", "HERMES_APPROVALS_DELEGATION", one_of(*_OUTCOMES), "deny"
    )
    """The same for child runs, whatever the source of their root."""
    deny: tuple[str, ...] = declare_setting(
        "approvals.deny",
        "HERMES_APPROVALS_DENY",
        list_of_names(r"[^\x00-\x1f]{1,500}", "command patterns with * and ?"),
        (),
    )
    """Commands that are never run, as patterns over the whole command."""
    allowed: tuple[str, ...] = declare_setting(
        "command_allowlist", "HERMES_COMMAND_ALLOWLIST", list_of_names(r"[^\x00-\x1f]{1,200}", "kinds of commands"), ()
    )
    """Kinds of dangerous commands that are not asked about, by the description a question shows."""
