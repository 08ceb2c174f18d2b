"""The programs that stand in for missing ones do what the real ones do, as far as they are asked to."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.programs import install_stand_in, ripgrep


@pytest.fixture
def git(tmp_path: Path) -> str:
    return str(install_stand_in(tmp_path, "git"))


@pytest.fixture
def curl(tmp_path: Path) -> str:
    return str(install_stand_in(tmp_path, "curl"))


def said(*argv: str, cwd: Path) -> str:
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=True).stdout


def test_a_project_gets_a_history(git: str, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (project / "src" / "a.py").write_text("1\n")
    (project / ".gitignore").write_text("ignored\n")
    me = ("-c", "user.name=N", "-c", "user.email=a@b.test", "-C", str(project))
    said(git, "init", "-q", str(project), cwd=tmp_path)
    said(git, *me, "add", ".", cwd=tmp_path)
    assert said(git, "status", "--short", cwd=project).split("\n")[:2] == ["A  .gitignore", "A  src/a.py"]
    said(git, *me, "commit", "-q", "-m", "First steps\n\nAnd why.", cwd=tmp_path)
    (project / "src" / "a.py").write_text("22\n")
    (project / "new.txt").touch()
    (project / "ignored").touch()

    assert said(git, "ls-files", cwd=project).split() == [".gitignore", "src/a.py"]
    assert re.fullmatch(
        r"[0-9a-f]{7} First steps\n", said(git, "--no-pager", "log", "--oneline", "-n", "15", cwd=project)
    )
    assert said(git, "status", "--short", cwd=project) == " M src/a.py\n?? new.txt\n"


def test_where_no_history_is_it_says_what_git_says(git: str, tmp_path: Path) -> None:
    refused = subprocess.run([git, "status", "--short"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (128, "")
    assert refused.stderr == "fatal: not a git repository (or any of the parent directories): .git\n"

    said(git, "init", "-q", cwd=tmp_path)
    empty = subprocess.run([git, "log", "--oneline"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert empty.returncode == 128
    assert "does not have any commits yet" in empty.stderr


class Echo(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        length = int(self.headers["Content-Length"] or 0)
        heard = [self.command, self.path, self.headers["X-A"], self.rfile.read(length).decode()]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(heard).encode())

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def echo() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"localhost:{server.server_port}"
        server.shutdown()


def test_a_request_is_made_as_it_is_written(curl: str, echo: str, tmp_path: Path) -> None:
    assert json.loads(said(curl, "-s", f"{echo}/a?b=1", cwd=tmp_path)) == ["GET", "/a?b=1", None, ""]
    posted = said(curl, "-sN", f"http://{echo}/", "-H", "X-A: 1", "-d", '{"c": 2}', cwd=tmp_path)
    assert json.loads(posted) == ["POST", "/", "1", '{"c": 2}']
    assert json.loads(said(curl, "-s", "-X", "POST", f"{echo}/stop", cwd=tmp_path))[0] == "POST"


def test_a_server_that_is_away_is_exit_code_7(curl: str, tmp_path: Path) -> None:
    assert subprocess.run([curl, "-s", "127.0.0.1:9"], cwd=tmp_path, check=False).returncode == 7


def test_ripgrep_is_that_of_the_wheel() -> None:
    assert ripgrep().is_relative_to(sys.prefix)
    assert said(str(ripgrep()), "--version", cwd=Path("/")).startswith("ripgrep 14.1")
