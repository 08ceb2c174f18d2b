"""A worker's machine in miniature, for commands that try to get out of their sandbox."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from hermes_worker.workspaces.base import CommandResult
from hermes_worker.workspaces.local import LocalWorkspace
from hermes_worker.workspaces.sandbox.backends import Sandbox
from hermes_worker.workspaces.sandbox.base import Rung
from hermes_worker.workspaces.sandbox.bubblewrap import BubblewrapRung
from hermes_worker.workspaces.sandbox.landlock import LandlockRung
from hermes_worker.workspaces.sandbox.network import EgressRules, Network
from hermes_worker.workspaces.sandbox.policy import (
    CommandLimits,
    Profile,
    SandboxMode,
    SandboxPolicy,
    find_unseen,
    list_hidden_paths,
)
from hermes_worker.workspaces.sandbox.proxy import EgressProxy

SECRET = "tell-nobody-4711"
_OTHERS_TASKS_MAX = 800
"""What else its user may start while a command runs: two tests at once that start three hundred processes, and more."""
RUNGS: dict[str, Rung] = {"bubblewrap": BubblewrapRung(), "landlock": LandlockRung()}


def working(name: str) -> Rung:
    """The rung, or a skip that says why it cannot work on this machine."""
    rung = RUNGS[name]
    if reason := rung.find_unavailable():
        pytest.skip(f"{name}: {reason}")
    return rung


def processes_allowed(at_least: int) -> int:
    """A limit of processes under which a command can start so many of its own. Whoever is not root shares
    ``RLIMIT_NPROC`` with all that the same user runs elsewhere."""
    return at_least if os.geteuid() == 0 else at_least + _tasks_of_this_user() + _OTHERS_TASKS_MAX


def _tasks_of_this_user() -> int:
    """Processes and threads."""
    count = 0
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            count += process.num_threads() if process.uids().real == os.getuid() else 0
    return count


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A user's home with the product's in it, a workspace of ours and one of somebody else's."""

    home: Path
    product: Path
    root: Path
    workspace: LocalWorkspace
    rung: str | None
    """Its name."""

    def __call__(self, command: str, *, timeout_s: float = 60, output_bytes_max: int = 20_000) -> CommandResult:
        return self.workspace.execute(
            command,
            cwd=None,
            env={"SECRET_HOME": str(self.product), "WORKER": str(os.getpid())},
            timeout_s=timeout_s,
            output_bytes_max=output_bytes_max,
            should_stop=lambda: False,
        )


SECRETS = (
    ".hermes-worker/.env",
    ".hermes-worker/hermes-worker.db",
    ".hermes-worker/valkey/valkey.json",
    ".hermes-worker/workspaces/theirs/notes",
    ".ssh/id_ed25519",
    ".aws/credentials",
    ".netrc",
)


def furnish(folder: Path, secrets: Sequence[str] = SECRETS) -> tuple[Path, Path, Path]:
    """A user's home in ``folder`` with files that hold the secret; the product's home in it; and a workspace."""
    home = folder / "home"
    product = home / ".hermes-worker"
    root = product / "workspaces" / "ours"
    root.mkdir(parents=True)
    for name in secrets:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(f"{SECRET}\n")
    return home, product, root


def policy_of(home: Path, product: Path, profile: Profile) -> SandboxPolicy:
    """What a worker of this home asks for."""
    hidden = tuple(os.path.realpath(path) for path in list_hidden_paths(str(home), (str(product),)))
    readable = find_unseen((sys.prefix, sys.base_prefix), profile, hidden)
    return SandboxPolicy(profile=profile, readable=readable, hidden=hidden)


@contextmanager
def machine(
    folder: Path,
    rung: Rung | None,
    *,
    profile: Profile = Profile.WORKSTATION,
    network: Network = Network.OPEN,
    limits: CommandLimits | None = None,
    egress: EgressRules | None = None,
    proxy: EgressProxy | None = None,
) -> Iterator[Machine]:
    home, product, root = furnish(folder)
    policy = replace(
        policy_of(home, product, profile),
        network=network,
        limits=limits or CommandLimits(),
        egress=egress or EgressRules(),
    )
    sandbox = Sandbox(SandboxMode.AUTO, policy, [rung] if rung else [], proxy=proxy)
    environ = {"PATH": os.environ["PATH"], "HOME": str(home)}
    with ExitStack() as stack:
        listen(stack, str(product / "valkey" / "s"))
        listen(stack, f"\0hermes-{os.getpid()}")
        workspace = LocalWorkspace(str(root), base_env=environ, sandbox=sandbox)
        yield Machine(home=home, product=product, root=root, workspace=workspace, rung=rung.name if rung else None)


def listen(stack: ExitStack, address: str) -> socket.socket:
    """A socket of the product's, such as the broker's."""
    server = stack.enter_context(socket.socket(socket.AF_UNIX))
    here = Path.cwd()
    if not address.startswith("\0"):
        # A socket's whole path may have 107 characters.
        os.chdir(Path(address).parent)
        address = Path(address).name
    try:
        server.bind(address)
    finally:
        os.chdir(here)
    server.listen()
    return server
