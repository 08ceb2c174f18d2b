"""Every way to start a program of ours begins by keeping its files, its memory and its environment to itself
(``handover.begin``), or stands in a list here with the reason why it need not."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from support.samples import take_turns

ROOT = Path(__file__).parents[1]
PACKAGES = ("hermes_worker", "scheduler")
WITHOUT_SECRETS = {
    "hermes_worker.safety.redaction.rule_import": "a developer's tool: it makes one public file of another",
    "hermes_worker.workspaces.process_daemon.server": "minds one process: starts with an empty environment",
    "hermes_worker.agent.tools.document_program": "a command in a sandbox: it imports nothing of ours",
    "hermes_worker.agent.tools.script_program": "a command in a sandbox: it imports nothing of ours",
    "hermes_worker.agent.tools.treesearch": "a command in a sandbox: it imports nothing of ours",
}
"""Modules that can be run and do not begin like the others."""
PROGRAMS_OF_TEXT = {
    "hermes_worker.cli.code_watch": "imports the operator's modules, without secrets",
    "hermes_worker.workspaces.sandbox.bubblewrap": "runs in the sandbox",
    "hermes_worker.workspaces.sandbox.keeper_starter": "starts keepers with an empty environment",
}
"""Modules that start an interpreter with the text of a program."""
CELERY_APPS = ("hermes_worker", "hermes_worker.tasks", "hermes_worker.worker.app")
"""Modules that a program of somebody else's takes an application from."""
SAYS_BEGUN = """
import os, sys
from hermes_worker import settings
from hermes_worker.settings import secret_transfer as handover

def begun():
    sys.stdout.write("begun")
    sys.stdout.flush()
    os._exit(0)

def too_early(*_, **__):
    sys.exit("the settings are read before the program has begun")

handover.begin_program = begun
settings.load_settings = too_early
sys.argv = sys.argv[1:]
"""
RUN_MODULE = "import runpy; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
CALL_SCRIPT = (
    "from importlib import import_module; module, name = sys.argv[0].split(':')\ngetattr(import_module(module), name)()"
)


def modules(*words: str) -> Iterator[tuple[str, ast.Module]]:
    """Those in whose text or name one of the words stands; to parse all modules takes seconds."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            text = path.read_text("utf-8")
            if any(word in text or word == path.stem for word in words):
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), ast.parse(text)


def is_run(name: str, tree: ast.Module) -> bool:
    """Whether ``python -m`` does something with the module."""
    tests = (ast.unparse(node.test) for node in tree.body if isinstance(node, ast.If))
    return name.endswith(".__main__") or "__name__ == '__main__'" in tests


def starts_text(tree: ast.Module) -> bool:
    lists = (node.elts for node in ast.walk(tree) if isinstance(node, ast.List))
    return any(
        any("sys.executable" in ast.unparse(word) for word in words)
        and any(isinstance(word, ast.Constant) and word.value == "-c" for word in words)
        for words in lists
    )


def offers_app(tree: ast.Module) -> bool:
    """An application under a usual name, made when somebody imports the module or asks for it."""
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    names = {target.id for node in assigned for target in node.targets if isinstance(target, ast.Name)}
    asked = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__getattr__"]
    asked += [node.value for node in assigned if asked and isinstance(node.value, ast.Dict)]  # what it looks up
    names |= {str(word.value) for node in asked for word in ast.walk(node) if isinstance(word, ast.Constant)}
    return bool(names & {"app", "application", "celery", "asgi", "wsgi"})


def scripts() -> dict[str, str]:
    declared: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    return declared


MODULES = [name.removesuffix(".__main__") for name, tree in modules("__main__") if is_run(name, tree)]


def said_by(*argv: str, program: str) -> str:
    with tempfile.TemporaryDirectory() as elsewhere:
        return _said_by(argv, program, elsewhere)


def _said_by(argv: Sequence[str], program: str, folder: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", SAYS_BEGUN + program, *argv],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return f"{ended.stdout}{ended.stderr}"


def test_the_lists_name_what_there_is_and_nothing_else() -> None:
    assert set(WITHOUT_SECRETS) <= set(MODULES)
    assert {name for name, tree in modules("sys.executable") if starts_text(tree)} == set(PROGRAMS_OF_TEXT)
    apps = modules("app", "application", "celery", "asgi", "wsgi")
    assert {name for name, tree in apps if offers_app(tree)} == set(CELERY_APPS)


@pytest.mark.parametrize("name", sorted(set(MODULES) - set(WITHOUT_SECRETS)))
def test_a_module_that_is_run_begins_before_it_does_anything(name: str) -> None:
    assert said_by(name, program=RUN_MODULE) == "begun"


@pytest.mark.parametrize("name", scripts())
def test_a_command_begins_before_it_does_anything(name: str) -> None:
    assert said_by(scripts()[name], "doctor", program=CALL_SCRIPT) == "begun"


@pytest.mark.parametrize(("program", "name"), take_turns(["celery", "python -m celery"], CELERY_APPS))
def test_celerys_program_begins_before_it_does_anything(program: str, name: str) -> None:
    called = RUN_MODULE if program != "celery" else CALL_SCRIPT.replace("sys.argv[0]", "'celery.__main__:main'")
    said = said_by("celery", "-A", name, "report", program=called)
    assert said.endswith("begun"), said


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
@pytest.mark.parametrize("name", ["hermes_worker.lab.zygote", "hermes_worker.models.scripted"])
def test_programs_of_the_lab_keep_their_environment_and_their_files_to_themselves(name: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", name],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "OPENAI_API_KEY": "PLANTED"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        umask=0o022,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        with suppress(PermissionError):  # as it is for everybody but root
            assert b"PLANTED" not in Path(f"/proc/{process.pid}/environ").read_bytes()
        assert "Umask:\t0077" in Path(f"/proc/{process.pid}/status").read_text()
        core = next(line for line in Path(f"/proc/{process.pid}/limits").read_text().splitlines() if "core" in line)
        assert core.split()[4] == "0"
    finally:
        process.kill()
        with suppress(BrokenPipeError):
            process.communicate()
