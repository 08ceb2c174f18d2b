"""What every kind of workspace does, whatever its host is. One suite; a kind is a row of ``KINDS``."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.fake_kubernetes import fake_cluster
from support.openssh import openssh_missing, openssh_server
from support.patience import PATIENCE_S
from support.podman_service import PodmanService, podman_missing, podman_service
from support.workspace_hosts import ShellHost, ssh_server

from hermes_worker.workspaces.base import (
    CommandResult,
    Ending,
    HostLost,
    PathNotFound,
    Workspace,
    WorkspaceError,
)
from hermes_worker.workspaces.local import LocalWorkspace
from hermes_worker.workspaces.remote.docker import DockerHost
from hermes_worker.workspaces.remote.host import Host
from hermes_worker.workspaces.remote.kubernetes import KubernetesHost
from hermes_worker.workspaces.remote.ssh import SshHost
from hermes_worker.workspaces.remote.workspace import RemoteRules, RemoteWorkspace

MB = 1024**2


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind at work."""

    open: Callable[..., Workspace]
    """The workspace of the test, as another worker opens it; ``bytes_max``."""
    kill_host: Callable[[], None] | None = None
    """``None`` where the host is this machine."""
    start_host: Callable[[], None] | None = None


def _never() -> bool:
    return False


class Shell:
    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    def __call__(self, command: str, **given: Any) -> CommandResult:
        usual: dict[str, Any] = {
            "cwd": None,
            "env": {},
            "timeout_s": 30,
            "output_bytes_max": 50_000,
            "should_stop": _never,
        }
        return self.workspace.execute(command, **{**usual, **given})


def _local(stack: ExitStack, directory: Path) -> Kind:
    root = directory / "w"
    root.mkdir()
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(directory)}
    return Kind(open=lambda bytes_max=0: LocalWorkspace(str(root), base_env=env, bytes_max=bytes_max))


def _remote(host: Host, root: Path | str) -> Callable[..., Workspace]:
    return lambda bytes_max=0: RemoteWorkspace(host, str(root), RemoteRules(bytes_max=bytes_max))


def _shell(*shell: str) -> Callable[[ExitStack, Path], Kind]:
    def begin(stack: ExitStack, directory: Path) -> Kind:
        host = ShellHost(shell)

        def kill() -> None:
            for program in host.programs:
                program.kill()

        return Kind(open=_remote(host, directory / "run_1"), kill_host=kill, start_host=lambda: None)

    return begin


def _ssh(stack: ExitStack, directory: Path) -> Kind:
    server = stack.enter_context(ssh_server(directory / "ssh"))

    def fresh(bytes_max: int = 0) -> Workspace:
        host = SshHost(server.account())
        stack.callback(host.close)
        return RemoteWorkspace(host, str(directory / "run_1"), RemoteRules(bytes_max=bytes_max))

    return Kind(open=fresh, kill_host=server.die, start_host=server.start)


def _sshd(stack: ExitStack, directory: Path) -> Kind:
    if lacking := openssh_missing():
        pytest.skip(lacking)
    server = stack.enter_context(openssh_server(directory / "sshd"))

    def fresh(bytes_max: int = 0) -> Workspace:
        host = SshHost(server.account())
        stack.callback(host.close)
        return RemoteWorkspace(host, str(directory / "run_1"), RemoteRules(bytes_max=bytes_max))

    return Kind(open=fresh, kill_host=server.die, start_host=server.start)


@pytest.fixture(scope="module")
def podman() -> Iterator[PodmanService]:
    with podman_service() as service:
        yield service


def _docker(stack: ExitStack, service: PodmanService) -> Kind:
    root = f"/workspace/files/run_{secrets.token_hex(16)}"

    def fresh(bytes_max: int = 0) -> Workspace:
        return RemoteWorkspace(DockerHost(service.account(), root), root, RemoteRules(bytes_max=bytes_max))

    stack.callback(lambda: DockerHost(service.account(), root).remove())
    return Kind(open=fresh, kill_host=service.die, start_host=service.start)


def _kubernetes(stack: ExitStack, directory: Path) -> Kind:
    cluster, root = stack.enter_context(fake_cluster(directory / "cluster")), str(directory / "files" / "run_1")

    def fresh(bytes_max: int = 0) -> Workspace:
        host = KubernetesHost(cluster.account(storage_bytes=MB), root)
        return RemoteWorkspace(host, root, RemoteRules(bytes_max=bytes_max))

    return Kind(open=fresh, kill_host=cluster.die, start_host=cluster.start)


KINDS: Mapping[str, Callable[[ExitStack, Path], Kind]] = {
    "local": _local,
    "dash": _shell("/bin/sh"),
    "ssh": _ssh,
    "openssh": _sshd,
    "kubernetes": _kubernetes,
}
_OF_MACHINE = ("openssh", "docker")
"""Kinds whose hosts are programs of Debian."""


@pytest.fixture(
    params=[
        pytest.param(name, marks=[pytest.mark.machine] if name in _OF_MACHINE else []) for name in (*KINDS, "docker")
    ]
)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    with ExitStack() as stack:
        if request.param == "docker":
            if lacking := podman_missing():
                pytest.skip(lacking)
            yield _docker(stack, request.getfixturevalue("podman"))
            return
        yield KINDS[request.param](stack, tmp_path)


@pytest.fixture
def workspace(kind: Kind) -> Workspace:
    return kind.open()


@pytest.fixture
def shell(workspace: Workspace) -> Shell:
    return Shell(workspace)


def test_output_comes_as_it_was_written_with_the_exit_code(shell: Shell) -> None:
    result = shell("echo out; echo err >&2; exit 3")
    assert (result.output, result.exit_code, result.ending) == (b"out\nerr\n", 3, Ending.EXITED)


def test_output_is_streamed_while_the_command_runs(shell: Shell) -> None:
    heard: list[bytes] = []
    stop = threading.Event()

    def hear(data: bytes) -> None:
        heard.append(data)
        stop.set()

    result = shell("echo first; sleep 60", should_stop=stop.is_set, on_output=hear)
    assert (heard[0], result.ending) == (b"first\n", Ending.CANCELLED)


def test_long_output_keeps_its_beginning_and_its_end(shell: Shell) -> None:
    result = shell("echo BEGIN; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo END", output_bytes_max=4000)
    assert result.was_truncated and len(result.output) < 5000
    assert result.output.startswith(b"BEGIN") and result.output.endswith(b"END\n")


def test_the_next_call_on_another_worker_sees_files_folder_and_variables(kind: Kind) -> None:
    first = Shell(kind.open())("mkdir -p a/b; cd a/b; export WHO=\"it's 'me'\nhere\"; echo text > file; unset PATH_X")
    assert first.exported is not None and first.cwd is not None
    second = Shell(kind.open())('cat file; printf %s "$WHO"; pwd -P', cwd=first.cwd, env=first.exported)
    assert second.output.decode() == f"text\nit's 'me'\nhere{first.cwd}\n"


def test_only_what_the_session_exported_comes_back(shell: Shell) -> None:
    assert shell("export A=1; B=2; export C=; cd /").exported == {"A": "1", "C": ""}
    assert shell("unset A", env={"A": "1", "C": "x"}).exported == {"C": "x"}


_BEATS = "rm -f beat; sleep 0.3; test -e beat"
"""Succeeds when something still writes the file, every twentieth of a second."""


def test_a_time_out_ends_everything_that_was_started(shell: Shell) -> None:
    loop = "while :; do date > beat; sleep 0.05; done"
    result = shell(f"(trap '' TERM; {loop}) & setsid sh -c '{loop}' & sleep 60", timeout_s=0.6)
    assert (result.ending, result.exit_code) == (Ending.TIMED_OUT, 124)
    assert shell(_BEATS).exit_code == 1


def test_what_is_left_in_the_background_is_ended_and_said(shell: Shell) -> None:
    result = shell("sleep 60 & echo done")
    assert (result.output, result.exit_code, result.left_running) == (b"done\n", 0, True)


def test_standard_input_is_empty(shell: Shell) -> None:
    assert shell("cat; echo end").output == b"end\n"


def test_a_command_may_be_as_long_as_one_argument(shell: Shell) -> None:
    assert shell(f": {'x' * 120_000}; echo whole").output == b"whole\n"
    with pytest.raises(WorkspaceError, match="write it to a file"):
        shell("x" * 131_072)


def test_files_are_written_read_listed_and_removed_by_any_name(workspace: Workspace) -> None:
    data = bytes(range(256)) * 3
    for name in ("plain", "-rf", "sp ace", "quo'te\"s", "new\nline", "$(touch x)", "*", "ünï", "a/b/c"):
        workspace.write_bytes(name, data)
        assert workspace.read_bytes(name) == data, name
        assert workspace.read_bytes(name, limit=5) == data[:5], name
        assert workspace.entries(".") == (name.partition("/")[0] + "/" * ("/" in name),), name
        workspace.remove(name)
        with pytest.raises(PathNotFound):
            workspace.read_bytes(name)


def test_a_large_file_arrives_whole(workspace: Workspace) -> None:
    data = b"0123456789abcdef" * (3 * MB // 16)
    for text in (data, data, data[:-1]):
        workspace.write_bytes("large", text)
        assert workspace.read_bytes("large") == text


def test_replacing_a_file_keeps_its_permissions(workspace: Workspace, shell: Shell) -> None:
    shell("echo '#!/bin/sh' > run; chmod 750 run")
    workspace.write_bytes("run", b"new")
    assert shell("stat -c %a run; cat run").output == b"750\nnew"


_NOT_READ = {
    "gone": "does not exist",
    "folder": "is a directory",
    "../x": "outside",
    "/etc/passwd": "outside",
    "out/passwd": "outside",
    "pipe": "not a regular file",
    ".env": "credentials",
    "alias": "credentials",
    "": "empty",
    "a\0b": "NUL",
}


def test_what_cannot_be_read_is_refused_with_a_reason(workspace: Workspace, shell: Shell) -> None:
    shell("mkdir folder; ln -s /etc out; mkfifo pipe; echo S=1 > .env; ln -s .env alias")
    for path, message in _NOT_READ.items():
        with pytest.raises(WorkspaceError) as refused:
            workspace.read_bytes(path)
        assert message in str(refused.value), path


def test_nothing_is_written_outside_or_over_what_is_protected(workspace: Workspace, shell: Shell) -> None:
    shell("mkdir folder; ln -s /tmp out; echo S=1 > .env; ln -s .env alias; ln -s loop loop")
    written = []
    for path in ("out/x", "in/../../x", ".env", "folder", "alias", "loop"):
        with suppress(WorkspaceError):
            workspace.write_bytes(path, b"no")
            written.append(path)
    assert written == []
    assert shell("cat .env").output == b"S=1\n"


def test_a_link_inside_is_followed_and_stays(workspace: Workspace, shell: Shell) -> None:
    shell("mkdir real; echo old > real/file; ln -s real/file link; ln -s real dir")
    workspace.write_bytes("link", b"new")
    workspace.write_bytes("dir/other", b"more")
    assert shell("cat real/file real/other; test -L link && test -L dir").output == b"newmore"


def test_a_folder_is_told_from_a_file(workspace: Workspace, shell: Shell) -> None:
    shell("mkdir folder; touch file")
    workspace.require_folder("folder")
    for path in ("file", "gone"):
        with pytest.raises(WorkspaceError):
            workspace.require_folder(path)
    with pytest.raises(WorkspaceError):
        shell("echo", cwd="gone")


def test_a_workspace_holds_what_it_may_and_no_more(kind: Kind) -> None:
    full = kind.open(bytes_max=2 * MB)
    full.write_bytes("one", b"x" * MB)
    with pytest.raises(WorkspaceError, match="may hold"):
        full.write_bytes("two", b"x" * 3 * MB)


def test_a_host_that_dies_in_the_middle_of_a_command_leaves_its_outcome_unknown(kind: Kind) -> None:
    if kind.kill_host is None or kind.start_host is None:
        pytest.skip("the host of this kind is the machine of the test")
    shell = Shell(kind.open())
    heard = threading.Event()
    killer = threading.Thread(target=lambda: (heard.wait(20), kind.kill_host and kind.kill_host()))
    killer.start()
    with pytest.raises(HostLost):
        shell("echo once >> effects; echo begun; sleep 60", on_output=lambda _: heard.set())
    killer.join()
    kind.start_host()
    # What it did is there, once; and the workspace works on.
    assert Shell(kind.open())("cat effects").output == b"once\n"
    assert shell("cat effects").output == b"once\n"


def test_a_command_does_not_outlive_the_worker_that_waits_for_it(kind: Kind) -> None:
    class Killed(BaseException):
        pass

    def die(_: bytes) -> None:
        raise Killed

    with pytest.raises(Killed):
        Shell(kind.open())("echo begun; while :; do date > beat; sleep 0.05; done", on_output=die)
    other, deadline = Shell(kind.open()), time.monotonic() + PATIENCE_S
    while other(_BEATS).exit_code == 0:
        assert time.monotonic() < deadline
