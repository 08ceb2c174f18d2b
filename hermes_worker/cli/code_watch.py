"""``up --reload``: look whether the operator's own tools and plugins changed, and start everything anew then."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import click

from hermes_worker.plugins import get_plugins_dir
from hermes_worker.settings import Settings
from hermes_worker.settings.loading import receive_handover
from hermes_worker.settings.role_secrets import is_secret
from hermes_worker.settings.secret_transfer import SECRETS_FD, open_sealed

_LOOK_EVERY_S = 0.5
_WORDS_MAX = 500


def list_code_places(settings: Settings) -> list[Path]:
    """List the folders and files with the code of the operator's modules and plugins. Raises ``click.UsageError`` where
    there are none."""
    tops = dict.fromkeys(name.partition(".")[0] for name in settings.extensions.modules)
    found = [_find_code(name) for name in tops]
    if (plugins := get_plugins_dir(settings.home)).is_dir():
        found.append(plugins)
    if not found:
        raise click.UsageError("--reload has nothing to watch: name your modules in HERMES_TOOLS")
    return found


def _find_code(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise click.UsageError(f"--reload cannot find the module {name!r} of HERMES_TOOLS")
    folders = list(spec.submodule_search_locations or ())
    return Path(folders[0] if folders else str(spec.origin))


def run_reloading(places: Sequence[Path], modules: Sequence[str]) -> int:
    """Run this command without ``--reload`` in a process of its own, and anew whenever a Python file of ``places`` has
    changed and ``modules`` can still be imported. Ends when that process does, with its status."""
    command = [sys.executable, *(each for each in sys.orig_argv[1:] if each != "--reload")]
    while True:
        seen = _look(places)
        environ = {name: value for name, value in os.environ.items() if not is_secret(name, value)}
        with open_sealed(receive_handover().to_bytes()) as secrets:
            child = subprocess.Popen(command, env={**environ, SECRETS_FD: str(secrets)}, pass_fds=[secrets])
        # Ctrl-C reaches the child without us: a terminal tells the whole group.
        signal.signal(signal.SIGINT, lambda number, frame: None)
        signal.signal(signal.SIGTERM, partial(_pass_on, child))
        while child.poll() is None and not _may_start_anew(found := _look(places), seen, modules):
            seen = found
            time.sleep(_LOOK_EVERY_S)
        if child.poll() is not None:
            return child.returncode
        child.terminate()
        child.wait()


def _pass_on(child: subprocess.Popen[bytes], number: int, frame: object) -> None:
    child.send_signal(number)


def _may_start_anew(found: Mapping[Path, int], seen: Mapping[Path, int], modules: Sequence[str]) -> bool:
    """Whether files changed and can be used; says which, and what is wrong with them."""
    if found == seen:
        return False
    changed = ", ".join(sorted({path.name for path, _ in found.items() ^ seen.items()}))
    why = _explain_failure(modules)
    click.echo(
        f"{changed} changed and cannot be used: {why}" if why else f"{changed} changed; starting anew ...", err=True
    )
    return not why


def _look(places: Sequence[Path]) -> Mapping[Path, int]:
    found: dict[Path, int] = {}
    for place in places:
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            with suppress(OSError):  # it is being replaced; the next look finds it
                found[path] = path.stat().st_mtime_ns
    return found


def _explain_failure(modules: Sequence[str]) -> str:
    """Import the modules in a process of their own; empty when that works. What is wrong with a plugin is found by the
    start."""
    script = f"import importlib\nfor name in {list(modules)!r}: importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    words = done.stderr.strip().splitlines() or ["it ended without a word"]
    return words[-1][:_WORDS_MAX] if done.returncode else ""
