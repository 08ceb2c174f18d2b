"""``hermes-worker gateway webhooks``: routes on which others may send events."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_worker.channels.targets import redact_target
from hermes_worker.cli.api_connection import open_api_client
from hermes_worker.cli.entry import EXIT_FAILED
from hermes_worker.cli.list_output import print_entries
from hermes_worker.cli.options import TEXT, of_tenant, reachable
from hermes_worker.cli.screen import flatten_text
from hermes_worker.core.errors import ConfigurationError, format_reason
from hermes_worker.core.json_values import parse_json
from hermes_worker.features.webhooks.backend import add_route, find_route, reach_routes
from hermes_worker.features.webhooks.rules.route import NO_AUTH, RATE_PER_MIN, Route, RouteError
from hermes_worker.features.webhooks.rules.template import PLACEHOLDER, list_missing_fields
from hermes_worker.net.http import HttpRequest, NoAnswer
from hermes_worker.net.urls import UnsafeUrl, UrlPolicy
from hermes_worker.net.wire import send

if TYPE_CHECKING:
    from hermes_worker.features.webhooks.schema import RouteObject


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def webhook() -> None:
    """Let others start runs: add, list, remove and try routes for their events."""


@webhook.command(
    epilog="Example: hermes-worker gateway webhooks add review --events pull_request "
    "--prompt 'Review {pull_request.html_url}' --deliver telegram:-1001"
)
@reachable
@of_tenant
@click.argument("name", type=TEXT)
@click.option("--prompt", type=TEXT, default="", help="What to do; {a.b} stands for a part of the payload.")
@click.option("--events", type=TEXT, default="", help="Types of events that count, with commas. Default: all.")
@click.option("--filter", "filters", type=TEXT, multiple=True, help="A condition on the payload, as JSON.")
@click.option(
    "--secret",
    type=TEXT,
    help=f"Signs the events; - reads it. Default: a new one. {NO_AUTH}: anything on this machine may send.",
)
@click.option("--deliver", type=TEXT, multiple=True, help="Where the answer goes: 'telegram:123', ...")
@click.option("--deliver-only", is_flag=True, help="Deliver the prompt itself; no agent runs.")
@click.option("--skill", "skills", type=TEXT, multiple=True, help="A skill to follow; the first there is is used.")
@click.option("--toolsets", type=TEXT, default="", help="Toolsets of the runs, with commas.")
@click.option("--model", type=TEXT, help="Model of the runs.")
@click.option("--rate", "rate_per_min", type=int, default=RATE_PER_MIN, show_default=True, help="Events a minute.")
@click.option("--description", type=TEXT, default="")
@click.option("--disabled", is_flag=True, help="Take no events for now.")
@click.option("--replace", is_flag=True, help="Replace the route of this name; its secret stays if none is given.")
def add(home: Path | None, name: str, replace: bool, secret: str | None, disabled: bool, **given: Any) -> None:
    """Keep a route, and say where to send events and how to sign them."""
    secret = sys.stdin.readline().strip() if secret == "-" else secret
    fields = {
        "name": name,
        "prompt": given["prompt"],
        "events": _split_list(given["events"]),
        "filters": [_parse_condition(text) for text in given["filters"]],
        "deliver": given["deliver"],
        "deliver_only": given["deliver_only"],
        "skills": given["skills"],
        "toolsets": _split_list(given["toolsets"]),
        "model": given["model"],
        "rate_per_min": given["rate_per_min"],
        "description": given["description"],
        "enabled": not disabled,
    }
    client, server = reach_routes(home)
    kept, drawn = add_route(client, fields, secret=secret, replaces=replace)
    click.echo(f"url     {server}{kept.path}")
    click.echo(f"secret  {drawn or '(as before)'}")


@webhook.command("list")
@reachable
@of_tenant
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_routes(home: Path | None, as_json: bool) -> None:
    """Every route, without its secret."""
    print_entries(
        open_api_client(home).webhook_routes(),
        ("ROUTE", "STATE", "EVENTS", "DELIVER", "PROMPT"),
        _format_route,
        document=_build_document if as_json else None,
        empty="no routes",
    )


def _build_document(route: RouteObject) -> dict[str, Any]:
    return {"name": route.name, **json.loads(route.definition), "created_at": route.created_at}


@webhook.command()
@reachable
@of_tenant
@click.argument("name", type=TEXT)
def remove(home: Path | None, name: str) -> None:
    """Forget a route; its runs stay."""
    open_api_client(home).remove_webhook_route(name)
    click.echo(f"{name} removed")


@webhook.command(epilog="The request looks like GitHub's, and is signed with a timestamp.")
@reachable
@of_tenant
@click.argument("name", type=TEXT)
@click.option("--payload", type=TEXT, default='{"test": true}', show_default=True, help="A JSON object.")
@click.option("--event", type=TEXT, default="test", show_default=True, help="The type of the event.")
@click.option("--url", type=TEXT, help="The server's address. Default: the one that runs here.")
@click.pass_context
def test(ctx: click.Context, home: Path | None, name: str, payload: str, event: str, url: str | None) -> None:
    """Send an event to a route of a running server, and show its answer."""
    client, server = reach_routes(home)
    view, signature = find_route(client, name), client.sign_webhook_event(name, payload)
    event_to = f"{(url or server).rstrip('/')}{signature.path}"
    headers = {
        "Content-Type": "application/json",
        "X-GitHub-Event": event,
        "X-GitHub-Delivery": str(uuid.uuid4()),
        # With a timestamp: a body that is signed without one is taken once a day.
        **signature.headers,
    }
    request = HttpRequest(method="POST", url=event_to, headers=headers, body=payload.encode())
    try:
        response = send(request, UrlPolicy(allows_private=True))
    except (NoAnswer, UnsafeUrl) as error:
        raise ConfigurationError(f"{event_to} cannot be asked: {format_reason(error)}; start it with 'up'") from None
    click.echo(f"{response.status} {flatten_text(response.body.decode('utf-8', 'replace'), 500)}")
    if missing := _list_missing_fields(view, payload):
        click.echo(f"note: the payload has no {', '.join(missing)}; the prompt shows such names unfilled", err=True)
    if response.status >= 400:
        ctx.exit(EXIT_FAILED)


def _list_missing_fields(view: RouteObject, payload: str) -> list[str]:
    """Fields that the route's prompt shows and the payload does not have."""
    document = parse_json(payload)
    prompt = _read_route(view).prompt
    return list_missing_fields(prompt, document) if isinstance(document, dict) else []


def _split_list(text: str) -> Sequence[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _parse_condition(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RouteError(f"A filter is a JSON object: {error}.") from None


def _read_route(view: RouteObject) -> Route:
    return Route.from_json(view.name, "", view.definition)


def _format_route(view: RouteObject) -> tuple[str, ...]:
    route = _read_route(view)
    deliver = ",".join(target if PLACEHOLDER.search(target) else redact_target(target) for target in route.deliver)
    return (
        view.name,
        view.state,
        flatten_text(",".join(route.events) or "(all)", 30),
        flatten_text(deliver or "-", 40),
        flatten_text(route.prompt or "(the payload)", 50),
    )
