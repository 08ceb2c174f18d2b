"""The OpenAPI document, judged by linters and by generators of clients that people use. ``HERMES_TEST_OPENAPI`` names a
directory in which somebody has said ``npm install @stoplight/spectral-cli @redocly/cli @hey-api/openapi-ts orval
typescript``; ``HERMES_TEST_STOCK`` a virtual environment with openapi-python-client."""

from __future__ import annotations

import compileall
import json
import os
import subprocess
from pathlib import Path

import pytest
from serving import Served

pytestmark = pytest.mark.slow
PROGRAMS = Path(os.environ.get("HERMES_TEST_OPENAPI", ".")) / "node_modules"


@pytest.fixture
def place(api: Served, tmp_path: Path) -> Path:
    """A directory with the document in both versions."""
    for name, query in (("3.1", ""), ("3.2", "?openapi=3.2")):
        document = api.http.get(f"/openapi.json{query}").json()
        assert document["openapi"].startswith(name)
        (tmp_path / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
    return tmp_path


def play(place: Path, program: str, *arguments: str) -> None:
    if not (PROGRAMS / ".bin" / program).exists():
        pytest.skip(f"HERMES_TEST_OPENAPI names no directory with the program {program}")
    if not (place / "node_modules").exists():
        (place / "node_modules").symlink_to(PROGRAMS.resolve())
    done = subprocess.run(
        [str(PROGRAMS / ".bin" / program), *arguments], cwd=place, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]


def test_spectral_finds_nothing(place: Path) -> None:
    (place / ".spectral.yaml").write_text('extends: ["spectral:oas"]\n')
    play(place, "spectral", "lint", "3.1.json", "--fail-severity", "warn")


@pytest.mark.parametrize("version", ["3.1", "3.2"])
def test_redocly_finds_no_error(place: Path, version: str) -> None:
    play(place, "redocly", "lint", f"{version}.json")


def test_clients_for_typescript_compile_strictly(place: Path) -> None:
    play(place, "openapi-ts", "-i", "3.1.json", "-o", "hey")
    play(place, "orval", "--input", "3.1.json", "--output", "orval/api.ts", "--client", "fetch")
    options = {
        "strict": True,
        "noEmit": True,
        "skipLibCheck": True,
        "module": "ESNext",
        "moduleResolution": "bundler",
        "target": "ES2022",
        "lib": ["ES2022", "DOM", "DOM.Iterable"],
    }
    (place / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "include": ["hey", "orval"]}))
    play(place, "tsc", "-p", "tsconfig.json")


def test_a_client_for_python_is_generated(place: Path) -> None:
    programs = [Path(each) / "bin/openapi-python-client" for each in os.environ.get("HERMES_TEST_STOCK", "").split(":")]
    if (program := next((each for each in programs if each.exists()), None)) is None:
        pytest.skip("HERMES_TEST_STOCK names no virtual environment with openapi-python-client")
    told = subprocess.run(
        [str(program), "generate", "--path", "3.1.json", "--output-path", "client", "--meta", "none"],
        cwd=place, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert told.returncode == 0, told.stdout + told.stderr
    assert (place / "client/api/openai/create_chat_completion.py").exists(), told.stdout
    assert compileall.compile_dir(place / "client", quiet=1)
