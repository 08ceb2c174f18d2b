"""``hermes-worker config completion``: the script with which a shell completes commands, options and their values."""

from __future__ import annotations

import click

_PROGRAM, _VARIABLE = "hermes-worker", "_HERMES_WORKER_COMPLETE"


@click.command(
    epilog="Example: hermes-worker config completion bash >> ~/.bashrc   (zsh: ~/.zshrc, fish: a file in conf.d)"
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script with which a shell completes commands."""
    from click.shell_completion import get_completion_class

    from hermes_worker.cli.entry import commands

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"there is no completion for {shell}")
    # Not ``source()``: for bash that starts the bash of this machine, which need not be the one that reads the script.
    script = found(commands, {}, _PROGRAM, _VARIABLE)
    click.echo(script.source_template % script.source_vars())
