from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest

from hermes_worker.workspaces.base import CommandResult, Ending, WorkspaceError
from hermes_worker.workspaces.environment import filter_environment
from hermes_worker.workspaces.local import LocalWorkspace
from hermes_worker.workspaces.shell import sort_parents_first


def _never() -> bool:
    return False


class Shell:
    """Runs commands in the workspace under test with the parts that do not matter filled in."""

    def __init__(self, workspace: LocalWorkspace) -> None:
        self.workspace = workspace

    def __call__(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 20,
        output_bytes_max: int = 50_000,
        should_stop: Callable[[], bool] = _never,
    ) -> CommandResult:
        return self.workspace.execute(
            command,
            cwd=cwd,
            env=env or {},
            timeout_s=timeout_s,
            output_bytes_max=output_bytes_max,
            should_stop=should_stop,
        )


@pytest.fixture
def shell(workspace: LocalWorkspace) -> Shell:
    return Shell(workspace)


def _pid_in(file: Path) -> int:
    """The process id that a command writes into ``file``, once it is there."""
    while not (file.exists() and file.read_text().endswith("\n")):
        time.sleep(0.005)
    return int(file.read_text())


def _is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_output_and_exit_code_are_returned(shell: Shell) -> None:
    result = shell("echo out; echo err >&2; exit 3")
    assert (result.output, result.exit_code, result.ending) == (b"out\nerr\n", 3, Ending.EXITED)
    assert not result.was_truncated


def test_a_command_starts_in_the_given_folder_and_reports_where_it_ended(shell: Shell, root: Path) -> None:
    (root / "a/b").mkdir(parents=True)
    result = shell("pwd; cd b", cwd="a")
    assert result.output.decode() == f"{root}/a\n"
    assert result.cwd == f"{root}/a/b"


@pytest.mark.parametrize(
    "command",
    [
        "cd sub; exit 1",
        "cd sub && false",
        "set -e; cd sub; false; cd ..",
        "set -u; cd sub",
        "set -o posix; cd sub",
        "cd sub; trap 'echo bye' EXIT",
        "cd sub\nif",
        "cd sub; PWD=/spoofed",
        "pwd() { echo /spoofed; }; cd sub",
        "cd sub; echo /spoofed",
        "cd sub; export PATH=/nowhere",
        "set -x; cd sub",
    ],
)
def test_the_folder_is_known_however_the_command_ends(shell: Shell, root: Path, command: str) -> None:
    (root / "sub").mkdir()
    assert shell(command).cwd == f"{root}/sub"


def test_a_folder_with_a_newline_in_its_name_is_reported_whole(shell: Shell, root: Path) -> None:
    (root / "a\nb").mkdir()
    assert shell("cd a*").cwd == f"{root}/a\nb"


def test_a_shell_that_was_replaced_or_killed_reports_no_folder(shell: Shell) -> None:
    assert shell("exec true").cwd is None
    killed = shell("kill -KILL $$")
    assert (killed.cwd, killed.exported, killed.exit_code) == (None, None, 137)


def test_our_own_lines_do_not_show_in_a_traced_command(shell: Shell) -> None:
    assert b"hermes" not in shell("set -xv; true; false").output
    assert shell("nosuchcommand").output == b"bash: line 1: nosuchcommand: command not found\n"


def test_a_command_sees_no_arguments(shell: Shell) -> None:
    assert shell('echo "[$*] $# $0"').output == b"[] 0 bash\n"


def test_exported_variables_come_back_and_others_do_not(shell: Shell) -> None:
    result = shell("export A='1 2'; export B=$'x\\ny'; C=3; cd /; export LANG=C")
    assert result.exported == {"A": "1 2", "B": "x\ny", "LANG": "C"}


def test_exported_variables_of_the_session_are_given_and_kept_until_they_are_unset(shell: Shell) -> None:
    result = shell('echo "$A$B"; unset B', env={"A": "1", "B": "2"})
    assert result.output == b"12\n"
    assert result.exported == {"A": "1"}


def test_variables_that_would_steer_the_next_shell_are_not_kept(shell: Shell) -> None:
    assert shell("export BASH_ENV=/x SHELLOPTS BASHOPTS; f() { :; }; export -f f").exported == {}


def test_a_command_gets_the_allowed_part_of_the_environment_only(tmp_path: Path) -> None:
    worker_env = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/nowhere",
        "LC_ALL": "C",
        "OPENAI_API_KEY": "sk-secret",
        "HERMES_DATABASE_URL": "postgresql://secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "LD_PRELOAD": "/x.so",
        "BUILD_ID": "7",
    }
    workspace = LocalWorkspace(str(tmp_path), base_env=worker_env, env_passthrough=["BUILD_ID", "HERMES_DATABASE_URL"])
    names = {line.partition("=")[0] for line in Shell(workspace)("/usr/bin/env").output.decode().splitlines()}
    assert names == {
        "PATH",
        "HOME",
        "LC_ALL",
        "BUILD_ID",
        "PWD",
        "SHLVL",
        "_",
        "HERMES_COMMAND_ID",
        "HERMES_INSIDE_COMMAND",
    }


def test_a_path_is_always_there() -> None:
    assert "/usr/bin" in filter_environment({})["PATH"]


def test_standard_input_is_empty(shell: Shell) -> None:
    assert shell("cat; echo done").output == b"done\n"


def test_output_is_kept_in_bounded_memory(shell: Shell) -> None:
    result = shell("head -c 20000000 /dev/zero | tr '\\0' x; echo; echo END", output_bytes_max=1000)
    assert result.was_truncated
    assert result.output.startswith(b"x" * 400 + b"\n")
    assert result.output.endswith(b"x\nEND\n")
    assert len(result.output) < 1100


def test_a_time_out_ends_the_command_with_124(shell: Shell) -> None:
    started = time.monotonic()
    result = shell("echo before; cd /; sleep 1000; echo after", timeout_s=1)
    assert (result.exit_code, result.ending) == (124, Ending.TIMED_OUT)
    # bash may still say that its child was terminated.
    assert result.output.startswith(b"before\n")
    assert time.monotonic() - started < 60  # and not 1,000


def test_a_command_that_exits_with_124_by_itself_did_not_time_out(shell: Shell) -> None:
    result = shell("exit 124")
    assert (result.exit_code, result.ending) == (124, Ending.EXITED)


def test_a_command_that_never_stops_writing_still_times_out(shell: Shell) -> None:
    result = shell("yes", timeout_s=0.3, output_bytes_max=1000)
    assert (result.exit_code, result.was_truncated) == (124, True)


def test_a_cancelled_command_ends_at_once_with_130(shell: Shell, root: Path) -> None:
    stop = threading.Event()
    stopped_at = []

    def stop_once_running() -> None:
        _pid_in(root / "pid")
        stopped_at.append(time.monotonic())
        stop.set()

    stopper = threading.Thread(target=stop_once_running)
    stopper.start()
    result = shell("echo $$ > pid; sleep 1000", should_stop=stop.is_set)
    assert time.monotonic() - stopped_at[0] < 30  # and not 1,000
    assert (result.exit_code, result.ending) == (130, Ending.CANCELLED)
    stopper.join()


def test_a_shell_is_told_to_end_before_its_child_whatever_their_numbers() -> None:
    """A shell whose child ends first goes on to its next line before its own signal comes."""
    assert list({8, 7}) == [8, 7], "a set has the child first"
    assert sort_parents_first({8, 7}, {8: 7, 7: 1}) == [7, 8]
    assert sort_parents_first({3, 9, 16, 8}, {3: 16, 16: 9, 8: 9, 9: 1}) == [9, 8, 16, 3]
    assert sort_parents_first({1, 2}, {1: 2, 2: 1}) == [1, 2], "of a look in which numbers were used again"


def test_a_command_that_ignores_the_term_signal_is_killed(shell: Shell, root: Path) -> None:
    started = time.monotonic()
    result = shell("trap '' TERM; echo $$ > pid; while :; do sleep 0.05; done", timeout_s=1)
    assert 3 < time.monotonic() - started < 60  # its time, and then that between the two signals
    assert result.exit_code == 124
    assert not _is_running(_pid_in(root / "pid"))


@pytest.mark.parametrize(
    "escape",
    [
        "sleep 1000 & echo $! > pid; wait",
        "setsid sleep 1000 & echo $! > pid; wait",
        "setsid bash -c 'echo $$ > pid; exec sleep 1000' & sleep 1000",
        "(setsid bash -c '(echo $BASHPID > pid; exec sleep 1000) &' &); sleep 1000",
        "env -i /usr/bin/setsid /bin/bash -c 'echo $$ > pid; exec sleep 1000' & sleep 1000",
        "set -m; sleep 1000 & echo $! > pid; wait",
        "bash -c 'trap \"\" TERM; echo $$ > pid; while :; do sleep 0.05; done' & wait",
    ],
    ids=["background", "session", "session-script", "orphan", "empty-environment", "job-control", "stubborn"],
)
def test_nothing_of_a_cancelled_command_is_left(shell: Shell, root: Path, escape: str) -> None:
    file = root / "pid"
    shell(escape, should_stop=lambda: file.exists() and file.read_text().endswith("\n"))
    assert not _is_running(_pid_in(file))


@pytest.mark.parametrize(
    "command", ["sleep 1000 &", "sleep 1000 >/dev/null 2>&1 &", "(sleep 1000; echo late) & disown;"]
)
def test_a_command_does_not_wait_for_what_it_left_in_the_background(shell: Shell, root: Path, command: str) -> None:
    started = time.monotonic()
    result = shell(f"{command} echo $! > pid; echo started")
    assert time.monotonic() - started < 60  # and not 1,000
    assert (result.output, result.exit_code, result.left_running) == (b"started\n", 0, True)
    assert not _is_running(_pid_in(root / "pid"))


def test_what_finishes_shortly_after_the_shell_is_waited_for(shell: Shell) -> None:
    result = shell("echo data > >(sleep 0.1; tr a-z A-Z)")
    assert (result.output, result.left_running) == (b"DATA\n", False)


def test_a_command_that_closes_its_output_is_still_waited_for(shell: Shell, root: Path) -> None:
    shell("exec >&- 2>&-; sleep 0.2; touch done")
    assert (root / "done").exists()


def test_an_exception_in_the_caller_leaves_nothing_running(shell: Shell, root: Path) -> None:
    def interrupt() -> bool:
        _pid_in(root / "pid")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shell("echo $$ > pid; sleep 1000", should_stop=interrupt)
    assert not _is_running(_pid_in(root / "pid"))


@pytest.mark.parametrize(
    ("command", "message"), [("a\0b", "NUL"), ("echo \ud800", "not valid text"), ("x" * 200_000, "write_file")]
)
def test_a_command_that_cannot_be_passed_on_is_refused(shell: Shell, command: str, message: str) -> None:
    with pytest.raises(WorkspaceError, match=message):
        shell(command)


def test_a_folder_that_is_gone_is_refused(shell: Shell) -> None:
    with pytest.raises(WorkspaceError, match="'missing' does not exist"):
        shell("true", cwd="missing")


def test_an_environment_that_cannot_be_passed_on_is_refused(shell: Shell) -> None:
    with pytest.raises(WorkspaceError, match="could not be started"):
        shell("true", env={"A": "x\0y"})


def test_commands_of_many_threads_do_not_disturb_each_other(shell: Shell) -> None:
    results: dict[int, bytes] = {}

    def work(number: int) -> None:
        for _ in range(5):
            results[number] = shell(f"echo {number}; sleep 0.01").output

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: f"{number}\n".encode() for number in range(8)}


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_no_descriptor_is_left_open(shell: Shell) -> None:
    shell("true")
    before = _descriptors()
    shell("true")
    shell("sleep 1000", timeout_s=0.05)
    with pytest.raises(WorkspaceError):
        shell("true", env={"A": "x\0y"})
    assert _descriptors() == before
