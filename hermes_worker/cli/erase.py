"""``hermes-worker export`` and ``erase``: everything of a person, a session or a tenant, to hand out and to delete."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import redis

from hermes_worker.broker.queue import redis_client
from hermes_worker.cli.layout import moment, table
from hermes_worker.cli.options import TEXT, common, of_tenant, this_user
from hermes_worker.cli.records import Records, open_records
from hermes_worker.core.erasure import OUTSIDE, STAYS, ErasureReceipt, Person, read_receipts
from hermes_worker.core.errors import HermesError
from hermes_worker.store.retention.erasing import Erasure, Erasures, Foretold, RunsAtWork
from hermes_worker.store.retention.exporting import exported
from hermes_worker.stream.live import forget

_LOOK_EVERY_S = 0.2
_Command = TypeVar("_Command", bound=Callable[..., Any])


def of_person(command: _Command) -> _Command:
    """Whom it is about: each option may be given several times."""
    options = (
        click.option("--session", "sessions", type=TEXT, multiple=True, metavar="ID", help="The session of this id."),
        click.option(
            "--named",
            type=(TEXT, TEXT),
            multiple=True,
            metavar="SOURCE NAME",
            help="The session that a caller named so: webhook:chat 4711.",
        ),
        click.option(
            "--principal",
            "principals",
            type=TEXT,
            multiple=True,
            metavar="WHO",
            help="What somebody asked for, as runs record it: cli:alice.",
        ),
        click.option(
            "--holder", "holders", type=TEXT, multiple=True, metavar="NAME", help="A holder of keys, with the keys."
        ),
        click.option(
            "--target",
            "targets",
            type=TEXT,
            multiple=True,
            metavar="ADDRESS",
            help="What is delivered to an address, and jobs that do: telegram:4711.",
        ),
        click.option("--everybody", is_flag=True, help="Everything of the tenant, which is disabled first."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command(epilog="Files of workspaces are not in it; docs/erasure.md says where they are and what each line is.")
@common
@of_tenant
@of_person
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="A new file, for you alone. Default: here."
)
def export(home: Path | None, out: Path | None, **whom: Any) -> None:
    """Write everything of a person, a session or a tenant as JSON lines."""
    records = open_records(home)
    rows = exported(records.database, records.tenant, _person(**whom))
    if out is None:
        for row in rows:
            click.echo(row.to_json())
        return
    counted: Counter[str] = Counter()
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise click.UsageError(f"{str(out)!r} is there already; name a new file") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        for row in rows:
            file.write(row.to_json() + "\n")
            counted[row.kind] += 1
    click.echo(table(sorted((kind, str(count)) for kind, count in counted.items()), ("KIND", "WRITTEN"), whole=(0, 1)))


@click.command(
    epilog="Without --yes it only says what would be erased. It can be interrupted and goes on with --resume."
)
@common
@of_tenant
@of_person
@click.option("--yes", is_flag=True, help="Really do it. What is erased cannot be brought back.")
@click.option("--stop", "stops", is_flag=True, help="Stop runs that have not ended, and wait for their end.")
@click.option("--wait-s", type=click.FloatRange(0), default=60.0, show_default=True, help="How long to wait for that.")
@click.option("--shared", is_flag=True, help="Also sessions in which others asked for something.")
@click.option("--resume", is_flag=True, help="Go on with every erasure of the tenant that was interrupted.")
@click.option("--replay", type=click.Path(path_type=Path, exists=True), help="Erase again what these receipts erased.")
@click.option("--receipt", "receipt_id", type=TEXT, metavar="ID", help="Show a receipt, and whether it was changed.")
@click.option("--receipts", is_flag=True, help="Show all receipts, one JSON object per line: keep them elsewhere.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object per line.")
def erase(
    home: Path | None,
    yes: bool,
    stops: bool,
    wait_s: float,
    shared: bool,
    resume: bool,
    replay: Path | None,
    receipt_id: str | None,
    receipts: bool,
    as_json: bool,
    **whom: Any,
) -> int:
    """Delete everything of a person, a session or a tenant, and leave a receipt."""
    records = open_records(home)
    every = Erasures(records.database)
    if receipt_id is not None or receipts:
        for receipt in [every.receipt(receipt_id)] if receipt_id is not None else every.receipts():
            click.echo(json.dumps(receipt.to_document()))
        return 0
    at_it = _Eraser(records, every, wait_s if stops else None)
    if resume:
        return _told([at_it.finish(erasure) for erasure in every.unfinished(records.tenant)], as_json)
    if replay is not None:
        read = read_receipts(replay.read_text(encoding="utf-8").splitlines())
        return _told([at_it.again(receipt) for receipt in read], as_json)
    person = _person(**whom)
    foretold = every.foretell(records.tenant, person)
    if not yes:
        return _foretell(foretold, as_json)
    if foretold.open_runs and not stops:
        raise RunsAtWork(
            f"{len(foretold.open_runs)} runs have not ended, {foretold.open_runs[0]} among them; add --stop"
        )
    begun = every.begin(records.tenant, person, by=this_user(), takes_shared=shared)
    return _told([at_it.finish(begun)], as_json)


def _person(
    sessions: Sequence[str],
    named: Sequence[tuple[str, str]],
    principals: Sequence[str],
    holders: Sequence[str],
    targets: Sequence[str],
    everybody: bool,
) -> Person:
    person = Person(
        sessions=tuple(sessions),
        named=tuple(named),
        principals=tuple(principals),
        holders=tuple(holders),
        targets=tuple(targets),
        is_everybody=everybody,
    )
    person.require_somebody()
    return person


class _Eraser:
    """What a command does to one erasure after the other."""

    def __init__(self, records: Records, every: Erasures, stops_within_s: float | None) -> None:
        """``stops_within_s`` ``None`` stops nothing."""
        self._records = records
        self._every = every
        self._stops_within_s = stops_within_s

    def again(self, receipt: ErasureReceipt) -> ErasureReceipt:
        """Erase what a receipt tells of, whoever of them is in this database (again)."""
        found = self._every.again(receipt)
        person = Person(sessions=("none",)) if found == Person() else found  # nothing of them is there
        begun = self._every.begin(receipt.tenant, person, by=this_user(), takes_shared=True, replays=receipt.receipt_id)
        return self.finish(begun)

    def finish(self, erasure: Erasure) -> ErasureReceipt:
        """Raises ``RunsAtWork``, ``ErasureHeld``, ``NotYetErased``; what was done is done."""
        from hermes_worker.tasks.upkeep import remove_files

        if self._stops_within_s is not None:
            self._stop(erasure, self._stops_within_s)
        told: Counter[str] = Counter()
        for what in self._every.steps(erasure):
            told[what] += 1
            _show_progress(told)
        _clear_progress()
        removed = remove_files(self._records.settings.home, erasure.tenant, erasure.sessions, erasure.jobs)
        run_ids = self._every.run_ids(erasure)
        previews, not_reached = self._forget(run_ids)
        more = {**removed, **({"previews": previews} if previews else {})}
        return self._every.finish(erasure, more=more, not_reached=not_reached)

    def _stop(self, erasure: Erasure, within_s: float) -> None:
        stopped: set[str] = set()
        deadline = time.monotonic() + within_s
        while at_work := self._every.open_runs(erasure):
            for run_id in at_work:
                if run_id not in stopped:
                    told = self._records.runs.stop_tree(run_id, by=this_user())
                    self._records.tell_stopped(told.run_ids, told.hints)
                    stopped.update(told.run_ids)
            if time.monotonic() > deadline:
                raise RunsAtWork(
                    f"{len(at_work)} runs were told to stop and have not ended, {at_work[0]} among them; call "
                    "'hermes-worker erase --resume --stop' when a worker has ended them"
                )
            time.sleep(_LOOK_EVERY_S)

    def _forget(self, run_ids: Sequence[str]) -> tuple[int, list[str]]:
        """Previews in the broker; where it cannot be reached they go by themselves."""
        try:
            url = self._records.broker_url()
            if url is None:
                return 0, []
            client = redis_client(url)
            try:
                return forget(client, run_ids), []
            finally:
                client.close()
        except (HermesError, redis.RedisError, OSError):
            return 0, ["the broker did not answer: previews there go within ten minutes by themselves"]


def _foretell(foretold: Foretold, as_json: bool) -> int:
    selected = foretold.selected
    told = {
        "would_erase": dict(foretold.counts),
        "open_runs": list(foretold.open_runs),
        "shared": selected.shared,
        "held_by": list(foretold.held),
    }
    if as_json:
        click.echo(json.dumps(told))
        return 0
    rows = [(kind, str(count)) for kind, count in sorted(foretold.counts.items())]
    click.echo(table(rows, ("KIND", "WOULD BE ERASED"), whole=(0, 1)) if rows else "nothing is there of them")
    if foretold.open_runs:
        click.echo(f"{len(foretold.open_runs)} runs have not ended: --stop", err=True)
    if selected.shared:
        click.echo(f"others asked for {selected.shared} runs in the same sessions: --shared", err=True)
    if foretold.held:
        click.echo(f"held by {', '.join(map(str, foretold.held))}: 'hermes-worker retention holds'", err=True)
    click.echo("Nothing was erased. Export it if somebody may want it, then add --yes.", err=True)
    return 0


def _told(receipts: Sequence[ErasureReceipt], as_json: bool) -> int:
    for receipt in receipts:
        if as_json:
            click.echo(json.dumps(receipt.to_document()))
            continue
        rows = [(kind, str(count)) for kind, count in sorted(receipt.erased.items())]
        click.echo(table(rows, ("KIND", "ERASED"), whole=(0, 1)))
        for name, why in STAYS.items():
            click.echo(f"stays: {name}, {why}")
        for place in (*OUTSIDE, *receipt.not_reached):
            click.echo(f"not reached: {place}")
        click.echo(f"{receipt.receipt_id} at {moment(receipt.ended_at)}; keep the receipt outside of the backups")
    if not receipts and not as_json:
        click.echo("nothing to do", err=True)
    return 0


def _show_progress(told: Counter[str]) -> None:
    if sys.stderr.isatty():
        said = ", ".join(f"{count:,} {what}" for what, count in told.items())
        click.echo(f"\r\x1b[K{said[:100]}", err=True, nl=False)


def _clear_progress() -> None:
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", err=True, nl=False)
