"""The units of systemd/ under a real systemd, the first process of namespaces whose changes to the disk are lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commandline import call, script, wait_for
from support.patience import PATIENCE_S
from support.previous import previous_program

ROOT = Path(__file__).parents[2]
SYSTEMD = Path("/usr/lib/systemd/systemd")
ADDRESS = "http://127.0.0.1:8642"
HOME, BACKUPS = "/var/lib/hermes-worker", "/var/backups/hermes-worker"
STARTED = f"""
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cd "$1/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 none sys/fs/cgroup
for place in run tmp dev; do mount -t tmpfs tmpfs $place; done
for name in null zero full random urandom tty; do mknod -m 666 dev/$name c $(stat -c "0x%t 0x%T" /dev/$name); done
mkdir dev/pts dev/shm
mount -t devpts devpts dev/pts
mount -t tmpfs tmpfs dev/shm
ln -s /proc/self/fd dev/fd
rm -rf etc/systemd/system
mkdir -p etc/systemd/system
printf '[Unit]\\nDescription=Nothing but what is started\\n' > etc/systemd/system/bare.target
ip link set lo up 2>/dev/null || true
exec env -i PATH=/usr/sbin:/usr/bin:/bin container=other chroot . {SYSTEMD} --system --unit=bare.target
"""
pytestmark = [pytest.mark.machine, pytest.mark.timeout(1_500)]


class Booted:
    """A systemd at work, and commands beside it."""

    def __init__(self, pid: int) -> None:
        self._enter = ["nsenter", f"--target={pid}", "--mount", "--pid", "--ipc", "--uts", "--net", "--cgroup"]
        self._enter += [f"--root=/proc/{pid}/root", "env", "-i", "--chdir=/", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]

    def __call__(self, *command: str, check: bool = True) -> str:
        done = subprocess.run([*self._enter, *command], capture_output=True, text=True, timeout=PATIENCE_S)
        assert not check or done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def hermes(self, *words: str, check: bool = True) -> str:
        """The command line, as the unit's user."""
        program = ["runuser", "-u", "hermes-worker", "--", "env", f"--chdir={HOME}", f"HERMES_HOME={HOME}"]
        return self(*program, "/opt/hermes-worker/bin/hermes-worker", *words, check=check)


@pytest.fixture(scope="module")
def previous() -> Iterator[Path]:
    """The environment of the version before, in a directory that the service sees."""
    with tempfile.TemporaryDirectory(dir="/opt") as folder:
        Path(folder).chmod(0o755)
        yield previous_program(Path(folder)).parents[1]


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory, previous: Path) -> Iterator[Booted]:
    if os.geteuid() != 0 or not SYSTEMD.exists() or shutil.which("nsenter") is None:
        pytest.skip("starting a systemd needs root, and the Debian package systemd")
    log = tmp_path_factory.mktemp("log") / "systemd.log"
    unshared = ["unshare", "--mount", "--pid", "--cgroup", "--ipc", "--uts", "--net", "--fork", "--kill-child"]
    with log.open("wb") as output:
        holder = subprocess.Popen(
            [*unshared, "bash", "-c", STARTED, "bash", str(tmp_path_factory.mktemp("disk"))],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        wait_for(lambda: holder.poll() is not None or _is_running(holder.pid), saying="of systemd")
        if holder.poll() is not None:
            pytest.skip(f"no systemd starts here: {log.read_text(errors='replace')[-300:]}")
        machine = Booted(_find_child(holder.pid))
        _install(machine)
        yield machine
    finally:
        holder.kill()
        holder.wait()


def _find_child(pid: int) -> int:
    return int((Path(f"/proc/{pid}/task/{pid}/children").read_text().split() or ["0"])[0])


def _is_running(holder: int) -> bool:
    child = _find_child(holder)
    return child > 0 and "running" in Booted(child)("systemctl", "is-system-running", check=False)


def _install(machine: Booted) -> None:
    """As docs/setup.md and docs/backup.md say, with this environment in place of a new one; its user may look into the
    directories above it."""
    prefixes = {Path(sys.prefix), Path(sys.base_prefix), ROOT}
    machine("chmod", "o+x", *sorted({str(above) for prefix in prefixes for above in (prefix, *prefix.parents)}))
    machine("ln", "-sfn", sys.prefix, "/opt/hermes-worker")
    machine("useradd", "--system", "--home-dir", HOME, "--shell", "/usr/sbin/nologin", "hermes-worker")
    for unit in ("hermes-worker.service", "hermes-worker-backup.service", "hermes-worker-backup.timer"):
        machine("install", "-m", "644", str(ROOT / "systemd" / unit), "/etc/systemd/system/")
    machine("systemctl", "daemon-reload")
    machine("systemctl", "start", "hermes-worker")


def read_journal(booted: Booted) -> str:
    return booted("journalctl", "--unit=hermes-worker", "--no-pager")


def test_the_service_completes_a_run_is_saved_and_drains(booted: Booted) -> None:
    wait_for(lambda: ADDRESS in read_journal(booted), saying="of the API")
    assert "completed in" in booted.hermes("submit", "Say what this is", "--watch")

    # The same timer, but for the hour at which it elapses.
    soon = "[Timer]\nOnCalendar=\nOnActiveSec=1\nRandomizedDelaySec=0\nAccuracySec=100ms\n"
    drop_in = "/etc/systemd/system/hermes-worker-backup.timer.d"
    booted("mkdir", drop_in)
    booted("bash", "-c", f"printf '%b' '{soon}' > {drop_in}/soon.conf")
    booted("systemctl", "daemon-reload")
    booted("systemctl", "enable", "--now", "hermes-worker-backup.timer")
    wait_for(lambda: booted("ls", BACKUPS, check=False).startswith("day-"), saying="of a backup by the timer")
    assert booted("stat", "-c", "%a %U", BACKUPS).split() == ["700", "hermes-worker"]

    booted("systemctl", "stop", "hermes-worker")
    ended = booted("systemctl", "show", "hermes-worker", "-p", "Result", "-p", "ExecMainStatus")
    assert ended.split() == ["Result=success", "ExecMainStatus=0"]
    assert "worker.draining" in read_journal(booted)
    groups = "/sys/fs/cgroup/system.slice"
    wait_for(lambda: "hermes-worker.service" not in booted("ls", groups), saying="that no process is left")


def test_a_new_version_goes_on_in_place_with_the_run_that_is_at_work(booted: Booted, previous: Path) -> None:
    booted("systemctl", "stop", "hermes-worker")
    booted("bash", "-c", f"rm -rf {HOME}/* {HOME}/.[!.]*")
    booted("ln", "-sfn", str(previous), "/opt/hermes-worker")
    starts = read_journal(booted).count(ADDRESS)
    booted("systemctl", "start", "hermes-worker")
    wait_for(lambda: read_journal(booted).count(ADDRESS) > starts, saying="of the version before")
    steps = 20
    task = script(*({**call("todo"), "delay_s": 1.0, "text": "On."} for _ in range(steps)), final="Done.")
    run_id = booted.hermes("submit", task).split()[0]

    def show() -> dict[str, Any]:
        return dict(json.loads(booted.hermes("runs", "show", run_id, "--json", check=False) or "{}"))

    wait_for(lambda: show()["iteration"] >= 2, saying="of the run at work")
    booted("ln", "-sfn", sys.prefix, "/opt/hermes-worker")
    booted("systemctl", "restart", "hermes-worker")
    at_work = show()["iteration"]
    assert at_work < steps, "the run was not at work any more"
    wait_for(lambda: show()["status"] == "completed", saying="of the run under the new version")
    assert (show()["iteration"], show()["tool_calls"]) == (steps + 1, {"succeeded": steps})
    assert read_journal(booted).count("worker.draining") >= 1
