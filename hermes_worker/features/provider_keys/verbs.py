"""``hermes-worker fleet providers keys``: manage the provider keys that tenants bring."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from hermes_worker.cli.api_connection import open_api_client
from hermes_worker.cli.layout import format_moment
from hermes_worker.cli.list_output import print_entries
from hermes_worker.cli.options import TEXT, get_chosen_tenant, of_tenant, reachable
from hermes_worker.features.provider_keys.rows import KEY_CHARS_MAX

if TYPE_CHECKING:
    from hermes_worker.features.provider_keys.schema import ProviderKeyObject


@click.group("keys", context_settings={"help_option_names": ["-h", "--help"]})
def keys() -> None:
    """Add, list and remove the provider keys of a tenant. Keys are encrypted, and never shown."""


@keys.command("add", epilog="Example: hermes-worker fleet providers keys add openai --tenant acme --file acme.key")
@reachable
@of_tenant
@click.argument("provider", type=TEXT)
@click.option(
    "--file",
    "source",
    type=click.File("rb"),
    default="-",
    help="The file that holds the key. Default: what comes in; at a terminal you are asked.",
)
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def add_key(home: Path | None, provider: str, source: BinaryIO, as_json: bool) -> None:
    """Have the tenant's runs be asked for with a key of its own at PROVIDER. From then on no key of the installation is
    used for it. Workers know within two seconds."""
    client = open_api_client(home, names_tenant=True)
    _show_keys([client.add_provider_key(get_chosen_tenant(), provider, _read_key(source))], as_json)


@keys.command("list")
@reachable
@of_tenant
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_keys(home: Path | None, as_json: bool) -> None:
    """The provider keys of a tenant, without the keys."""
    _show_keys(open_api_client(home, names_tenant=True).provider_keys(get_chosen_tenant()), as_json)


@keys.command("remove", epilog="Example: hermes-worker fleet providers keys remove pkey_0123456789ab --tenant acme")
@reachable
@of_tenant
@click.argument("key_id", type=TEXT)
def remove_key(home: Path | None, key_id: str) -> None:
    """Delete a provider key of a tenant. When it was the last, its runs are asked for with keys of the installation."""
    client, tenant = open_api_client(home, names_tenant=True), get_chosen_tenant()
    key = client.remove_provider_key(tenant, key_id)
    click.echo(f"{key_id} of {key.provider} removed")
    if not client.provider_keys(tenant):
        said = "its runs are asked for with HERMES_TENANT_KEYS, else with keys of the installation"
        click.echo(f"the tenant {key.tenant!r} has no provider key in rows now: {said}", err=True)


def _read_key(source: BinaryIO) -> str:
    """Read the key from standard input or a file, never from an argument: others on the machine could read that."""
    if source.name == "<stdin>" and sys.stdin.isatty():
        return str(click.prompt("key", hide_input=True)).strip()
    data: bytes = source.read(KEY_CHARS_MAX + 3)
    return data.decode("utf-8", "replace").strip()


def _show_keys(found: Sequence[ProviderKeyObject], as_json: bool) -> None:
    print_entries(
        found,
        ("KEY", "PROVIDER", "FINGERPRINT", "ADDED"),
        lambda key: (key.key_id, key.provider, key.fingerprint, format_moment(key.created_at)),
        document=(lambda key: key.model_dump(exclude={"object"})) if as_json else None,
        empty="no provider keys of its own",
        ids=(0,),
        whole=(0,),
    )
