"""The supervisor, with real processes: what it starts, what it restarts, and that nothing is ever left behind."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from support.patience import PATIENCE_S
from support.warm_commands import WarmProcess

from hermes_worker.local import process as process_module
from hermes_worker.local.children import find_last_words, restart_delay_s
from hermes_worker.local.process import list_child_processes, wait_until_gone
from hermes_worker.local.valkey import find_running

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(sys.platform != "linux", reason="the guarantees are Linux's"),
]

DRIVER = textwrap.dedent(
    """
    import json, sys, time
    from pathlib import Path
    from hermes_worker.local.forking import ChildEntry
    from hermes_worker.local.supervisor import ChildSpec, StartFailed, Supervisor

    def spec(name, script, ready_file=None, log_file=None, mended_by=None, waits_file=None, **rest):
        if waits_file:
            rest["waits_for"] = lambda: Path(waits_file).read_text() if Path(waits_file).exists() else None
        ready = (lambda: Path(ready_file).exists()) if ready_file else None
        env = {"PATH": "/usr/bin:/bin", "DIR": sys.argv[2], "PYTHONPATH": sys.argv[4]}
        rest["after_exit"] = ChildEntry("support.forked_mains:note_exit", [name])
        argv = script if isinstance(script, list) else ["/bin/sh", "-c", script]
        log_path = Path(log_file) if log_file else None
        return ChildSpec(
            name=name, argv=argv, env=env, ready=ready, log_path=log_path, recover=mending(mended_by), **rest
        )

    def mending(path):
        def mend(last_words):
            print(f"mending: {last_words}", file=sys.stderr, flush=True)
            Path(path).touch()
            return True

        return mend if path else None

    children = json.loads(sys.argv[1])
    supervisor = Supervisor([spec(**child) for child in children])
    if sys.argv[3] == "run":
        status = supervisor.run(lambda: print("all ready", file=sys.stderr, flush=True))
        print(f"failure: {supervisor.failure}", file=sys.stderr, flush=True)
        sys.exit(status)
    try:
        with supervisor.run_in_background():
            print("inside", file=sys.stderr, flush=True)
            sys.stdin.readline()
    except StartFailed as error:
        print(f"refused: {error}", file=sys.stderr, flush=True)
    print(f"after: {supervisor.stop()}", file=sys.stderr, flush=True)
    """
)

QUIET = "while :; do sleep 0.05; done"
STUBBORN = "trap '' TERM; " + QUIET
ORPHANER = "(setsid sh -c 'echo far $$; exec sleep 1000' &); (sh -c 'echo near $$; exec sleep 1000' &); " + QUIET
"""Leaves one process in its own process group and one in a session that no group signal reaches."""


def obedient(name: str) -> str:
    return f"trap 'echo {name} >> $DIR/stopped; exit 0' TERM; echo {name} >> $DIR/started; " + QUIET


class Driven:
    """A process that runs a supervisor."""

    def __init__(self, directory: Path, children: list[dict[str, Any]], mode: str = "run", **popen: Any) -> None:
        argv = ["-c", DRIVER, json.dumps(children), str(directory), mode, str(Path(__file__).parents[1])]
        self.lines: list[str] = []
        self._news = threading.Condition()
        self.process: subprocess.Popen[bytes] | WarmProcess
        if popen:
            self.process = subprocess.Popen([sys.executable, *argv], stdin=subprocess.DEVNULL, **popen)
            return
        (source, sink), (said, says) = os.pipe(), os.pipe()
        self.stdin = os.fdopen(sink, "wb", buffering=0)
        with os.fdopen(source) as stdin, os.fdopen(says, "w") as output:
            self.process = WarmProcess(argv, os.environ, None, (stdin, output, output))
        threading.Thread(target=self.read, args=(os.fdopen(said, "rb").readline,), daemon=True).start()

    def read(self, readline: Callable[[], bytes]) -> None:
        for line in iter(readline, b""):
            with self._news:
                self.lines.append(line.decode().rstrip())
                self._news.notify_all()

    def wait_for(self, pattern: str, times: int = 1) -> list[re.Match[str]]:
        """The lines that match, once there are ``times``."""
        with self._news:
            self._news.wait_for(lambda: len(self.found(pattern)) >= times, PATIENCE_S)
        assert len(self.found(pattern)) >= times, f"no {pattern!r} in {self.lines}"
        return self.found(pattern)

    def found(self, pattern: str) -> list[re.Match[str]]:
        return [match for line in self.lines if (match := re.search(pattern, line))]

    def pid_of(self, child: str) -> int:
        return int(self.wait_for(rf"child\.started +child={child} child_pid=(\d+)")[-1][1])

    @property
    def keeper(self) -> psutil.Process:
        (keeper,) = psutil.Process(self.process.pid).children()
        return keeper

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        return self.process.wait(PATIENCE_S)


@contextmanager
def driven(directory: Path, children: list[dict[str, Any]], mode: str = "run", **popen: Any) -> Iterator[Driven]:
    driver = Driven(directory, children, mode, **popen)
    try:
        yield driver
    finally:
        if driver.process.poll() is None:
            with suppress(psutil.NoSuchProcess):  # it has just ended by itself
                family = driver.family()
                driver.process.kill()
                driver.process.wait()
                wait_until_gone(family, timeout_s=10)


def test_children_start_in_order_and_stop_in_reverse(tmp_path: Path) -> None:
    names = ["first", "second", "third"]
    children = [{"name": name, "script": obedient(name), "ready_file": str(tmp_path / name)} for name in names]
    with driven(tmp_path, children) as driver:
        for number, name in enumerate(names, start=1):
            driver.pid_of(name)
            wait_for_lines(tmp_path / "started", number)
            assert not driver.found("all ready")
            (tmp_path / name).touch()
        driver.wait_for("all ready")
        driver.signal(signal.SIGTERM)

        assert driver.end() == 0
    assert (tmp_path / "started").read_text().split() == names
    assert (tmp_path / "stopped").read_text().split() == names[::-1]


def wait_for_lines(path: Path, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists() or len(path.read_text().split()) < count:
        assert time.monotonic() < deadline, f"{path} has not {count} lines"
        time.sleep(0.005)


def test_children_of_a_group_start_and_stop_together(tmp_path: Path) -> None:
    """Each of them ends only once all of them were told to."""
    told = f"touch {tmp_path}/told.$$; while [ $(ls {tmp_path}/told.* | wc -l) -lt 4 ]; do sleep 0.05; done"
    script = f"trap '{told}; touch {tmp_path}/ended.$$; exit 0' TERM; {QUIET}"
    children = [{"name": f"worker{n}", "script": script, "group": "workers"} for n in range(4)]
    with driven(tmp_path, children) as driver:
        driver.wait_for("all ready")
        driver.signal(signal.SIGTERM)
        assert driver.end() == 0
    assert len(list(tmp_path.glob("ended.*"))) == 4, "one was killed while it waited for the others"


def test_what_children_print_is_forwarded_line_by_line_with_their_name(tmp_path: Path) -> None:
    script = "echo out; echo err >&2; printf 'caf\\303\\251\\n'; printf 'no end'; sleep 0.2; exit 0"
    with driven(tmp_path, [{"name": "a", "script": QUIET}, {"name": "long", "script": script}]) as driver:
        driver.wait_for(r"child\.exited +child=long")
        *printed, last = [line for line in driver.lines if re.search(r"^long|child\.exited", line)][:5]

    assert printed == ["long | out", "long | err", "long | café", "long | no end"]
    assert "child.exited" in last


def test_a_line_without_an_end_is_forwarded_in_pieces(tmp_path: Path) -> None:
    script = "until [ -e $DIR/go ]; do sleep 0.05; done; head -c 200000 /dev/zero | tr '\\0' x; " + QUIET
    with driven(tmp_path, [{"name": "a", "script": script}]) as driver:
        driver.wait_for("all ready")  # so that nobody else writes in between: so much is not written at once
        (tmp_path / "go").touch()
        pieces = driver.wait_for(r"^a \| x+$", times=2)

    # Forwarded as they came, without waiting for an end that may never come.
    assert all(64 * 1024 <= len(piece[0]) < 2 * 64 * 1024 + 4 for piece in pieces)


def test_a_child_that_dies_is_started_again_and_it_is_said(tmp_path: Path) -> None:
    with driven(tmp_path, [{"name": "a", "script": QUIET}]) as driver:
        driver.wait_for("all ready")
        first = driver.pid_of("a")
        os.kill(first, signal.SIGKILL)

        driver.wait_for(rf'child\.exited .*child_pid={first} status="killed by SIGKILL" ran_s=.* restart_in_s=0\.5')
        driver.wait_for("hook: a -9")
        driver.wait_for(r"child\.started", times=2)
        assert driver.pid_of("a") != first
        driver.signal(signal.SIGTERM)
        assert driver.end() == 0
        assert not driver.found("hook: a -15")


def test_a_child_that_keeps_dying_waits_longer_each_time(tmp_path: Path) -> None:
    go = tmp_path / "go"  # it has been ready before it dies, however busy the machine is
    child = {"name": "a", "script": f"touch {tmp_path}/ready; until [ -e {go} ]; do sleep 0.02; done; exit 7"}
    with driven(tmp_path, [{**child, "ready_file": str(tmp_path / "ready")}]) as driver:
        driver.wait_for("all ready")
        go.touch()
        waits = driver.wait_for(r'status="exit status 7".* restart_in_s=(.*)', times=3)

        assert [float(wait[1]) for wait in waits[:3]] == [0.5, 1.0, 2.0]


@pytest.mark.parametrize(("failures", "delay_s"), [(1, 0.5), (2, 1), (3, 2), (6, 16), (7, 30), (1000, 30)])
def test_the_wait_doubles_up_to_half_a_minute(failures: int, delay_s: float) -> None:
    assert restart_delay_s(failures) == delay_s


def test_a_child_that_fails_before_it_is_ready_ends_the_whole(tmp_path: Path) -> None:
    children = [
        {"name": "good", "script": obedient("good")},
        {"name": "bad", "script": "echo wrong setting; exit 2", "ready_file": str(tmp_path / "never")},
        {"name": "next", "script": QUIET},
    ]
    with driven(tmp_path, children) as driver:
        assert driver.end() == 1
        driver.wait_for("bad  | wrong setting")
        driver.wait_for(r'child\.failed +child=bad .*status="exit status 2" last_words="wrong setting"')
        driver.wait_for("failure: bad could not be started: exit status 2: wrong setting$")

    assert not driver.found("child=next|all ready|restart_in_s=null")
    assert (tmp_path / "stopped").read_text() == "good\n"


def test_the_last_words_of_a_child_that_writes_to_a_file_are_those_of_this_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of yesterday\n")
    script = f"echo first >> {log}; echo 'cannot read x' >> {log}; exit 1"
    bad = {"name": "bad", "script": script, "ready_file": str(tmp_path / "never"), "log_file": str(log)}
    with driven(tmp_path, [bad]) as driver:
        assert driver.end() == 1
        driver.wait_for(r"failure: bad could not be started: exit status 1: first \| cannot read x$")


def test_the_last_words_of_a_child_whose_log_was_put_aside_are_those_behind_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of yesterday\n")
    bad = {
        "name": "bad",
        "script": f"echo why > {log}; exit 1",
        "ready_file": str(tmp_path / "never"),
        "log_file": str(log),
    }
    with driven(tmp_path, [bad]) as driver:
        assert driver.end() == 1
        driver.wait_for(r"failure: bad could not be started: exit status 1: why$")


def test_of_a_role_of_ours_the_sentence_it_ends_with_is_told() -> None:
    assert find_last_words(["12:00 info a.b", "hermes-worker: no model is configured", ""]) == "no model is configured"
    assert find_last_words(["Traceback:", "  here", "ValueError: x"]) == "Traceback: | here | ValueError: x"
    assert find_last_words([]) == ""


def test_a_child_that_dies_silently_is_said_to_have_said_nothing(tmp_path: Path) -> None:
    silent = {"name": "silent", "script": "kill -9 $$", "ready_file": str(tmp_path / "never")}
    with driven(tmp_path, [silent], mode="background") as driver:
        driver.wait_for("refused: silent could not be started: killed by SIGKILL: it said nothing$")
        assert driver.end() == 0


def test_a_child_whose_trouble_can_be_mended_is_started_once_more(tmp_path: Path) -> None:
    mended, ready = tmp_path / "mended", tmp_path / "ready"
    script = f"[ -e {mended} ] || {{ echo broken; exit 1; }}; touch {ready}; " + QUIET
    ill = {"name": "ill", "script": script, "ready_file": str(ready), "mended_by": str(mended)}
    with driven(tmp_path, [ill]) as driver:
        driver.wait_for("mending: broken")
        driver.wait_for("all ready")
        driver.signal(signal.SIGTERM)
        assert driver.end() == 0
    assert not driver.found("child\\.failed")


def test_a_child_that_stays_ill_is_not_mended_for_ever(tmp_path: Path) -> None:
    ill = {
        "name": "ill",
        "script": "echo broken; exit 1",
        "ready_file": str(tmp_path / "never"),
        "mended_by": str(tmp_path / "mended"),
    }
    with driven(tmp_path, [ill]) as driver:
        assert driver.end() == 1
        driver.wait_for("failure: ill could not be started: exit status 1: broken$")
    assert len(driver.found("mending: broken")) == 1


def test_whoever_waits_is_told_for_whom(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    slow = {"name": "slow", "script": QUIET, "ready_file": str(ready)}
    with driven(tmp_path, [{"name": "quick", "script": QUIET}, slow]) as driver:
        driver.wait_for(r"child\.awaited +children=slow for_s=5")
        assert not driver.found("all ready")
        ready.touch()
        driver.wait_for("all ready")


def test_a_child_that_is_not_ready_in_time_ends_the_whole(tmp_path: Path) -> None:
    slow = {"name": "slow", "script": QUIET, "ready_file": str(tmp_path / "never"), "ready_timeout_s": 0.3}
    with driven(tmp_path, [slow]) as driver:
        assert driver.end() == 1
        driver.wait_for(r"child\.killed +child=slow not_ready_after_s=0\.3")
        driver.wait_for(r"failure: slow could not be started: it was not ready after 0\.3 s: it said nothing$")


def test_a_child_that_never_was_ready_and_waits_for_something_ends_the_whole_with_its_words(tmp_path: Path) -> None:
    cause = tmp_path / "cause"
    cause.write_text("the broker has too few replicas")
    waiting = {"name": "a", "script": QUIET, "ready_file": str(tmp_path / "never"), "waits_file": str(cause)}
    with driven(tmp_path, [{**waiting, "waiting_timeout_s": 0.3}]) as driver:
        assert driver.end() == 1
        said = r"failure: a could not be started: it was not ready after 0\.3 s: the broker has too few replicas$"
        driver.wait_for(said)


def test_a_child_that_was_ready_once_may_wait_as_long_as_it_must(tmp_path: Path) -> None:
    ready, cause, go_on = tmp_path / "ready", tmp_path / "cause", tmp_path / "go-on"
    again = f"while [ ! -e {go_on} ]; do sleep 0.05; done; rm {cause}; touch {ready}; echo healed; {QUIET}"
    first = f"touch {ready}; while [ ! -e {cause} ]; do sleep 0.05; done; exit 1"
    script = f"if [ -e {cause} ]; then echo again; {again}; fi; {first}"
    waiting = {"name": "a", "script": script, "ready_file": str(ready), "waits_file": str(cause)}
    with driven(tmp_path, [{**waiting, "ready_timeout_s": 5, "waiting_timeout_s": 0.1}]) as driver:
        driver.wait_for("all ready")
        ready.unlink()
        cause.write_text("the broker is away")
        driver.wait_for("again")
        assert len(driver.found(r"child\.started")) == 2
        go_on.touch()
        driver.wait_for("healed")
        driver.signal(signal.SIGTERM)
        assert driver.end() == 0
    assert not driver.found(r"child\.killed")


def test_a_program_that_does_not_exist_ends_the_whole(tmp_path: Path) -> None:
    with driven(tmp_path, [{"name": "a", "script": ["/nowhere/program"]}]) as driver:
        assert driver.end() == 1
        driver.wait_for("could not be started .No such file or directory")


def test_a_child_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    with driven(tmp_path, [{"name": "a", "script": STUBBORN, "grace_s": 0.3}]) as driver:
        driver.wait_for("all ready")
        driver.signal(signal.SIGTERM)

        assert driver.end() == 0
        driver.wait_for(r"child\.killed +child=a after_s=0\.3")


def test_a_second_ctrl_c_kills_at_once(tmp_path: Path) -> None:
    children = [{"name": f"a{n}", "script": STUBBORN, "grace_s": 60} for n in range(3)]
    with driven(tmp_path, children) as driver:
        driver.wait_for("all ready")
        family = driver.family()
        driver.signal(signal.SIGINT)
        time.sleep(0.2)  # nothing tells from outside that the first one has arrived
        assert driver.process.poll() is None
        driver.signal(signal.SIGINT)

        assert driver.end() == 130
    wait_until_gone(family, timeout_s=1)


def test_a_stop_while_starting_is_orderly(tmp_path: Path) -> None:
    children = [
        {"name": "good", "script": obedient("good")},
        {"name": "slow", "script": obedient("slow"), "ready_file": str(tmp_path / "never")},
    ]
    with driven(tmp_path, children) as driver:
        wait_for_lines(tmp_path / "started", 2)
        driver.signal(signal.SIGTERM)

        assert driver.end() == 0
    assert (tmp_path / "stopped").read_text().split() == ["slow", "good"]


# --- nothing is left behind ------------------------------------------------------------------------------------------


def all_of(driver: Driven) -> list[psutil.Process]:
    """The keeper, its child, and the two processes that the child let go of."""
    driver.wait_for("all ready")
    orphans = [int(driver.wait_for(rf"\| {where} (\d+)")[0][1]) for where in ("near", "far")]
    return [driver.keeper, psutil.Process(driver.pid_of("a")), *map(psutil.Process, orphans)]


@pytest.mark.parametrize("victim", ["warden", "keeper"])
def test_nothing_outlives_a_sigkill_of_the_supervisor(tmp_path: Path, victim: str) -> None:
    with driven(tmp_path, [{"name": "a", "script": ORPHANER}]) as driver:
        family = all_of(driver)
        pid = driver.process.pid if victim == "warden" else driver.keeper.pid

        os.kill(pid, signal.SIGKILL)

        wait_until_gone(family, timeout_s=10)
        assert driver.end() == (-9 if victim == "warden" else 137)


def test_nothing_outlives_an_orderly_end(tmp_path: Path) -> None:
    with driven(tmp_path, [{"name": "a", "script": ORPHANER}]) as driver:
        family = all_of(driver)
        driver.signal(signal.SIGTERM)

        assert driver.end() == 0
        wait_until_gone(family, timeout_s=0.1)


def test_the_children_die_even_if_both_processes_of_the_supervisor_do(tmp_path: Path) -> None:
    with driven(tmp_path, [{"name": "a", "script": QUIET}]) as driver:
        driver.wait_for("all ready")
        keeper, child = driver.keeper, psutil.Process(driver.pid_of("a"))
        os.kill(driver.process.pid, signal.SIGSTOP)  # so that it cannot clear up
        keeper.kill()
        os.kill(driver.process.pid, signal.SIGKILL)

        wait_until_gone([keeper, child], timeout_s=10)


def test_what_a_dead_child_started_in_its_group_dies_with_it(tmp_path: Path) -> None:
    with driven(tmp_path, [{"name": "a", "script": ORPHANER}]) as driver:
        _, child, near, far = all_of(driver)
        child.kill()

        driver.wait_for(r"child\.started", times=2)
        wait_until_gone([near], timeout_s=5)
        # A command that left the group on purpose (nohup, a server) is somebody's work, and goes on until the end.
        assert far.is_running()


def test_ctrl_c_in_a_terminal_reaches_the_children_once_and_through_us(tmp_path: Path) -> None:
    terminal, line = pty.openpty()

    def own_the_terminal() -> None:
        os.setsid()
        os.dup2(line, 2)
        import fcntl

        fcntl.ioctl(line, termios.TIOCSCTTY, 0)

    script = "trap 'echo interrupted >> $DIR/stopped' INT; " + obedient("a")
    with driven(tmp_path, [{"name": "a", "script": script}], preexec_fn=own_the_terminal) as driver:
        # With our copy closed, reading ends when the last process of the terminal does.
        os.close(line)
        reader = threading.Thread(target=read_terminal, args=(driver, terminal))
        reader.start()
        driver.wait_for("all ready")
        os.write(terminal, b"\x03")

        assert driver.end() == 0
    reader.join(PATIENCE_S)
    assert (tmp_path / "stopped").read_text() == "a\n"


def read_terminal(driver: Driven, terminal: int) -> None:
    with os.fdopen(terminal, "rb") as screen:
        try:
            driver.read(screen.readline)
        except OSError:
            return  # EIO: what reading a terminal gives when its last user has gone


# --- in the background -----------------------------------------------------------------------------------------------


def test_in_the_background_it_lives_as_long_as_the_block(tmp_path: Path) -> None:
    with driven(tmp_path, [{"name": "a", "script": obedient("a")}], mode="background") as driver:
        driver.wait_for("inside")
        family = driver.family()
        driver.stdin.write(b"\n")

        driver.wait_for("after: 0")
        assert driver.end() == 0
    wait_until_gone(family, timeout_s=0.1)
    assert (tmp_path / "stopped").read_text() == "a\n"


def test_in_the_background_a_failed_start_is_an_error(tmp_path: Path) -> None:
    bad = {"name": "a", "script": "echo wrong; exit 1", "ready_file": str(tmp_path / "never")}
    with driven(tmp_path, [bad], mode="background") as driver:
        driver.wait_for("refused: a could not be started: exit status 1: wrong$")
        assert driver.end() == 0
        assert not driver.found("inside")


def test_in_the_background_it_ends_with_its_process(tmp_path: Path) -> None:
    with driven(tmp_path, [{"name": "a", "script": QUIET}], mode="background") as driver:
        driver.wait_for("inside")
        family = driver.family()
        driver.signal(signal.SIGTERM)

        driver.end()
        wait_until_gone(family, timeout_s=10)


# --- with a real server ----------------------------------------------------------------------------------------------

WITH_VALKEY = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from hermes_worker.local.supervisor import ChildSpec, Supervisor
    from hermes_worker.local.valkey import EmbeddedValkey

    valkey = EmbeddedValkey(Path(sys.argv[1]))
    spec = ChildSpec(name="valkey", argv=valkey.prepare(), env={}, ready=valkey.is_ready, pass_fds=valkey.pass_fds)
    sys.exit(Supervisor([spec]).run(lambda: print(valkey.url, flush=True)))
    """
)


def test_a_broker_that_is_killed_comes_back_under_the_same_url(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", WITH_VALKEY, str(tmp_path / "v")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        client = redis.Redis.from_url(url, decode_responses=True)
        client.lpush("hermes:k", "v")
        first = find_running(tmp_path / "v")
        assert first is not None

        os.kill(first.pid, signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE_S
        while (second := find_running(tmp_path / "v")) is None or second.pid == first.pid:
            assert time.monotonic() < deadline
            time.sleep(0.02)

        assert second.url == url
        assert client.llen("hermes:k") == 1
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    assert find_running(tmp_path / "v") is None


# --- looks at processes that may be gone -----------------------------------------------------------------------------


def test_a_look_at_the_children_of_a_process_that_is_gone_finds_none() -> None:
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    assert list_child_processes(gone.pid, recursive=True) == []


def test_a_look_at_our_own_children_that_psutil_gave_up_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """``up`` ended with a bare ``NoSuchProcess`` about itself: psutil takes a process for another one when the clock is
    set between two readings (before 7.1), and each of its looks at a list of processes is one at the past."""
    looks: list[int] = []

    class Process(psutil.Process):
        def children(self, recursive: bool = False) -> list[psutil.Process]:
            looks.append(self.pid)
            if len(looks) == 1:
                raise psutil.NoSuchProcess(self.pid, msg="process no longer exists and its PID has been reused")
            return super().children(recursive)

    monkeypatch.setattr(process_module.psutil, "Process", Process)
    with subprocess.Popen(["/bin/sleep", "600"]) as child:
        assert child.pid in [each.pid for each in list_child_processes()]
        child.kill()
    assert len(looks) == 2


def test_nothing_of_ours_asks_psutil_for_children_itself() -> None:
    root = Path(process_module.__file__).parents[1]
    asks = [path.name for path in root.rglob("*.py") if re.search(r"Process\(.*\)\.children\(", path.read_text())]
    assert asks == ["process.py"]
