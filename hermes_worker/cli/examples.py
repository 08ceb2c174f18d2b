"""``hermes-worker dev new``: a copy of an example application."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import click

import hermes_worker
from hermes_worker.cli.layout import format_count
from hermes_worker.cli.options import TEXT, suggest_word
from hermes_worker.cli.server import refuse_server_options
from hermes_worker.core.errors import ConfigurationError

_SHIPPED = ("*.md", "*.py", "*.sh", "*.yaml")
"""What an example is made of; not what one leaves where it was started."""


@click.command(
    "new", epilog="Example: hermes-worker dev new shop --example fastapi-shop   and go on as shop/README.md says"
)
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@refuse_server_options
@click.option("--example", type=TEXT, metavar="NAME", help="Which one; without it they are listed.")
def copy_example(directory: Path, example: str | None) -> int:
    """Copy an example application into DIRECTORY.

    Each runs without a key, with a scripted stand-in for the model, and with a key for real.
    """
    source = find_examples()
    names = sorted(
        path.parent.name for path in source.glob("*/README.md") if not path.with_name("pyproject.toml").exists()
    )
    if example not in names:
        said = f"there is no example {example[:80]!r}.{suggest_word(example, names)} There" if example else "there"
        raise click.UsageError(f"{said} are {', '.join(names)}: name one with --example")
    if directory.exists() and any(directory.iterdir()):
        raise ConfigurationError(f"{str(directory)!r} is not empty; name a directory that does not exist")
    copied = _copy_files(source / example, directory)
    click.echo(f"Copied {format_count(len(copied), 'file')}.\n\nNext: cd {directory}   then: less README.md")
    return 0


def find_examples() -> Path:
    """Find the examples of this installation, or of the checkout that it is. Raises ``ConfigurationError``."""
    package = Path(hermes_worker.__file__).parent
    for place in (package / "examples", package.parent / "examples"):
        if (place / "README.md").is_file():
            return place
    raise ConfigurationError("this installation has no examples; a checkout of the repository has them in examples/")


def _copy_files(source: Path, target: Path) -> Sequence[Path]:
    found = [path for pattern in _SHIPPED for path in sorted(source.rglob(pattern)) if "__pycache__" not in path.parts]
    for path in found:
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    return found
