"""The quick-starts in docs/openai.md, played with the stock clients against a service with real workers."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.commandline import CommandLine, Running

pytestmark = pytest.mark.e2e
DOCUMENT = (Path(__file__).parents[2] / "docs" / "openai.md").read_text(encoding="utf-8")
Shared = tuple[CommandLine, Running]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


def environment(shared: Shared, tmp_path: Path) -> dict[str, str]:
    hermes, up = shared
    url = up.wait_for_line(r"API +(http://\S+)")[1]
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": (hermes.home / "api.key").read_text().strip(),
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
    }


def played(command: list[str], shared: Shared, tmp_path: Path) -> str:
    done = subprocess.run(
        command, env=environment(shared, tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def needed(script: str) -> str:
    """The package that a script begins with."""
    found = re.search(r"^(?:from|import) (\w+)", script, re.MULTILINE)
    assert found
    return found[1]


@pytest.mark.parametrize("script", blocks("python"))
def test_a_quick_start_for_python_runs_unmodified(shared: Shared, tmp_path: Path, script: str) -> None:
    if importlib.util.find_spec(needed(script)) is None:
        pytest.skip(f"{needed(script)} is not installed: pip install -e '.[sdk-test]'")
    said = played([sys.executable, "-c", script], shared, tmp_path)
    assert len(said.strip()) > 10


def test_the_ai_sdk_runs_unmodified(shared: Shared, tmp_path: Path) -> None:
    """``HERMES_TEST_AI_SDK`` names a directory in which somebody has said ``npm install ai @ai-sdk/openai``."""
    modules = Path(os.environ.get("HERMES_TEST_AI_SDK", ".")) / "node_modules"
    if not (modules / "@ai-sdk" / "openai").is_dir() or shutil.which("node") is None:
        pytest.skip("HERMES_TEST_AI_SDK names no directory with 'ai' and '@ai-sdk/openai', or there is no node")
    (script,) = blocks("js")
    (tmp_path / "node_modules").symlink_to(modules.resolve())
    (tmp_path / "start.mjs").write_text(script, encoding="utf-8")
    assert len(played(["node", "start.mjs"], shared, tmp_path).strip()) > 10


def test_llm_runs_unmodified(shared: Shared, tmp_path: Path) -> None:
    if importlib.util.find_spec("llm") is None:
        pytest.skip("llm is not installed: pip install -e '.[sdk-test]'")
    (command,) = re.findall(r"^llm .*$", DOCUMENT, re.MULTILINE)
    assert len(played(["sh", "-c", command], shared, tmp_path).strip()) > 10
