"""``hermes-worker data encryption``: keys that encrypt texts in the database."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from contextlib import closing
from pathlib import Path

import click

from hermes_worker.cli.entry import EXIT_FAILED
from hermes_worker.cli.layout import render_table
from hermes_worker.cli.options import common, load_client_settings
from hermes_worker.cli.progress import clear_progress, show_progress
from hermes_worker.store.build import build_database, build_sealer
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.sealing import CLEAR
from hermes_worker.store.revisions import require_current
from hermes_worker.store.text_keys import (
    UNUSED_S,
    TextKeyStatus,
    count_left,
    list_key_statuses,
    list_key_uses,
    reencrypt_texts,
    retire_keys,
    rewrite_file,
)
from hermes_worker.wiring import open_database

_PREFIX = "hwt_"
_RANDOM_BYTES = 32
_PASSES_MAX = 20


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def encryption() -> None:
    """Make keys that encrypt texts in the database, and change them (docs/encryption.md)."""


@encryption.command(epilog="Put it into a file that only the product reads, which HERMES_ENCRYPTION_KEYS_FILE names.")
def new_key() -> None:
    """Print a new random key."""
    click.echo(f"{_PREFIX}{secrets.token_urlsafe(_RANDOM_BYTES)}")


@encryption.command()
@common
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def status(home: Path | None, as_json: bool) -> None:
    """Show which keys are here, which are needed, and how many rows are not stored by the current one."""
    settings = load_client_settings(home)
    # It opens when a key is missing, too.
    with closing(build_database(settings, sealer=build_sealer(settings))) as database:
        require_current(database)
        current = database.sealer.keys.first
        keys = list_key_statuses(database)
        others = count_left(database, current)
    if as_json:
        found = [_build_facts(key) for key in keys]
        click.echo(json.dumps({"keys": found, "left": sum(others.values()), "left_by_table": others}))
        return
    rows = [(key.key_id, _describe_role(key), "yes" if key.is_needed else "no") for key in keys]
    click.echo(render_table(rows, ("KEY", "DOES", "NEEDED"), whole=(0,)))
    click.echo(f"{sum(others.values())} rows are stored otherwise than by {_describe_key(current)}")


@encryption.command(
    name="reseal",
    epilog="Workers go on meanwhile. Ctrl-C at any time, and begin again. Exit code 1: some rows could not be "
    "decrypted; they stay as they are.",
)
@common
def reseal_texts(home: Path | None) -> int:
    """Encrypt every text with the current key, or decrypt all if the first key is the word 'clear'."""
    with closing(open_database(load_client_settings(home))) as database:
        return _reseal(database)


def _reseal(database: Database) -> int:
    changed: Counter[str] = Counter()
    broken: set[str] = set()
    for _ in range(_PASSES_MAX):
        for batch in reencrypt_texts(database):
            changed[batch.table] += batch.changed
            broken.update(batch.tampered)
            show_progress(f"{changed.total():,} rows")
        current = database.sealer.keys.first
        rest = count_left(database, current)
        if sum(rest.values()) <= len(broken):
            break
    if changed.total():
        rewrite_file(database)
    clear_progress()
    click.echo(
        f"{changed.total()} rows changed, {sum(rest.values())} left; all others are stored by {_describe_key(current)}"
    )
    for sentence in sorted(broken):
        click.echo(f"not changed: {sentence}", err=True)
    gone = retire_keys(database) - {CLEAR}
    if gone:
        click.echo(f"no longer needed, take it out of the keys: {', '.join(sorted(gone))}")
    waiting = [use for use in list_key_uses(database) if use.key_id not in (current, CLEAR)]
    for use in waiting:
        again_s = max(0, round(UNUSED_S - use.unused_s))
        why = (
            f"a process may have used it {round(use.unused_s)} s ago; run this again in {again_s} s"
            if again_s
            else ("rows are left; run this again")
        )
        click.echo(f"keep the key {use.key_id}: {why}")
    return EXIT_FAILED if broken else 0


def _build_facts(key: TextKeyStatus) -> dict[str, object]:
    return {
        "key": key.key_id,
        "is_current": key.is_current,
        "is_here": key.is_here,
        "is_needed": key.is_needed,
    }


def _describe_role(key: TextKeyStatus) -> str:
    if key.is_current:
        return "is used for new texts"
    if not key.is_key:
        return "is not encrypted"
    return "decrypts" if key.is_here else "is not here"


def _describe_key(key: str) -> str:
    return "no key, in clear" if key == CLEAR else f"the key {key}"
