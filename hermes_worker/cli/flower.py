"""``hermes-worker start flower``: Celery's web page of workers and tasks, for people with a password."""

from __future__ import annotations

from pathlib import Path

import click

from hermes_worker.cli.options import TEXT, common, load_settings
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.local.process import title_process


@click.command(epilog="Needs HERMES_FLOWER_PASSWORD and 'pip install hermes-worker[flower]'.")
@common
@click.option("--host", type=TEXT, help="Address to listen on. Default: 127.0.0.1.")
@click.option("--port", type=click.IntRange(0, 65_535), help="Default: 5555.")
def flower(home: Path | None, host: str | None, port: int | None) -> int:
    """Show workers and tasks on the web page of Flower.

    It asks for the user "hermes" and the password (HERMES_FLOWER_PASSWORD), and keeps what it has seen in the home
    directory.
    """
    from hermes_worker.local.paths import prepare_home
    from hermes_worker.observe import configure_logging

    settings = load_settings(home, {"flower.host": host, "flower.port": port})
    if settings.flower.password is None:
        raise ConfigurationError(
            "Flower shows what runs where, so it does not start without a password; set HERMES_FLOWER_PASSWORD"
        )
    try:
        from hermes_worker.cli.flower_server import serve
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"Flower is not installed (no module {error.name!r}): pip install 'hermes-worker[flower]'"
        ) from error
    title_process(f"flower {settings.flower.host}:{settings.flower.port}")
    configure_logging(settings.log, "flower", secrets=settings.secrets)
    prepare_home(settings.home)
    serve(settings, settings.flower.password)
    return 0
