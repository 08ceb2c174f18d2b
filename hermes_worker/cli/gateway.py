"""``hermes-worker gateway`` and ``start gateway``: who may speak to the agent on platforms, and who listens there."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_worker.cli.api_connection import open_api_client
from hermes_worker.cli.layout import format_moment, render_table
from hermes_worker.cli.options import TEXT, OneOf, common, load_settings, reachable
from hermes_worker.cli.role_process import run_role
from hermes_worker.cli.screen import flatten_text
from hermes_worker.core.chat_accounts import format_account
from hermes_worker.core.chat_commands import ChatRole
from hermes_worker.core.errors import ConfigurationError

if TYPE_CHECKING:
    from hermes_worker.schemas.gateway import GatewayAccountObject
    from hermes_worker.settings import Settings


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def gateway() -> None:
    """Say who may write to the agent, what may start it, and see what was sent.

    'hermes-worker start gateway' listens to the accounts; 'hermes-worker up' starts it.
    """


@click.command(epilog="Any number of gateways may run: each account is listened to by one of them at a time.")
@common
@click.option("--name", type=TEXT, help="Name among the gateways. Default: host and process number.")
@click.option(
    "--alive-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Touched every second, for a liveness probe that looks at its age.",
)
def listen(home: Path | None, name: str | None, alive_file: Path | None) -> int:
    """Run one process that listens to people on platforms.

    It listens to every account whose credentials are set, where HERMES_GATEWAY is true. It runs no agents: workers do.
    """
    from hermes_worker.gateway.listening import GatewayListener, list_listened_accounts
    from hermes_worker.metrics.serving import build_connection_gauges, serve_metrics
    from hermes_worker.settings.role_secrets import ProcessRole
    from hermes_worker.wiring import open_client

    def build_listener(settings: Settings, known_as: str, stack: ExitStack) -> GatewayListener:
        if not settings.gateway.is_enabled:
            raise ConfigurationError("people who write to accounts are not listened to: set HERMES_GATEWAY=true")
        accounts = list_listened_accounts(settings)
        client = open_client(settings)
        stack.callback(client.close)
        serve_metrics(settings, ProcessRole.GATEWAY.value, build_connection_gauges(client.database))
        return GatewayListener(client, accounts, name=known_as, alive_file=alive_file)

    return run_role(home, ProcessRole.GATEWAY, name, build_listener, alive_file)


@gateway.command()
@reachable
def status(home: Path | None) -> None:
    """Show which accounts are listened to, by whom, and what was wrong with the last look."""
    shown = [_format_account(found) for found in open_api_client(home).gateway_accounts()]
    if not shown:
        click.echo("No account was listened to yet: set its credentials and start the gateway (docs/gateway.md).")
        return
    click.echo(render_table(shown, ("ACCOUNT", "MODE", "HELD BY", "LAST LOOK", "PEOPLE", "ERROR")))


@gateway.command()
@common
def accounts(home: Path | None) -> None:
    """Show which accounts the settings have, how each is listened to, and whose its chats are."""
    from hermes_worker.channels.receivers import list_accounts

    settings = load_settings(home)
    rules = settings.gateway.rules
    found = list_accounts(settings.variables, settings.gateway.accounts)
    if not found:
        click.echo("The credentials of no account are set (docs/gateway.md).")
        return
    shown = []
    for one in found:
        given = [rule for rule in rules.rules if rule.startswith(f"{one.account}/")]
        shown.append(
            (one.account, one.mode.value, rules.find_owner_of_account(one.account).tenant, ", ".join(given) or "-")
        )
    click.echo(render_table(shown, ("ACCOUNT", "MODE", "TENANT", "RULES")))


@gateway.command(epilog="Example: hermes-worker gateway commands telegram --chat -100123")
@common
@click.argument("account", type=TEXT, default="")
@click.option(
    "--chat", type=TEXT, default="", help="The chat, by its id. Default: all chats without rules of their own."
)
def commands(home: Path | None, account: str, chat: str) -> None:
    """Show who may use which command in chats of ACCOUNT, or everywhere else."""
    from hermes_worker.core.chat_commands import ChatCommand, CommandAccess

    if chat and not account:
        raise click.UsageError("--chat needs ACCOUNT")
    access = CommandAccess(load_settings(home).gateway.commands)
    called = parse_account(account) if account else ""
    shown = []
    for command in ChatCommand:
        least = access.find_least_role(called, chat, command)
        persons = [
            f"{name}={'yes' if may else 'no'}" for name, may in access.find_person_rules(called, command).items()
        ]
        shown.append((f"/{command.value}", "nobody" if least is None else least.value, ", ".join(persons) or "-"))
    click.echo(render_table(shown, ("COMMAND", "LEAST ROLE", "PERSONS")))


@gateway.command(epilog="Example: hermes-worker gateway test telegram:ops")
@common
@click.argument("account", type=TEXT)
def test(home: Path | None, account: str) -> None:
    """Ask a platform whose the credentials of ACCOUNT are. Whoever listens is not disturbed."""
    from hermes_worker.channels.errors import DeliveryError
    from hermes_worker.channels.receivers import list_accounts
    from hermes_worker.gateway.identity import identify_account

    settings = load_settings(home)
    called = parse_account(account)
    every = list_accounts(settings.variables, settings.gateway.accounts)
    found = next((one for one in every if one.account == called), None)
    if found is None:
        raise click.ClickException(
            f"the credentials of {called} are not set; 'hermes-worker gateway accounts' lists them"
        )
    who = identify_account(found)
    if isinstance(who, DeliveryError):
        raise click.ClickException(f"{called}: {flatten_text(who.message, 200)}")
    said = "its credentials are set; it cannot be asked" if who is None else f"it is {flatten_text(who, 120)}"
    click.echo(f"{called} ({found.mode.value}): {said}")


@gateway.command()
@reachable
@click.argument("account", type=TEXT, required=False)
def people(home: Path | None, account: str | None) -> None:
    """Show who was let in and who has a code that is still good, on ACCOUNT or everywhere."""
    called = None if account is None else parse_account(account)
    shown = [
        row
        for found in open_api_client(home).gateway_accounts()
        if called is None or found.account == called
        for row in _list_people(found)
    ]
    if not shown:
        click.echo("Nobody was let in with a code, and nobody has one.")
        return
    click.echo(render_table(shown, ("ACCOUNT", "TENANT", "PERSON", "ROLE", "SINCE, OR CODE UNTIL")))


@gateway.command("clear-pending")
@reachable
@click.argument("account", type=TEXT)
def clear_pending(home: Path | None, account: str) -> None:
    """Take back all codes of ACCOUNT that nobody used."""
    gone = open_api_client(home).remove_gateway_codes(parse_account(account))
    click.echo(f"Codes that were taken back: {gone}.")


def parse_account(text: str) -> str:
    """Parse the name of an account: a platform alone names its default account."""
    return text if ":" in text else format_account(text)


def _format_account(found: GatewayAccountObject) -> tuple[str, ...]:
    holder, error = found.holder or "nobody", found.error or "-"
    known = "codes locked" if found.codes_locked_until is not None else str(len(found.people))
    looked_at = format_moment(found.looked_at)
    return (found.account, found.mode, flatten_text(holder, 60), looked_at, known, flatten_text(error, 120))


def _list_people(found: GatewayAccountObject) -> list[tuple[str, ...]]:
    """List the people of an account by tenant, in the order in which they came."""
    asking = [(one.tenant, one.expires_at, one.person, "asks") for one in found.asking]
    let_in = [(one.tenant, one.paired_at, one.person, one.role.value) for one in found.people]
    return [
        (found.account, tenant, flatten_text(person, 60), role, format_moment(since))
        for tenant, since, person, role in sorted(asking + let_in, key=lambda each: each[:2])
    ]


@gateway.command(epilog="Example: hermes-worker gateway pair telegram K7QF2MXA")
@reachable
@click.argument("account", type=TEXT)
@click.argument("code", type=TEXT)
@click.option(
    "--role",
    type=OneOf([role.value for role in ChatRole]),
    default="owner",
    show_default=True,
    help="What they may do.",
)
def pair(home: Path | None, account: str, code: str, role: str) -> None:
    """Let in the person who was given this code on ACCOUNT: a platform, or platform:name.

    After five wrong ones every code is refused for an hour."""
    person = open_api_client(home).pair_person(parse_account(account), code, role=role)
    click.echo(f"{person} may speak to the agent on {account} now.")


@gateway.command()
@reachable
@click.argument("account", type=TEXT)
@click.argument("person", type=TEXT)
def revoke(home: Path | None, account: str, person: str) -> None:
    """Let somebody who was paired speak no more, or refuse somebody who has a code."""
    open_api_client(home).remove_chat_person(parse_account(account), person)
    click.echo(f"{person} may not speak to the agent on {account} any more.")
