"""``hermes-worker init``: set up a model that answers, a target for answers, and a first job."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from hermes_worker.channels.adapters import find_secret_variables, list_missing_variables
from hermes_worker.channels.build import build_dispatcher
from hermes_worker.channels.exchange import Part, Receipt
from hermes_worker.channels.targets import normalize_deliver, parse_targets, resolve_targets
from hermes_worker.cli.init_files import (
    ChosenModel,
    ClusterPlan,
    WrittenFile,
    build_compose_file,
    build_overlay,
    find_base,
    set_model,
)
from hermes_worker.cli.init_gateway import FleetAccount, build_account, list_missing, list_secret_variables
from hermes_worker.cli.layout import format_moment
from hermes_worker.cli.mcp_clients import MCP_CLIENTS, describe_mcp_client
from hermes_worker.cli.models import find_model_name
from hermes_worker.cli.options import TEXT, OneOf, common, format_home_option, load_client_settings, suggest_word
from hermes_worker.cli.screen import flatten_text
from hermes_worker.cli.server import read_key
from hermes_worker.core.errors import ConfigurationError, HermesError
from hermes_worker.core.messages import ModelRequest, build_user_body, dump_canonical_json
from hermes_worker.local.paths import find_running_stack, prepare_home
from hermes_worker.models.build import build_provider
from hermes_worker.models.catalog import find_provider, list_provider_rows
from hermes_worker.settings import Settings, load_settings
from hermes_worker.settings.config_editing import set_value
from hermes_worker.settings.dotenv import write_secret
from hermes_worker.settings.presets import PRESETS
from hermes_worker.settings.server_key import describe_key_place
from hermes_worker.system.plainfiles import replace_text

_KEY_VARIABLE = "HERMES_API_KEY"
_SCRIPTED = "scripted"
_REPLY_TOKENS = 512
"""Most tokens of the reply, with room for a model that thinks first."""
_path = click.Path(dir_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True, kw_only=True)
class InitMode:
    """How ``init`` proceeds."""

    asks: bool
    """Whether a person is there to be asked."""
    tries: bool
    replaces: bool
    """Whether different values are replaced without a question."""


@click.command(
    epilog="Example: hermes-worker init --yes --provider openai --model gpt-5 --model-key-file key   or, to be asked: "
    "hermes-worker init"
)
@common
@click.option("--provider", type=TEXT, help="Who serves the model: a name of docs/providers.md, or custom.")
@click.option("--base-url", type=TEXT, help="Address of the API, where the provider has none of its own.")
@click.option("--model", type=TEXT, help="Model of runs that name none, as the provider calls it.")
@click.option(
    "--model-key-file", type=_path, metavar="FILE", help="The key is in this file. Default: the one that is set."
)
@click.option("--preset", type=OneOf([*PRESETS]), help="Write defaults for a size of installation (docs/settings.md).")
@click.option("--job", type=TEXT, metavar="PROMPT", help="Keep a first job that is asked this.")
@click.option("--schedule", type=TEXT, help="When, as 'cron create' reads it. Default: every day at 9am.")
@click.option("--deliver", type=TEXT, metavar="TARGET", help="Where the job's answers go; a test message is sent now.")
@click.option(
    "--compose", type=click.Path(file_okay=False, path_type=Path), help="Write .env for this compose/ instead."
)
@click.option("--k8s", type=click.Path(file_okay=False, path_type=Path), help="Write an overlay into this directory.")
@click.option(
    "--listen",
    type=TEXT,
    multiple=True,
    metavar="PLATFORM",
    help="For --compose and --k8s: people write there; its credentials are those that are set. May be repeated.",
)
@click.option("--database-url-file", type=_path, metavar="FILE", help="For --k8s: the address of PostgreSQL.")
@click.option("--broker-url-file", type=_path, metavar="FILE", help="For --k8s: the address of Redis or Valkey.")
@click.option("--image", type=TEXT, help="For --k8s: the image, such as registry.example.com/hermes-worker:0.2.0.")
@click.option(
    "--mcp-client",
    type=OneOf([*MCP_CLIENTS]),
    help="Print what leads this client of MCP servers to the API here, and change nothing.",
)
@click.option("--yes", "is_quiet", is_flag=True, help="Ask nothing: take the flags, and what is usual for the rest.")
@click.option("--no-try", is_flag=True, help="Do not ask the model, and send no test message.")
@click.option("--force", is_flag=True, help="Replace what is set otherwise already.")
def init(home: Path | None, is_quiet: bool, no_try: bool, force: bool, **given: Any) -> int:
    """Choose a provider and a model, try them, and write config.yaml and .env.

    Asks what the flags do not say. Nothing is written before the model has answered, and nothing that is set otherwise
    is replaced without being told to.
    """
    if given["mcp_client"]:
        return _show_mcp_client(load_client_settings(home, needs_servers=False), given["mcp_client"])
    _require_sense(given)
    manner = InitMode(asks=not is_quiet and _is_terminal(), tries=not no_try, replaces=force)
    settings = load_client_settings(home, needs_servers=False)
    chosen = _choose_working_model(settings, given, manner)
    if given["compose"] is not None:
        return _init_compose(given["compose"], chosen, _choose_accounts(settings, given["listen"], manner), manner)
    if given["k8s"] is not None:
        return _init_kubernetes(given, chosen, _choose_accounts(settings, given["listen"], manner), manner)
    _write_home(settings, chosen, given["preset"], manner)
    settings = load_client_settings(settings.home, needs_servers=False)
    deliver, is_reached = _choose_target(settings, given["deliver"], manner)
    _create_first_job(settings, given, deliver, manner)
    if find_running_stack(settings.home) is not None:
        click.echo("The hermes-worker that runs on this home reads its settings when it is started again.", err=True)
    click.echo(f"\nNext: hermes-worker up{format_home_option(settings.home)}   then: hermes-worker chat")
    return 0 if is_reached else 1


def _show_mcp_client(settings: Settings, name: str) -> int:
    running = find_running_stack(settings.home)
    configured = f"{settings.server.scheme}://{settings.server.host}:{settings.server.port}"
    url = (running and running.api_url) or configured
    address = f"{url.rstrip('/')}/mcp"
    click.echo(describe_mcp_client(name, address, describe_key_place(settings)), err=True)
    click.echo(MCP_CLIENTS[name].build(address))
    return 0


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _require_sense(given: dict[str, Any]) -> None:
    """Raise ``UsageError`` for options that do not go together."""
    of_home = [name for name in ("job", "schedule", "deliver") if given[name]]
    if given["compose"] and given["k8s"]:
        raise click.UsageError("--compose and --k8s are two places; give one of them")
    if (given["compose"] or given["k8s"]) and of_home:
        raise click.UsageError(f"--{of_home[0]} is for a home of this machine; a fleet is given jobs once it runs")
    if given["listen"] and not (given["compose"] or given["k8s"]):
        raise click.UsageError("--listen is for --compose and --k8s; a home listens with HERMES_GATEWAY=true")
    of_k8s = [name for name in ("database_url_file", "broker_url_file", "image") if given[name]]
    if of_k8s and not given["k8s"]:
        raise click.UsageError(f"--{of_k8s[0].replace('_', '-')} is for --k8s")
    if given["schedule"] and not given["job"]:
        raise click.UsageError("--schedule is for --job")


# --- the model -------------------------------------------------------------------------------------------------------


def _choose_working_model(settings: Settings, given: dict[str, Any], manner: InitMode) -> ChosenModel:
    """Choose the provider and model that the flags or the answers name, once it has answered. Raises
    ``ConfigurationError``."""
    is_for_fleet = bool(given["compose"] or given["k8s"])
    while True:
        chosen = _choose_model(settings, given, manner, is_for_fleet=is_for_fleet)
        if is_for_fleet:
            _require_of_fleet(chosen)
        if not manner.tries or chosen.provider == _SCRIPTED:
            return chosen
        try:
            config = "" if is_for_fleet else _write_config(settings, chosen)[0]
            click.echo(_try_model_once(settings, chosen, config), err=True)
        except HermesError as error:
            wrong = f"the model did not answer: {flatten_text(str(error), 300)}"
            if not manner.asks:
                raise ConfigurationError(f"{wrong}; nothing was written (--no-try writes all the same)") from None
            click.echo(wrong, err=True)
            what = click.prompt(
                "Ask again, write it all the same, or leave", type=click.Choice(["ask", "write", "leave"])
            )
            if what == "write":
                return chosen
            if what == "leave":
                raise click.Abort from None
        else:
            return chosen


def _require_of_fleet(chosen: ChosenModel) -> None:
    """Raise ``ConfigurationError`` for a model that only a single machine can use."""
    if chosen.provider == _SCRIPTED:
        raise ConfigurationError("the scripted stand-in is for one machine; name a provider")
    row = find_provider(chosen.provider)
    if chosen.api_key is None and row is not None and row.needs_key:
        raise ConfigurationError(f"name with --model-key-file the file that holds the key of {chosen.provider!r}")


def _choose_model(settings: Settings, given: dict[str, Any], manner: InitMode, *, is_for_fleet: bool) -> ChosenModel:
    model = settings.model
    said: str | None = given["provider"]
    if said is None and manner.asks:
        click.echo(f"Providers: {', '.join(list_provider_rows())}, and {_SCRIPTED} for none.", err=True)
        said = click.prompt("Provider", default=model.provider or "openai", err=True)
    # Without a provider's key the stand-in is the default; it was not chosen.
    is_chosen = model.provider != _SCRIPTED or "model.provider" in settings.origins
    provider = said or (model.provider if is_chosen else None) or ("custom" if given["base_url"] else None)
    if provider is None:
        raise ConfigurationError("say with --provider who serves the model (docs/providers.md lists the names)")
    if provider == _SCRIPTED:
        return ChosenModel(provider=provider, name=None)
    row = find_provider(provider)
    if row is None:
        raise ConfigurationError(
            f"there is no provider {provider[:80]!r}.{suggest_word(provider, list_provider_rows())} A server of your "
            f"own is "
            "'custom' with --base-url"
        )
    is_same = model.provider == provider
    base_url = given["base_url"] or (model.base_url if is_same else None)
    if base_url is None and not row.base_url:
        if not manner.asks:
            raise ConfigurationError(f"say with --base-url where {row.name!r} is")
        base_url = click.prompt(f"Address of its API {row.address_form}".rstrip(), type=TEXT, err=True)
    key = _read_key(
        settings, given["model_key_file"], manner, is_needed=row.needs_key, is_same=is_same, writes_key=is_for_fleet
    )
    name = given["model"] or (model.name if is_same else None)
    if manner.asks and given["model"] is None:
        name = click.prompt("Model", default=name or row.default_model or None, type=TEXT, err=True)
    if not name and not row.default_model:
        raise ConfigurationError(f"say with --model which of the models of {row.name!r} is meant")
    return ChosenModel(provider=row.name, name=name or row.default_model, base_url=base_url, api_key=key)


def _read_key(
    settings: Settings, file: Path | None, manner: InitMode, *, is_needed: bool, is_same: bool, writes_key: bool
) -> str | None:
    """Read the key to be written; ``None`` where one is set already, or none is needed. Raises
    ``ConfigurationError``."""
    if file is not None:
        return read_key(file, "--model-key-file")
    found = settings.model.api_key.reveal() if settings.model.api_key is not None and is_same else None
    if manner.asks:
        usual = "Enter keeps the one that is set" if found else "" if is_needed else "Enter for none"
        typed: str = click.prompt(
            f"Key ({usual})" if usual else "Key",
            hide_input=True,
            default="" if usual else None,
            show_default=False,
            err=True,
        )
        if typed.strip():
            return typed.strip()
    return found if writes_key else None


def _try_model_once(settings: Settings, chosen: ChosenModel, config: str) -> str:
    """Ask a model one question, and write its answer as a line; ``config`` is the ``config.yaml`` that will be written.
    Raises ``HermesError``."""
    from hermes_worker.core.abort import AbortSignal

    said: dict[str, object] = {**chosen.settings, "model.api_key": chosen.api_key}
    tried = load_settings(home=settings.home, config_text=config, overrides=said)
    name = find_model_name(tried)
    if name is None:
        raise ConfigurationError("no model is named")
    system = dump_canonical_json({"role": "system", "content": "You are being set up. Answer in a word or two."})
    request = ModelRequest(
        model=name, messages=(system, build_user_body("Say that you are ready.")), output_tokens_max=_REPLY_TOKENS
    )
    began = time.monotonic()
    reply = build_provider(tried).ask(request, on_delta=lambda _: None, abort=AbortSignal())
    used = reply.usage.input + reply.usage.cache_read + reply.usage.cache_write + reply.usage.output
    took = time.monotonic() - began
    return f"{name} answers in {took:.1f} s with {used} tokens: {flatten_text(reply.text, 80) or '(no text)'}"


# --- the platforms that are listened to ------------------------------------------------------------------------------


def _choose_accounts(settings: Settings, named: Sequence[str], manner: InitMode) -> list[FleetAccount]:
    """Choose the accounts of the named platforms, with the credentials that are set or typed. Raises
    ``ConfigurationError``."""
    if not named and manner.asks:
        asked = "Where do people write (telegram, slack, email ..., several with commas, Enter for nowhere)"
        said = str(click.prompt(asked, default="", show_default=False, type=TEXT, err=True))
        named = [name.strip() for name in said.split(",") if name.strip()]
    values = dict(settings.environ)
    for platform in named:
        for name in list_missing(platform, values) if manner.asks else ():
            values[name] = str(click.prompt(name, hide_input=name in list_secret_variables(platform), err=True)).strip()
    return [build_account(platform, values) for platform in dict.fromkeys(named)]


def _tell_next_steps(accounts: Sequence[FleetAccount], run: str) -> None:
    """Print what is left to do before people can write."""
    for account in accounts:
        if not account.is_held:
            click.echo(f"Tell {account.platform} the address of the API: docs/gateway.md says which.")
    if accounts:
        click.echo(f"Who writes first gets a code: {run} hermes-worker gateway pair {accounts[0].platform} CODE")


# --- what is written -------------------------------------------------------------------------------------------------


def _write_config(settings: Settings, chosen: ChosenModel) -> tuple[str, list[str]]:
    """Write a home's ``config.yaml`` with a model, and list the values that change. Raises ``ConfigurationError``."""
    path = settings.home / "config.yaml"
    try:
        return set_model(path.read_text(encoding="utf-8") if path.exists() else "", chosen)
    except ValueError as error:
        raise ConfigurationError(f"{path} cannot be changed: {error}") from None


def _write_home(settings: Settings, chosen: ChosenModel, preset: str | None, manner: InitMode) -> None:
    path = settings.home / "config.yaml"
    after, otherwise = _write_config(settings, chosen)
    if preset is not None:
        after = set_value(after, "preset", preset)
    old = settings.model.api_key
    if chosen.api_key is not None and old is not None and old.reveal() != chosen.api_key:
        otherwise.append("another key is set")
    load_settings(home=settings.home, config_text=after)
    _confirm_replacement(otherwise, manner)
    prepare_home(settings.home)
    if chosen.api_key is not None:
        click.echo(f"wrote {write_secret(settings.home, _KEY_VARIABLE, chosen.api_key)}")
    _write([WrittenFile(path=path, text=after)])
    settings = load_settings(home=settings.home)
    if (settings.model.provider, settings.model.name) != (chosen.provider, chosen.name):
        click.echo("The environment names another model, and counts more than config.yaml.", err=True)


def _init_compose(directory: Path, chosen: ChosenModel, accounts: Sequence[FleetAccount], manner: InitMode) -> int:
    if not (directory / "compose.yaml").is_file():
        raise ConfigurationError(f"there is no compose.yaml in {str(directory)!r}; name the compose/ of a checkout")
    path = directory / ".env"
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    file, otherwise = build_compose_file(directory, before, chosen, accounts)
    _confirm_replacement(otherwise, manner)
    _write([file])
    click.echo(f"\nNext, in {directory}: docker compose up --detach")
    _tell_next_steps(accounts, "docker compose exec api")
    return 0


def _init_kubernetes(
    given: dict[str, Any], chosen: ChosenModel, accounts: Sequence[FleetAccount], manner: InitMode
) -> int:
    directory: Path = given["k8s"]
    find_base(directory)
    plan = ClusterPlan(
        directory=directory,
        database_url=_read_address(given["database_url_file"], "PostgreSQL", "--database-url-file", manner),
        broker_url=_read_address(given["broker_url_file"], "Redis or Valkey", "--broker-url-file", manner),
        image=given["image"],
        accounts=accounts,
    )
    files = build_overlay(plan, chosen)
    existing = [file for file in files if file.path.exists() and file.path.read_text(encoding="utf-8") != file.text]
    _confirm_replacement([f"{file.path} says something else" for file in existing], manner)
    _write(files)
    click.echo(
        f"\nNext: kubectl apply --kustomize {directory}\nThe database and the broker outside of the cluster need a "
        "network policy, and the volume a storage class: state-network.yaml and storage.yaml of overlays/production."
    )
    _tell_next_steps(accounts, "kubectl --namespace hermes exec deploy/hermes-api --")
    return 0


def _read_address(file: Path | None, whose: str, option: str, manner: InitMode) -> str:
    """Read the address of a server. Raises ``ConfigurationError``."""
    if file is not None:
        return read_key(file, option)
    if not manner.asks:
        raise ConfigurationError(f"name with {option} the file that holds the address of {whose}, password and all")
    return str(click.prompt(f"Address of {whose} (with its password, not shown)", hide_input=True, err=True)).strip()


def _confirm_replacement(otherwise: Sequence[str], manner: InitMode) -> None:
    """Ask before values are replaced. Raises ``ConfigurationError``, or ``Abort`` where the person refuses."""
    if not otherwise or manner.replaces:
        return
    told = "; ".join(otherwise)
    if not manner.asks:
        raise ConfigurationError(f"{told}; nothing was written (--force replaces it)")
    click.confirm(f"{told}. Replace it?", abort=True, err=True)


def _write(files: Sequence[WrittenFile]) -> None:
    """Write each file at once or not at all. Raises ``ConfigurationError``."""
    for file in files:
        try:
            replace_text(file.path, file.text, mode=0o600 if file.is_secret else None)
        except OSError as error:
            raise ConfigurationError(f"{str(file.path)!r} cannot be written: {error.strerror}") from None
        click.echo(f"wrote {file.path}")


# --- a target and a job ----------------------------------------------------------------------------------------------


def _choose_target(settings: Settings, said: str | None, manner: InitMode) -> tuple[str | None, bool]:
    """Choose where answers go, if anywhere, and try it with a test message. Returns the target, and whether the message
    arrived."""
    if said is None and manner.asks:
        asked = "Where are answers to go (telegram:CHAT, email:YOU@..., webhook:https://..., Enter for nowhere)"
        said = click.prompt(asked, default="", show_default=False, type=TEXT, err=True)
    if not said:
        return None, True
    dispatcher = build_dispatcher(settings)
    wanted = parse_targets(normalize_deliver(said))
    found = resolve_targets(wanted, origin=None, homes=dispatcher.find_homes(), lookup=dispatcher.find_chat)
    for missing in found.unresolved:
        raise ConfigurationError(f"nothing can be delivered to {missing.reference!r} ({missing.reason})")
    settings = _ask_for_credentials(settings, [target.platform for target in found.targets], manner)
    if not manner.tries:
        return said, True
    dispatcher = build_dispatcher(settings)
    is_reached = True
    for target in found.targets:
        part = Part(
            text="Hermes worker can reach you here.", title="Hermes worker", idempotency_key=secrets.token_hex(16)
        )
        outcome = dispatcher.send(part, target, at=datetime.now(UTC), file_name="init/test.md")
        if isinstance(outcome, Receipt):
            click.echo(f"a test message went to {target.platform}: look there")
        else:
            is_reached = False
            click.echo(f"the test message to {target.platform} failed: {flatten_text(outcome.message, 300)}", err=True)
    return said, is_reached


def _ask_for_credentials(settings: Settings, platforms: Sequence[str], manner: InitMode) -> Settings:
    """Ask for the credentials that are not set, and load the settings again. Raises ``ConfigurationError`` where no
    person can be asked."""
    missing = [name for platform in platforms for name in list_missing_variables(platform, settings.environ)]
    if missing and not manner.asks:
        raise ConfigurationError(f"delivery to {', '.join(platforms)} is not configured: set {', '.join(missing)}")
    for name in missing:
        value = str(click.prompt(name, hide_input=name in find_secret_variables(), err=True)).strip()
        write_secret(settings.home, name, value)
    return load_client_settings(settings.home, needs_servers=False) if missing else settings


def _create_first_job(settings: Settings, given: dict[str, Any], deliver: str | None, manner: InitMode) -> None:
    from hermes_worker.cli.api_connection import connect_home
    from hermes_worker.cli.job_backend import JobRows
    from hermes_worker.cli.stack import migrate_database
    from scheduler.definition import JobRequest
    from scheduler.jobtext import choose_default_name

    prompt, schedule = given["job"], given["schedule"]
    if prompt is None and manner.asks:
        prompt = click.prompt(
            "A first job: what is to be done (Enter for none)", default="", show_default=False, err=True
        )
        if prompt and schedule is None:
            schedule = click.prompt("When", default="every day at 9am", type=TEXT, err=True)
    if not prompt:
        return
    if settings.database.url is None:  # the database of a deployment is changed by 'data migrate' alone
        migrate_database(settings, lambda doing: click.echo(f"{doing} ...", err=True))
    jobs = JobRows(connect_home(settings))
    name = choose_default_name(prompt, (), None)
    if any(row.name == name for row in jobs.list_all()):
        click.echo(f"a job {flatten_text(name, 60)!r} is there already", err=True)
        return
    row = jobs.create(JobRequest(prompt=prompt, schedule=schedule or "every day at 9am", deliver=deliver))
    click.echo(f"job {row.job_id} {flatten_text(row.name, 60)}, next {format_moment(row.next_slot)}")
