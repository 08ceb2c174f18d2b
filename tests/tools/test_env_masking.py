"""Environment files: inside the workspace what stands in them is hidden in results, outside nobody reads them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.confined import SECRET, SECRETS, Machine, machine, working

from hermes_worker.agent.tools.dispatch import run_inner, run_tool
from hermes_worker.agent.tools.env_secrets import find_secrets, find_workspace_secrets
from hermes_worker.workspaces.base import WorkspaceError
from hermes_worker.workspaces.env_files import read_env_texts
from hermes_worker.workspaces.local import LocalWorkspace
from hermes_worker.workspaces.sandbox.network import Network

TOKEN = "plain-looking-words-of-nobody"
RANDOM = "Zq81xPw0Tt55LmKd"
QUOTED = 'with "quotes" and \\slash'
ENV = f"""# settings
export API_TOKEN={TOKEN}
SOMETHING='{RANDOM}'
DB_PASSWORD={QUOTED}
PORT=8080
DEBUG=true
SECRET_MODE=development
GREETING=hello
"""


@pytest.fixture
def full(root: Path) -> Path:
    (root / ".env").write_text(ENV)
    (root / "app").mkdir()
    (root / "app" / ".env.local").write_text("INNER_KEY=inner-value-of-the-app")
    (root / ".env.example").write_text("API_TOKEN=put-your-own-token-here")
    return root


@pytest.mark.parametrize(
    "command",
    [
        "cat .env",
        "cut -d= -f2- .env",
        "set -a; . ./.env >/dev/null 2>&1; echo $API_TOKEN; echo $SOMETHING",
        "grep -h -o '=.*' .env | tr -d =",
        "cp .env copy; cat copy",
        "python3 -c 'print(open(\".env\").read())'",
        "cat app/.env.local .env",
    ],
)
def test_no_command_shows_what_stands_in_them(session: Any, full: Path, command: str) -> None:
    text = session.result("terminal", command=command).text
    assert TOKEN not in text and RANDOM not in text and "inner-value-of-the-app" not in text and "quotes" not in text
    assert "redacted" in text


def test_what_is_no_secret_is_shown(session: Any, full: Path) -> None:
    output = session("terminal", command="cut -d= -f2- .env; cat .env.example")["output"]
    for plain in ("8080", "true", "development", "hello"):
        assert plain in output


def test_scripts_and_what_they_call_show_nothing_either(session: Any, full: Path) -> None:
    class Inner:
        def __init__(self) -> None:
            self.parameters = {"terminal": ("command",)}

        def call(self, name: str, arguments: Any, context: Any) -> Any:
            return run_inner(session.catalog.get(name), json.dumps(arguments), context, gate=lambda tool, given: None)

    code = (
        "from hermes_tools import terminal\n"
        "said = terminal('cut -d= -f2- .env')['output']\n"
        f"print('{TOKEN[:9]}' in said)\nprint(open('.env').read().split('=')[1:])\n"
    )
    context = replace(session.context(), inner=Inner())
    text = run_tool(session.catalog.get("execute_code"), json.dumps({"code": code}), context).text
    assert json.loads(text)["output"].startswith("False\n")
    assert TOKEN not in text and RANDOM not in text and "quotes" not in text


def test_tools_that_see_no_files_look_at_none(full: Path, workspace: LocalWorkspace) -> None:
    assert find_workspace_secrets("todo", workspace) == ()
    assert TOKEN in find_workspace_secrets("browser", workspace), "a page that was filled with it is read without it"


def test_files_are_found_near_the_root_and_no_link_is_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("A_TOKEN=somebody-elses-token")
    (root / ".env").symlink_to(tmp_path / "outside")
    deep = root / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (root / "a" / "b" / ".ENV.Production").write_text("A_TOKEN=found")
    (deep / ".env").write_text("A_TOKEN=too deep")
    (root / "node_modules").mkdir()
    (root / "node_modules" / ".env").write_text("A_TOKEN=not ours")
    (root / "a" / ".envrc").mkdir()
    assert read_env_texts(str(root)) == ("A_TOKEN=found",)
    assert read_env_texts(str(tmp_path / "gone")) == ()


def test_a_huge_tree_is_looked_at_in_no_time(root: Path) -> None:
    for name in range(60):
        (root / f"d{name}").mkdir()
        for other in range(100):
            (root / f"d{name}" / f"f{other}").touch()
    began = time.process_time()
    read_env_texts(str(root))
    assert time.process_time() - began < 2


def test_lines_that_are_no_variables_are_left() -> None:
    assert (
        list(find_secrets(["no equals\n=x\n1A=long-enough-1234567890\nTOKEN=\nTOKEN=short\n# TOKEN=commented-out\n"]))
        == []
    )
    assert list(find_secrets(["PASSWORD=abcdefgh # the real one"])) == ["abcdefgh"]


@pytest.fixture(params=["bubblewrap", "landlock"])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path, working(request.param), network=Network.NONE) as made:
        yield made


def test_outside_the_workspace_cat_reads_no_more_of_secrets_than_read_file(here: Machine) -> None:
    for name in SECRETS:
        path = str(here.home / name)
        with pytest.raises(WorkspaceError):
            here.workspace.read_bytes(path)
        said = here(f"cat {path}; cat < {path}; head -c 99 {path}; python3 -c 'print(open(\"{path}\").read())'")
        assert SECRET.encode() not in said.output, name
    for name in ("/etc/shadow", "/etc/gshadow", "/proc/1/environ"):
        with pytest.raises(WorkspaceError):
            here.workspace.read_bytes(name)
        assert b"root:" not in here(f"cat {name}").output and b"PATH=" not in here(f"cat {name}").output, name
