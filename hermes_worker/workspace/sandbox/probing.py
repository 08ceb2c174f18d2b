"""Whether a way to confine commands works on this machine: by confining one."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from hermes_worker.workspace.sandbox.base import Confinement
from hermes_worker.workspace.sandbox.keeping import Kept, kept

_PATIENCE_S = 10.0
_WORD = "confined"


def failure(confinement: Confinement) -> str | None:
    """Why no command can be started this way; ``None`` when one was."""
    entrance = os.open(os.devnull, os.O_WRONLY)
    tried = replace(confinement, door=_BlindDoor()) if confinement.needs_door else confinement
    try:
        with kept(tried, ["/bin/sh", "-c", f"echo {_WORD}"], entrance=entrance, tag="probe") as prepared:
            return _ran(prepared)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    finally:
        os.close(entrance)


class _BlindDoor:
    """Behind which nobody is."""

    @contextmanager
    def opened(self) -> Iterator[int]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            yield theirs.fileno()


def _ran(prepared: Kept) -> str | None:
    done = subprocess.run(
        prepared.argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={"PATH": "/usr/bin:/bin", **prepared.variables},
        cwd="/",
        pass_fds=prepared.descriptors,
        start_new_session=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    if done.returncode == 0 and done.stdout.decode().strip() == _WORD:
        return None
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return prepared.verdict().unconfined or (said[-1] if said else f"exit code {done.returncode}")
