"""Control groups: limits of a whole command where a part of the tree is delegated.

Making, entering, killing, sweeping and removing is tested on the kernel's own hierarchy: a process in a cgroup
namespace of its own, which is how a container gets a part of the tree. That part has no controllers, so what the files
for memory and processes are given is tested against a directory that imitates a group.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hermes_worker.workspaces.base import EXCESS_SENTENCES, ExceededLimit
from hermes_worker.workspaces.sandbox import groups as groups_module
from hermes_worker.workspaces.sandbox.base import Confinement
from hermes_worker.workspaces.sandbox.groups import CommandGroup, group_settings
from hermes_worker.workspaces.sandbox.kept_command import hold_command
from hermes_worker.workspaces.sandbox.policy import CommandLimits

_ENTER = """
mount -t cgroup2 none "$1" && mkdir "$1/$2" && echo $$ > "$1/$2/cgroup.procs" || exit 77
shift 2; eval "$1"; shift
exec unshare --cgroup --mount sh -c 'mount -t cgroup2 none "$1" && shift && exec "$@"' sh "$@"
"""
_STRANGER = "(sleep 600 >/dev/null 2>&1 &)"
_CHILD = "sleep 600 >/dev/null 2>&1 &"
_LEAVE = """
mount -t cgroup2 none "$1" || exit 77
test -d "$1/$2" || exit 0
echo 1 > "$1/$2/cgroup.kill"
for i in $(seq 100); do find "$1/$2" -depth -type d -exec rmdir {} + 2>/dev/null && exit 0; sleep 0.05; done
exit 1
"""
_WORKER = """
import os, subprocess, sys, time
from pathlib import Path
from hermes_worker.workspaces import shell
from hermes_worker.workspaces.sandbox import groups as groups_module
from hermes_worker.workspaces.sandbox import kept_command as keeping
from hermes_worker.workspaces.sandbox.base import Confinement
from hermes_worker.workspaces.sandbox.groups import LEAF, CommandGroup, GroupMaker
from hermes_worker.workspaces.sandbox.helper import keeper
from hermes_worker.workspaces.sandbox.policy import CommandLimits

top = Path(sys.argv[1])
groups = keeping.groups = GroupMaker(sys.argv[2].split())

def own():
    return Path("/proc/self/cgroup").read_text().rpartition("0::")[2].strip()

def run(text, timeout_s=30):
    command = shell.RunningCommand(text=text, cwd="/", base_env={"PATH": "/usr/bin:/bin"}, env={}, timeout_s=timeout_s,
                            output_bytes_max=9999, confinement=Confinement(), limits=CommandLimits())
    return shell.run_command(command, should_stop=lambda: False)

def commands():
    return sorted(path.name for path in top.iterdir() if path.is_dir() and path.name != LEAF)

def member(path):
    process = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (path / "cgroup.procs").write_text(str(process.pid))
    return process
"""

Worker = Callable[..., str]


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    """Runs code as a worker to which a part of the tree was delegated; returns what it says."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("mounting a cgroup hierarchy needs root and unshare")
    name = f"hermes-test-{secrets.token_hex(4)}"
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()

    def run(code: str, *, controllers: str = "", company: str = ":") -> str:
        words = [
            str(outside),
            name,
            company,
            str(inside),
            sys.executable,
            "-c",
            _WORKER + code,
            str(inside),
            controllers,
        ]
        ran = subprocess.run(
            ["unshare", "--mount", "sh", "-c", _ENTER, "sh", *words],
            capture_output=True,
            text=True,
            timeout=60,
        )
        if ran.returncode == 77 or "unshare" in ran.stderr:
            pytest.skip(f"no cgroup v2 hierarchy can be mounted here: {ran.stderr.strip()}")
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    yield run
    subprocess.run(["unshare", "--mount", "sh", "-c", _LEAVE, "sh", str(outside), name], check=True, timeout=30)


def test_each_command_has_a_group_of_its_own_and_the_worker_a_leaf(worker: Worker) -> None:
    said = worker(
        "print(groups.find_parent().base == top, own() == f'/{LEAF}')\n"
        "first, second = (run('cat /proc/self/cgroup').output.decode().rpartition('0::/')[2] for _ in range(2))\n"
        "print(first.startswith(f'hermes-command-'), first.count(f'-{os.getpid()}-'), first != second, commands())"
    )
    assert said == "True True\nTrue 1 True []\n"


def test_a_tree_without_the_controllers_is_left_as_it_is(worker: Worker) -> None:
    said = worker(
        "print(groups.find_parent().base, own(), commands()); print(groups.find_parent().reason)", controllers="rdma9"
    )
    assert said.startswith("None / []\n")
    assert "has no controller rdma9" in said


def test_a_group_with_processes_of_others_is_not_touched(worker: Worker) -> None:
    said = worker(
        "print(groups.find_parent().base, own(), (top / LEAF).exists(), commands(), run('echo ran').output)\n"
        "print(groups.find_parent().reason)",
        company=_STRANGER,
    )
    assert said.startswith("None / False [] b'ran\\n'\n")
    assert "holds other processes" in said


def test_children_of_the_worker_move_along(worker: Worker) -> None:
    said = worker(
        "print(groups.find_parent().base == top, len(groups_module._list_members(top / LEAF)))", company=_CHILD
    )
    assert said == "True 2\n"


def test_removing_a_group_ends_what_is_in_it(worker: Worker) -> None:
    said = worker(
        "groups.find_parent()\n"
        "for end in (lambda group: group.remove(), lambda group: keeper._kill_group(os.fsencode(group.path))):\n"
        "    group = groups.make_group('tag', CommandLimits()); process = member(group.path)\n"
        "    end(group); print(process.wait(10)); group.remove()\n"
        "print(commands())"
    )
    assert said == "-9\n-9\n[]\n"


def test_daemons_and_commands_that_run_out_of_time_leave_no_group(worker: Worker) -> None:
    said = worker(
        "print(run('setsid sleep 600 & (setsid sleep 600 &) ; true').left_running, commands())\n"
        "print(run('trap \"\" TERM; setsid sleep 600 & sleep 600', timeout_s=0.3).ending, commands())"
    )
    assert said == "True []\ntimed_out []\n"


def test_what_a_dead_worker_left_is_swept_and_nothing_else(worker: Worker) -> None:
    said = worker(
        "gone = subprocess.Popen(['true']); gone.wait()\n"
        "here, began = groups_module._pid_namespace(), groups_module._start_ticks(os.getpid())\n"
        "names = {'dead': f'{here}-{gone.pid}-1-a', 'reused': f'{here}-{os.getpid()}-1-b',\n"
        "         'alive': f'{here}-{os.getpid()}-{began}-c', 'elsewhere': f'1-{gone.pid}-1-d'}\n"
        "for name in names.values(): (top / f'hermes-command-{name}').mkdir()\n"
        "(top / 'somebody').mkdir()\n"
        "process = member(top / f'hermes-command-{names[\"dead\"]}')\n"
        "print(groups.find_parent().base == top, process.wait(10))\n"
        "left = commands()\n"
        "print(sorted(n for n, full in names.items() if f'hermes-command-{full}' in left), 'somebody' in left)"
    )
    assert said == "True -9\n['alive', 'elsewhere'] True\n"


def test_processes_started_later_share_the_leaf(worker: Worker) -> None:
    said = worker(
        "groups.find_parent()\n"
        "code = 'from hermes_worker.workspaces.sandbox.groups import GroupMaker as Maker; '\n"
        "code += 'print(Maker(()).find_parent().base)'\n"
        "print(subprocess.run([sys.executable, '-c', code], capture_output=True, text=True).stdout == f'{top}\\n')"
    )
    assert said == "True\n"


# --- an imitated group: a plain directory with files of the names that the kernel gives them ---


def _imitated(folder: Path, *names: str) -> CommandGroup:
    for name in names:
        (folder / name).touch()
    return CommandGroup(folder)


def test_controllers_are_handed_on_once(tmp_path: Path) -> None:
    control = tmp_path / "cgroup.subtree_control"
    control.write_text("cpu memory\n")
    groups_module._enable_controllers(tmp_path, ["memory", "pids"])
    assert control.read_text().startswith("+pids")
    control.write_text("memory pids\n")
    groups_module._enable_controllers(tmp_path, ["memory", "pids"])
    assert control.read_text() == "memory pids\n"


def test_a_group_limits_memory_and_processes_of_the_sum(tmp_path: Path) -> None:
    group = _imitated(tmp_path, "memory.max", "memory.swap.max", "memory.oom.group", "pids.max")
    group.limit(group_settings(CommandLimits(memory_bytes=64_000_000, processes=99)))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "memory.max": "64000000",
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "99",
    }
    assert group.bounds_processes


def test_a_kernel_without_swap_limits_all_the_same_but_not_one_without_memory(tmp_path: Path) -> None:
    _imitated(tmp_path, "memory.max", "pids.max").limit(group_settings(CommandLimits()))
    (tmp_path / "memory.max").unlink()
    with pytest.raises(FileNotFoundError):
        CommandGroup(tmp_path).limit(group_settings(CommandLimits()))


def test_no_limit_writes_no_file() -> None:
    assert not group_settings(CommandLimits(memory_bytes=None, processes=None))


def test_a_command_that_ran_out_of_memory_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = _imitated(tmp_path, "memory.events")
    monkeypatch.setattr(group, "remove", lambda: None)
    monkeypatch.setattr(groups_module.groups, "make_group", lambda _tag, _limits: group)
    for killed, excess in ((0, None), (3, ExceededLimit.MEMORY)):
        (tmp_path / "memory.events").write_text(f"low 0\nhigh 0\nmax 12\noom 1\noom_kill {killed}\n")
        with hold_command(Confinement(), tag="tag", limits=CommandLimits()) as command:
            assert command.read_verdict().excess is excess
    assert set(EXCESS_SENTENCES) == set(ExceededLimit)
