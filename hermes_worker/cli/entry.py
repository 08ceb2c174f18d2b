"""Which commands there are, and what becomes of their errors.

Exit codes: 0 done; 1 the thing asked about failed (a run, a check); 2 it could not be tried: wrong usage, wrong
configuration, a server that does not answer; 130 interrupted.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from hermes_worker import __version__
from hermes_worker.cli.groups import CommandTree
from hermes_worker.cli.invocation import Invocation
from hermes_worker.cli.server import add_leading_server_options, find_advice, rephrase_for_home
from hermes_worker.core.errors import ConfigurationError, HermesError, UnavailableError, strip_error_numbers
from hermes_worker.extension import OWN_PACKAGES, explain_missing
from hermes_worker.settings import secret_transfer as handover
from hermes_worker.system import heap
from hermes_worker.workspaces.command_mark import MARK_VARIABLE, is_below_worker, is_marked

EXIT_FAILED = 1
EXIT_UNUSABLE = 2
EXIT_INTERRUPTED = 130


def _show_no_colour(ctx: click.Context, _: click.Parameter, given: str | None) -> None:
    if given:
        ctx.color = False


def _refuse_agents(_ctx: click.Context, _parameter: click.Parameter, mark: str | None) -> None:
    """Refuse to run in a command of an agent: only people, and programs that they started, answer approvals, make jobs
    and start runs. Raises ``ConfigurationError``."""
    if mark or is_marked() or is_below_worker():
        raise ConfigurationError(
            "this is a command of an agent, and agents do not call hermes-worker: approvals, jobs and runs are for the "
            "people outside. An operator who wants it otherwise sets terminal.allow_hermes_worker for the worker"
        )


@click.group(
    cls=CommandTree,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with 'hermes-worker run' in a directory of yours, or 'hermes-worker up' for a service.",
)
@click.option(
    "--no-color-variable",  # its variable is what is meant: it may say anything (https://no-color.org)
    envvar="NO_COLOR",
    hidden=True,
    expose_value=False,
    callback=_show_no_colour,
)
@click.option(
    "--mark-variable",
    envvar=MARK_VARIABLE,
    hidden=True,
    expose_value=False,
    callback=_refuse_agents,
)
@add_leading_server_options
@click.version_option(__version__, message="hermes-worker %(version)s")
def commands() -> None:
    """Hermes Agent's loop as a distributed task queue.

    Without configuration everything runs on this machine: SQLite and Valkey in ~/.hermes-worker, and, when no API key
    is found, a scripted stand-in for the model.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process. Without ``arguments`` they are the program's own, and it is hardened
    first, which starts it again when its environment holds secrets."""
    if arguments is None:
        handover.begin_program()
    heap.collect_rarely()
    invocation = Invocation()
    _write_what_can_be_written()
    try:
        status = commands.main(
            args=list(arguments) if arguments is not None else None,
            prog_name="hermes-worker",
            standalone_mode=False,
            obj=invocation,
        )
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        status = EXIT_INTERRUPTED
    except Exception as error:
        status = EXIT_INTERRUPTED if was_interrupted(error) else _explain(error, invocation)
    _finish(status if isinstance(status, int) else 0)


def was_interrupted(error: BaseException) -> bool:
    """Whether ``error`` is an interruption, or what became of one: Ctrl-C inside a library's own cleaning up makes that
    fail in turn, with an error of its own (SQLAlchemy's ``close`` asserts)."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, KeyboardInterrupt):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _write_what_can_be_written() -> None:
    """A terminal that cannot show an arrow shows a question mark; that is no reason to fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _explain(error: Exception, invocation: Invocation) -> int:
    """Say in one sentence what went wrong, if that can be said in one sentence; a defect keeps its traceback."""
    if isinstance(error, BrokenPipeError):
        return EXIT_INTERRUPTED
    sentence = explain_error(error)
    if sentence is None or invocation.is_debugging:
        raise error
    sentence = rephrase_for_home(error, invocation) or sentence
    advice = find_advice(error, invocation)
    click.echo(f"hermes-worker: {strip_error_numbers(sentence)}{f'; {advice}' if advice else ''}", err=True)
    return EXIT_UNUSABLE


def explain_error(error: Exception) -> str | None:
    """What to tell a user about an error that is not a defect of ours; ``None`` for a defect."""
    if isinstance(error, ConfigurationError | UnavailableError | HermesError):
        return str(error)
    if isinstance(error, ImportError) and _is_raised_by_us(error):
        return explain_missing(error)
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        return f"{_describe_place(error)}{error.strerror}; choose a directory that can be used with --home"
    if _is_corrupt_database(error):
        return (
            f"the database file is damaged or is not an SQLite database ({_read_first_line(error)}); "
            "restore it from a backup, or choose another directory with --home"
        )
    return None


def _is_raised_by_us(error: Exception) -> bool:
    """Whether the line that failed is one of this product: another may be an extension's, whose author is to see it."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = [str(frame.f_globals.get("__name__", "")) for frame in frames]
    named = [name for name in modules if not name.startswith("importlib.")]
    return bool(named) and named[-1].partition(".")[0] in OWN_PACKAGES


_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EIO})


def _describe_place(error: OSError) -> str:
    return f"{str(error.filename)!r}: " if error.filename else ""


def _is_corrupt_database(error: Exception) -> bool:
    original = getattr(error, "orig", None)
    return type(original).__module__ == "sqlite3" and type(original).__name__ == "DatabaseError"


def _read_first_line(error: Exception) -> str:
    return str(getattr(error, "orig", error)).strip().partition("\n")[0]


def _finish(status: int) -> NoReturn:
    """End with ``status``. A reader that went away (``| head``) is no error and leaves no complaint."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    # The interpreter would look through everything the libraries made, for half a second, before it ends.
    gc.freeze()
    sys.exit(status)
