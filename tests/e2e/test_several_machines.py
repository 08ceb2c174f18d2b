"""The commands of docs/deployment.md, played as they stand against real servers."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from support.commandline import script, wait_for
from support.documents import find_programs

from hermes_worker.models.scripted.server import ScriptedServer

pytestmark = pytest.mark.e2e

PAGE = Path(__file__).parents[2] / "docs" / "deployment.md"


def block() -> str:
    """The first block of commands."""
    return PAGE.read_text(encoding="utf-8").partition("```sh\n")[2].partition("```")[0]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_block_for_several_machines_works_as_pasted(tmp_path: Path, postgres_url: str, broker_url: str) -> None:
    with ScriptedServer() as model:
        commands = block()
        for written, real in {
            "postgresql://user@db/hermes": postgres_url,
            "redis://broker:6379/0": broker_url,
            "http://model:8000/v1": model.base_url,
            "HERMES_MODEL=NAME": "HERMES_MODEL=scripted",
        }.items():
            assert commands.count(written) == 1
            commands = commands.replace(written, f"'{real}'" if "://" in real else real)
        environ = {
            "PATH": f"{find_programs()}:{os.defpath}",
            "HOME": str(tmp_path),
            # Beside the block, so that two of these tests can run at once.
            "HERMES_SERVER_PORT": str(free_port()),
            "HERMES_SERVER_HOST": "0.0.0.0",
        }
        doctor = re.search(r"^hermes-worker doctor\b.*$", commands, re.MULTILINE)
        assert doctor
        commands = commands.replace(doctor[0], "")
        # What follows is said in the terminal where the block was pasted: it has the key.
        commands += f"""
        until hermes-worker doctor >doctor.txt 2>&1; do sleep 0.2; done
        hermes-worker submit {shlex.quote(script(final="Forty-two."))} --watch >answer.txt 2>&1
        echo "submit ended with $?" >>answer.txt
        kill $(jobs -p); wait
        """
        shell = subprocess.Popen(
            ["bash", "-c", commands],
            cwd=tmp_path,
            env=environ,
            stdout=(tmp_path / "out.txt").open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            wait_for(lambda: shell.poll() is not None or None, within_s=200, saying=(tmp_path / "out.txt").read_text())
        finally:
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()
    said = "\n".join((tmp_path / name).read_text() for name in ("out.txt", "doctor.txt", "answer.txt"))
    answer = (tmp_path / "answer.txt").read_text()
    assert "Forty-two." in answer, said
    assert "submit ended with 0" in answer, said
