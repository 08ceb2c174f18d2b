"""What each rung does to a command: what ends with it, what it may use, what it cannot get around; and ordinary work,
which must go on. Hostile commands are in ``test_sandbox_hostile``."""

from __future__ import annotations

import os
import platform
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import tty
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.confined import RUNGS, SECRET, Machine, machine, processes_allowed, working
from support.patience import PATIENCE_S
from support.samples import leave_to_the_night

from hermes_worker.workspaces.base import Ending, ExceededLimit, WorkspaceError
from hermes_worker.workspaces.local import LocalWorkspace
from hermes_worker.workspaces.sandbox import keeper_starter as starting
from hermes_worker.workspaces.sandbox.backends import Sandbox
from hermes_worker.workspaces.sandbox.bubblewrap import BubblewrapRung
from hermes_worker.workspaces.sandbox.helper import keeper, namespace
from hermes_worker.workspaces.sandbox.keeper_starter import starter
from hermes_worker.workspaces.sandbox.landlock import LandlockRung
from hermes_worker.workspaces.sandbox.network import Network
from hermes_worker.workspaces.sandbox.policy import (
    CommandLimits,
    Profile,
    SandboxMode,
    SandboxPolicy,
    find_unseen,
    list_hidden_paths,
)

BOTH = ("bubblewrap", "landlock")
PYTHON = shutil.which("python3") or sys.executable


def _python(code: str) -> str:
    return f"{PYTHON} -I -S - <<'END' 2>&1\n{code}\nEND\n"


@pytest.fixture(params=BOTH)
def confined(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path, working(request.param)) as found:
        yield found


@pytest.mark.parametrize("rung", BOTH)
def test_what_a_session_exported_reaches_no_program_outside_its_sandbox(rung: str, tmp_path: Path) -> None:
    """The loader of every program that is started with such a variable says that it cannot find the library. The keeper
    and bubblewrap, which are not confined, would load one that can be found."""
    with machine(tmp_path, working(rung)) as here:
        said = here.workspace.execute(
            'echo "$LD_PRELOAD $PLAIN"',
            cwd=None,
            env={"LD_PRELOAD": "/planted.so", "PLAIN": "ä\nb"},
            timeout_s=60,
            output_bytes_max=10_000,
            should_stop=lambda: False,
        ).output.decode()
    assert said.endswith("/planted.so ä\nb\n"), said
    assert said.count("/planted.so") == 1 + said.count("ld.so: object '/planted.so'")
    assert said.count("ld.so") <= 1, said


CALLS = {
    "command": "{hermes} runs list",
    "answer": "{hermes} runs approve run_0123 --choice always",
    "job": "{hermes} cron create 'every 1h' 'do more'",
    "module": "{python} -m hermes_worker runs list",
    "roles": "{python} -m hermes_worker.cli up",
    "home": "{hermes} runs list --home $SECRET_HOME",
    "unset": "env -u HERMES_INSIDE_COMMAND {hermes} runs list",
    "empty": "env -i {hermes} runs list",
    "empty-module": "env -i {python} -m hermes_worker doctor",
    "daemon": "env -i setsid --wait {hermes} runs list",
    "raised": "ulimit -x unlimited 2>/dev/null; env -i {hermes} runs list",
    "fooled": "{hermes} --mark-variable= runs list",
}


@pytest.mark.parametrize("rung", leave_to_the_night((*BOTH, "none"), but=1))
def test_our_own_command_refuses_to_run_inside_a_command(rung: str, tmp_path: Path) -> None:
    if Path(sys.prefix).is_relative_to(tempfile.gettempdir()):
        pytest.skip("the interpreter is below /tmp, of which a command has its own")
    hermes = str(Path(sys.executable).parent / "hermes-worker")
    answered = {}
    with machine(tmp_path, working(rung) if rung in BOTH else None) as here:
        for name, call in CALLS.items():
            if (rung, name) == ("none", "raised"):
                continue  # root can; a worker above is then the sign, see below
            result = here(call.format(hermes=hermes, python=sys.executable))
            said = result.output.decode()
            if result.exit_code != 2 or "agents do not call hermes-worker" not in said:
                answered[name] = said
        for_people = here(f"{hermes} --help")
    assert answered == {}
    assert b"Give an agent a task" in for_people.output


WORKER_ABOVE = """
import subprocess, sys
from hermes_worker.local.process import title_process
from hermes_worker.workspaces.command_mark import build_worker_title
title_process(build_worker_title("worker tools [8]", may_call_us=sys.argv[1] == "open"))
sys.exit(subprocess.run(["bash", "-c", f"env -i {sys.argv[2]} runs list; exit $?"]).returncode)
"""


@pytest.mark.parametrize(("door", "said"), [("shut", "agents do not call"), ("open", "nothing has run on")])
def test_a_worker_among_the_processes_above_is_a_sign_that_nobody_can_unset(
    tmp_path: Path, door: str, said: str
) -> None:
    hermes = f"HOME={tmp_path} {Path(sys.executable).parent / 'hermes-worker'}"
    ended = subprocess.run(
        [sys.executable, "-c", WORKER_ABOVE, door, hermes], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, said in ended.stderr) == (2, True), ended.stderr


def test_an_operator_may_let_commands_call_us(tmp_path: Path) -> None:
    sandbox = Sandbox(SandboxMode.OFF, SandboxPolicy(), may_call_us=True)
    workspace = LocalWorkspace(str(tmp_path), base_env={"PATH": os.environ["PATH"], "HOME": "/x"}, sandbox=sandbox)
    hermes = Path(sys.executable).parent / "hermes-worker"
    command = f"{hermes} runs list --home {tmp_path / 'empty'}; ulimit -x"
    said = workspace.execute(command, cwd=None, env={}, timeout_s=60, output_bytes_max=1000, should_stop=lambda: False)
    assert "nothing has run on" in said.output.decode()
    assert "unlimited" in said.output.decode()
    assert "HERMES_INSIDE_COMMAND" not in (said.exported or {})


SURVIVORS = {
    "session": "setsid sleep 600 & sleep 0.1",
    "renamed": "(exec -a innocent sleep 600) & disown",
    "empty-environment": "env -i setsid /bin/sleep 600 >/dev/null 2>&1 & sleep 0.1",
    "double-fork": "(setsid bash -c '(sleep 600 &) &' &) ; sleep 0.1",
    "stubborn": "setsid bash -c \"trap '' TERM HUP; while :; do sleep 0.1; done\" & sleep 0.1",
    "three-hundred": "for i in $(seq 300); do (setsid sleep 600 &); done",
}


def _alive(workspace: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(workspace) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("escape", SURVIVORS)
def test_nothing_outlives_its_command(confined: Machine, escape: str) -> None:
    result = confined(SURVIVORS[escape])
    assert (result.exit_code, result.left_running) == (0, True), result.output
    assert _alive(confined.root) == []


@pytest.mark.parametrize("escape", ["session", "empty-environment", "stubborn"])
def test_nothing_outlives_a_time_out(confined: Machine, escape: str) -> None:
    result = confined(f"{SURVIVORS[escape]}; sleep 600", timeout_s=1)
    assert result.ending is Ending.TIMED_OUT
    assert _alive(confined.root) == []


WORKER = """
import os, sys
from hermes_worker.workspaces.local import LocalWorkspace
from hermes_worker.workspaces.sandbox.backends import Sandbox
from hermes_worker.workspaces.sandbox.bubblewrap import BubblewrapRung
from hermes_worker.workspaces.sandbox.helper import keeper, namespace
from hermes_worker.workspaces.sandbox.landlock import LandlockRung
from hermes_worker.workspaces.sandbox.policy import SandboxPolicy, SandboxMode
rung = BubblewrapRung() if sys.argv[2] == "bubblewrap" else LandlockRung()
sandbox = Sandbox(SandboxMode.REQUIRE, SandboxPolicy(), [rung])
workspace = LocalWorkspace(sys.argv[1], base_env={"PATH": "/usr/bin:/bin"}, sandbox=sandbox)
command = "env -i setsid sleep 600 & echo started > started; sleep 600"
workspace.execute(command, cwd=None, env={}, timeout_s=1000, output_bytes_max=1000, should_stop=lambda: False)
"""


@pytest.mark.faults
@pytest.mark.parametrize("rung", BOTH)
def test_confined_commands_die_with_a_killed_worker(tmp_path: Path, rung: str) -> None:
    working(rung)
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path), rung], cwd=Path(__file__).parents[2])
    while not (tmp_path / "started").exists():
        assert worker.poll() is None
        time.sleep(0.01)
    worker.kill()
    worker.wait()
    deadline = time.monotonic() + PATIENCE_S
    while _alive(tmp_path):
        assert time.monotonic() < deadline, _alive(tmp_path)
        time.sleep(0.02)


STOPPED = {
    "sleeping": "touch running; sleep 600",
    "session": "setsid sleep 600 & touch running; sleep 600",
    "stubborn": "setsid bash -c \"trap '' TERM INT HUP; touch running; while :; do sleep 0.1; done\" & sleep 600",
    "three-hundred": "for i in $(seq 300); do (setsid sleep 600 &); done; touch running; sleep 600",
}


@pytest.mark.parametrize("escape", STOPPED)
def test_a_stop_ends_a_confined_command_and_its_survivors_within_0_2_s(confined: Machine, escape: str) -> None:
    """A busy machine can only make it take longer, so the best of some tries counts."""
    took = []
    while not took or (min(took) >= 0.2 and len(took) < 8):
        file = confined.root / "running"
        file.unlink(missing_ok=True)
        stopped_at = []

        def should_stop(file: Path = file, stopped_at: list[float] = stopped_at) -> bool:
            if file.exists() and not stopped_at:
                stopped_at.append(time.monotonic())
            return bool(stopped_at)

        result = confined.workspace.execute(
            STOPPED[escape], cwd=None, env={}, timeout_s=100, output_bytes_max=100, should_stop=should_stop
        )
        took.append(time.monotonic() - stopped_at[0])
        assert (result.exit_code, result.ending) == (130, Ending.CANCELLED)
        assert _alive(confined.root) == []
    assert min(took) < 0.2, took


def test_the_kernel_ends_a_command_before_the_worker_when_memory_is_short(confined: Machine) -> None:
    scores: list[int] = []

    def should_stop() -> bool:
        for process in _alive(confined.root):
            if process.name() == "sleep":
                scores.append(int(Path(f"/proc/{process.pid}/oom_score_adj").read_text()))
        return bool(scores)

    confined.workspace.execute(
        "sleep 60", cwd=None, env={}, timeout_s=60, output_bytes_max=100, should_stop=should_stop
    )
    assert scores[0] >= int(Path("/proc/self/oom_score_adj").read_text()) + 500


def test_a_command_that_ends_the_starter_costs_its_worker_a_new_one(confined: Machine) -> None:
    assert confined("echo one").output == b"one\n"
    first = starter._process
    assert first is not None
    assert set(psutil.Process(first.pid).environ()) <= {"PATH", "LC_CTYPE"}
    first.kill()
    first.wait()
    assert confined("echo two").output == b"two\n"
    assert starter._process is not None
    assert starter._process.pid != first.pid


def test_a_forked_worker_has_a_starter_of_its_own(confined: Machine) -> None:
    assert confined("echo one").output == b"one\n"
    parents = starter._process
    child = os.fork()
    if child == 0:
        try:
            confined("echo child > child")
            starter.stop()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert (confined.root / "child").read_text() == "child\n"
    assert confined("echo two").output == b"two\n"
    assert starter._process is parents


def test_a_command_neither_writes_to_nor_reads_from_somebodys_terminal(confined: Machine) -> None:
    ours, theirs = os.openpty()
    try:
        tty.setraw(theirs)  # what is typed can be read at once
        name = os.ttyname(theirs)
        os.write(ours, b"typed\n")
        result = confined(f"echo REACHED > {name}; head -c 5 < {name}; echo over")
        assert b"typed" not in result.output
        assert result.output.endswith(b"over\n")
        assert not select.select([ours], [], [], 0)[0], "the terminal shows nothing"
    finally:
        os.close(ours)
        os.close(theirs)


def test_ordinary_work_goes_on(confined: Machine) -> None:
    result = confined(
        "set -e; echo out; echo err >&2; mkdir -p a/b; cd a/b; export COLOUR=red; echo text > f; mv f ../g; cat ../g;"
        "cat <(echo substituted); cat <<< here; mktemp >/dev/null; echo > $TMPDIR/x; true > /dev/null;"
        f"{PYTHON} -c 'import subprocess, tempfile; tempfile.TemporaryFile(); subprocess.run([\"true\"], check=True)'"
    )
    assert result.output.decode() == "out\nerr\ntext\nsubstituted\nhere\n"
    assert (result.exit_code, result.cwd, result.left_running) == (0, f"{confined.root}/a/b", False)
    assert (result.exported or {}).get("COLOUR") == "red"
    assert "TMPDIR" not in (result.exported or {})


@pytest.mark.parametrize(
    ("program", "command"),
    [
        (
            "git",
            "git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && "
            "git clone -q . ../c && git -C ../c log --oneline | grep -q x",
        ),
        ("gcc", "echo 'int main(){return 7;}' > a.c && gcc a.c -o a; ./a; test $? = 7"),
    ],
)
def test_programs_work(confined: Machine, program: str, command: str) -> None:
    if shutil.which(program) is None or subprocess.run([program, "--version"], capture_output=True).returncode != 0:
        pytest.skip(f"{program} itself is not installed")
    result = confined(command)
    assert result.exit_code == 0, result.output


def test_pytest_and_a_server_within_one_command_work(confined: Machine) -> None:
    (confined.root / "test_a.py").write_text("def test_a(tmp_path):\n    (tmp_path / 'x').write_text('1')\n")
    result = confined(f"{sys.executable} -m pytest -q -p no:cacheprovider test_a.py")
    assert b"1 passed" in result.output, result.output
    served = confined(
        f"{PYTHON} -u -m http.server --bind 127.0.0.1 0 > log 2>&1 & for i in $(seq 300); do sleep 0.1; "
        "grep -qo 'port [0-9]*' log && break; done; cat log",
    )
    assert served.left_running
    result = confined(
        _python(
            "import socket, threading\ns = socket.create_server(('127.0.0.1', 0))\n"
            "socket.create_connection(s.getsockname()); print('answered')"
        )
    )
    assert b"answered" in result.output


def test_without_a_network_nothing_goes_out(tmp_path: Path) -> None:
    for name in BOTH:
        if RUNGS[name].find_unavailable():
            continue
        with machine(tmp_path / name, RUNGS[name], network=Network.NONE) as here:
            for kind in ("SOCK_STREAM", "SOCK_DGRAM"):
                said = here(
                    _python(
                        "import socket\n"
                        f"s = socket.socket(socket.AF_INET, socket.{kind})\n"
                        "s.connect(('169.254.169.254', 80)); print('REACHED')"
                    )
                )
                assert b"REACHED" not in said.output
                assert b"Error" in said.output


def test_a_tenant_sees_the_system_and_its_workspace(tmp_path: Path) -> None:
    for name in BOTH:
        if RUNGS[name].find_unavailable():
            continue
        with machine(tmp_path / name, RUNGS[name], profile=Profile.TENANT) as here:
            (here.home / "diary").write_text(SECRET)
            result = here("cat ~/diary; echo mine > file; cat file; ls /usr > /dev/null && echo system")
            assert SECRET not in result.output.decode()
            assert result.output.decode().endswith("mine\nsystem\n")


def test_credentials_inside_the_workspace_are_hidden_and_stay_in_place(tmp_path: Path) -> None:
    """Somebody works in the home directory itself."""
    rung = working("bubblewrap")
    (tmp_path / ".config" / "gcloud").mkdir(parents=True)
    (tmp_path / ".config" / "gcloud" / "key").write_text(SECRET)

    sandbox = Sandbox(SandboxMode.REQUIRE, SandboxPolicy(hidden=list_hidden_paths(str(tmp_path), ())), [rung])
    workspace = LocalWorkspace(str(tmp_path), base_env={"PATH": os.environ["PATH"]}, sandbox=sandbox)
    for command in ("cat .config/gcloud/key", "mv .config other", "cat other/gcloud/key"):
        said = workspace.execute(
            command, cwd=None, env={}, timeout_s=60, output_bytes_max=1000, should_stop=lambda: False
        )
        assert SECRET not in said.output.decode()
    assert (tmp_path / ".config" / "gcloud" / "key").exists()


def test_a_sparse_file_ends_at_the_limit(tmp_path: Path) -> None:
    for name in BOTH:
        if RUNGS[name].find_unavailable():
            continue
        with machine(tmp_path / name, RUNGS[name], limits=CommandLimits(file_bytes=1024**2)) as here:
            here("truncate -s 100G big; dd if=/dev/zero of=more bs=1M count=3")
            assert all(path.stat().st_size <= 1024**2 for path in here.root.iterdir())


LINEAR = """
import os, signal, time
children = []
try:
    while len(children) < ALLOWED + 400:
        if (child := os.fork()) == 0:
            time.sleep(60)
            os._exit(0)
        children.append(child)
except OSError:
    print("refused after", len(children), flush=True)
    for child in children[-10:]:  # or the shell could start nothing more, and would try again for 15 s
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
else:
    print("REACHED", flush=True)
"""
"""The first numbers of a process namespace are not given out, so a little more than what is allowed can be had."""


def test_the_kernel_bounds_how_many_processes_a_command_has(confined: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the keeper's look, which comes too late for a bomb that doubles. Whoever is not root has
    ``RLIMIT_NPROC``; a root that may make process namespaces has theirs."""
    if os.geteuid() == 0 and not _has_process_numbers_of_its_own():
        pytest.skip("this root may not bound a process namespace (Linux 6.14, and a /proc/sys that can be written)")
    allowed = processes_allowed(20)
    limited = Sandbox(
        SandboxMode.REQUIRE, SandboxPolicy(limits=CommandLimits(processes=allowed)), [RUNGS[confined.rung or ""]]
    )
    workspace = LocalWorkspace(str(confined.root), base_env={"PATH": os.environ["PATH"]}, sandbox=limited)
    # Every look finds as many tasks as the first one did.
    monkeypatch.setattr(starting, "_START", starting._START.replace("starter.main()", BLIND))
    starter.stop()
    try:
        result = workspace.execute(
            _python(LINEAR.replace("ALLOWED", str(allowed))),
            cwd=None,
            env={},
            timeout_s=60,
            output_bytes_max=2000,
            should_stop=lambda: False,
        )
    finally:
        starter.stop()
    assert re.search(rb"refused after \d+", result.output), result.output
    assert _alive(confined.root) == []


BLIND = "starter.keeper._count_tasks = lambda: 0; starter.main()"


def _has_process_numbers_of_its_own() -> bool:
    release = [int(part) for part in re.findall(r"\d+", platform.release())[:2]]
    can_unshare = subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True, check=False).returncode
    return release >= [6, 14] and can_unshare == 0 and os.access("/proc/sys/kernel/pid_max", os.W_OK)


def test_a_command_that_starts_too_many_processes_is_ended(tmp_path: Path) -> None:
    """By the watching keeper, with a sentence, where the kernel does not refuse any before."""
    for name in BOTH:
        if RUNGS[name].find_unavailable():
            continue
        before = Path("/proc/sys/kernel/pid_max").read_text()
        allowed = processes_allowed(100)
        with machine(tmp_path / name, RUNGS[name], limits=CommandLimits(processes=allowed)) as here:
            result = here(_python(LINEAR.replace("ALLOWED", str(allowed)) + "    time.sleep(60)"), timeout_s=60)
            assert result.excess is ExceededLimit.PROCESSES or b"refused after" in result.output
            assert _alive(here.root) == []
        assert Path("/proc/sys/kernel/pid_max").read_text() == before


def test_a_keeper_counts_its_processes_no_more_often_than_the_machine_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which others run thousands of tasks, as fifty browsers do: each keeper once read all of /proc at
    every tick."""
    counted: list[int] = []
    now = {"tasks": 100, "ours": 10}
    monkeypatch.setattr(keeper, "_count_tasks", lambda: now["tasks"])

    def descendants() -> list[int]:
        counted.append(now["tasks"])
        return list(range(now["ours"]))

    monkeypatch.setattr(keeper, "_list_descendants", descendants)
    plan = {"group": b"", "parent": 0, "processes_max": 50, "watched": []}
    kept = keeper._KeptProcess(namespace.Started(), plan, verdict=-1)
    for tasks in (150, 151, 152, 180, 191, 192, 192):
        now["tasks"] = tasks
        assert kept._find_excess() is None
    assert counted == [151, 192]
    now |= {"tasks": 233, "ours": 51}
    assert kept._find_excess() == keeper.TOO_MANY


def test_an_interpreter_below_tmp_is_shown_and_cannot_be_changed(tmp_path: Path) -> None:
    """The worker's own may be there; nothing else of /tmp is seen."""
    with tempfile.TemporaryDirectory(dir="/tmp") as tools, tempfile.NamedTemporaryFile(dir="/tmp") as other:
        (Path(tools) / "tool").write_text("#!/bin/sh\necho works\n")
        (Path(tools) / "tool").chmod(0o755)
        Path(tools).chmod(0o755)
        for name in BOTH:
            if RUNGS[name].find_unavailable():
                continue
            policy = SandboxPolicy(readable=find_unseen((tools,), Profile.WORKSTATION, ()))
            (tmp_path / name).mkdir()
            workspace = LocalWorkspace(
                str(tmp_path / name),
                base_env={"PATH": os.environ["PATH"]},
                sandbox=Sandbox(SandboxMode.REQUIRE, policy, [RUNGS[name]]),
            )
            result = workspace.execute(
                f"{tools}/tool; (echo x >> {tools}/tool) 2>/dev/null || echo kept; cat {other.name} 2>&1; mktemp",
                cwd=None,
                env={},
                timeout_s=20,
                output_bytes_max=1000,
                should_stop=lambda: False,
            )
            assert result.output.decode().splitlines()[:2] == ["works", "kept"], result.output
            assert b"No such file" in result.output or b"denied" in result.output
            assert result.exit_code == 0


def test_endless_output_takes_no_memory(confined: Machine) -> None:
    result = confined("head -c 300000000 /dev/zero", output_bytes_max=1000)
    assert result.was_truncated
    assert len(result.output) < 1200


def _bubblewrap_without_namespaces(folder: Path) -> BubblewrapRung:
    """What bubblewrap does where the kernel forbids namespaces."""
    program = folder / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    program.chmod(0o755)
    return BubblewrapRung([str(program)])


def test_where_namespaces_are_forbidden_landlock_takes_over(tmp_path: Path) -> None:
    working("landlock")
    sandbox = Sandbox(SandboxMode.REQUIRE, SandboxPolicy(), [_bubblewrap_without_namespaces(tmp_path), LandlockRung()])
    assert sandbox.find_backend().name == "landlock"
    assert "No permissions to create new namespace" in sandbox.find_backend().reasons[0]


def test_where_both_are_forbidden_require_refuses(tmp_path: Path) -> None:
    sandbox = Sandbox(SandboxMode.REQUIRE, SandboxPolicy(), [_bubblewrap_without_namespaces(tmp_path)])
    with pytest.raises(WorkspaceError, match=r"must be confined.*No permissions to create new namespace"):
        sandbox.plan_confinement(str(tmp_path))


FORBIDDING = (
    "echo 0 > /proc/sys/user/max_user_namespaces && "
    'exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"'
)
STANDING = """
from hermes_worker.workspaces.sandbox.backends import Sandbox
from hermes_worker.workspaces.sandbox.policy import SandboxPolicy, SandboxMode
print(Sandbox(SandboxMode.REQUIRE, SandboxPolicy()).find_backend().name)
"""


def test_where_the_kernel_forbids_namespaces_landlock_takes_over() -> None:
    working("landlock")
    within = ["unshare", "--user", "--map-root-user", "sh", "-c", FORBIDDING, "sh"]
    if not shutil.which("unshare") or subprocess.run([*within, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make a namespace in which namespaces are forbidden")
    told = subprocess.run(
        [*within, sys.executable, "-c", STANDING],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == "landlock"
