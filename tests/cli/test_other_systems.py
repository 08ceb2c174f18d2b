"""What is said and done on systems that are no Linux, in a process from which what they lack was taken away.

The standard library and the libraries are those of Linux: only our own modules are imported anew. Unverified live.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commandline import CommandLine, Finished

from hermes_worker.system.platforms import find_refusal, find_support

_ELSEWHERE = """
import json, os, signal, sys
platform, python, arguments = sys.argv[1], tuple(json.loads(sys.argv[2])), sys.argv[3:]
for name in [name for name in sys.modules if name.partition(".")[0] in ("hermes_worker", "scheduler")]:
    del sys.modules[name]
UNIX = ("fork geteuid getuid getgid getsid register_at_fork killpg setsid pread uname WNOHANG O_CLOEXEC O_NOFOLLOW "
        "O_DIRECTORY O_NONBLOCK O_NOCTTY").split()
LINUX = "memfd_create pidfd_open O_PATH pipe2 setns unshare sched_getaffinity MFD_CLOEXEC".split()
MODULES = "fcntl resource pwd grp termios tty pty syslog".split() if platform == "win32" else []
SIGNALS = "SIGRTMIN SIGRTMAX".split()
if platform == "win32":
    SIGNALS += "SIGKILL SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGCHLD SIGSTOP SIGCONT SIGPIPE SIGALRM pthread_sigmask".split()
for name in LINUX + (UNIX if platform == "win32" else []):
    vars(os).pop(name, None)
if python < (3, 13):
    vars(os).pop("waitid", None)
for name in SIGNALS:
    vars(signal).pop(name, None)
for name in MODULES:
    sys.modules[name] = None
sys.platform, sys.version_info = platform, (*python, 0, "final", 0)
if arguments == ["client"]:
    import hermes_worker.client
    print(sorted(hermes_worker.client.__all__)[0])
else:
    from hermes_worker.cli import main
    main(arguments)
"""


def elsewhere(home: Path, platform: str, *arguments: str, python: tuple[int, int] = (3, 13)) -> Finished:
    return CommandLine(home)("-c", _ELSEWHERE, platform, json.dumps(python), *arguments)


@pytest.mark.parametrize("platform", ["win32", "darwin"])
@pytest.mark.parametrize("words", [["--help"], ["--version"], ["client"]])
def test_help_and_the_client_work_everywhere(tmp_path: Path, platform: str, words: list[str]) -> None:
    done = elsewhere(tmp_path, platform, *words)
    assert done.code == 0, done.err
    assert done.out.strip()


def test_doctor_on_windows_says_what_to_do_and_nothing_more(tmp_path: Path) -> None:
    done = elsewhere(tmp_path, "win32", "doctor", "--json")
    found = [json.loads(line) for line in done.out.splitlines()]
    assert done.code == 1, done.err
    assert [each["subject"] for each in found] == ["settings", "system"]
    assert found[-1]["grade"] == "broken"
    assert "WSL2" in found[-1]["text"]


def test_doctor_on_macos_says_what_is_not_confined_and_goes_on(tmp_path: Path) -> None:
    done = elsewhere(tmp_path, "darwin", "doctor", "--json")
    found = {each["subject"]: each for each in map(json.loads, done.out.splitlines())}
    assert found["system"]["grade"] == "note", done.err
    assert "not confined" in found["system"]["text"]
    assert "Linux only" in found["sandbox"]["text"]
    assert found["database"]["grade"] == "ok"


def test_an_old_python_on_macos_is_refused_before_it_fails(tmp_path: Path) -> None:
    done = elsewhere(tmp_path, "darwin", "run", "hello", python=(3, 12))
    assert done.code == 2
    assert "needs Python 3.13 or later (this is 3.12)" in done.err
    assert elsewhere(tmp_path, "darwin", "doctor", python=(3, 12)).code == 1


def test_a_command_that_cannot_work_is_refused_in_a_sentence(tmp_path: Path) -> None:
    done = elsewhere(tmp_path, "win32", "run", "hello")
    assert done.code == 2
    assert done.err.startswith("hermes-worker: 'hermes-worker run' does not run on Windows; it needs Linux or macOS")
    assert "Traceback" not in done.err


def test_linux_lacks_nothing_and_a_stranger_is_refused() -> None:
    linux = find_support("linux", (3, 11))
    assert linux.runs and not linux.lacks and not linux.needs
    assert find_refusal("dev chaos", "linux", (3, 11)) is None
    assert "Linux only" in str(find_refusal("dev chaos", "darwin", (3, 13)))
    assert find_refusal("submit", "darwin", (3, 11)) is None
    assert "virtual machine" in str(find_refusal("submit", "freebsd14", (3, 13)))
    assert find_refusal("doctor", "freebsd14", (3, 13)) is None
