"""Flower's page of tasks in a real browser: what people see there, and the picture of it in the documents."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image
from support.flower import PASSWORD, USER, FlowerPage, environ_of, flower
from support.rig import rig_on, sink_call, until

from hermes_worker.broker.queue import TaskName

pytestmark = pytest.mark.machine

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "flower.png"
SIZE = (1440, 720)
RUNS = 4
SHOWN_MS = 20_000
"""Of the page's own time, which does not pass while a request is under way."""


def chromium(page: FlowerPage, path: str, directory: Path, *options: str) -> str:
    """What Chromium prints for a page."""
    program = shutil.which("chromium")
    assert program, "install Debian's chromium: apt-get install chromium"
    address = f"{page.address.replace('://', f'://{USER}:{PASSWORD}@')}{path}"
    command = [
        *(program, "--headless", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
        *(f"--user-data-dir={directory}", f"--window-size={SIZE[0]},{SIZE[1]}", f"--virtual-time-budget={SHOWN_MS}"),
        *options,
        address,
    ]
    environ = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(directory)}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=90, check=True).stdout


def test_flowers_page_shows_tasks_with_names_runs_and_runtimes(
    tmp_path: Path, broker_url: str, request: pytest.FixtureRequest
) -> None:
    database = f"sqlite:///{tmp_path / 'hermes.db'}"
    events = {"HERMES_WORKER_EVENTS": "true"}
    with (
        rig_on(tmp_path, database_url=database, broker_url=broker_url, workers_per_role=1, more_environ=events) as rig,
        flower(environ_of(rig, broker_url)) as page,
    ):
        run_ids = [rig.submit([{"calls": [sink_call("once", f"{number}")]}]) for number in range(RUNS)]
        rig.ended(*run_ids)

        def has_all() -> bool | None:
            ended = [task for task in page.json("/api/tasks").values() if task["runtime"]]
            return len(ended) >= 3 * RUNS or None

        until(has_all, "Flower to hear of all tasks")
        document = chromium(page, "/tasks", tmp_path / "browser", "--dump-dom")
        for word in (*run_ids, TaskName.ITERATE, TaskName.CALL_TOOL, "SUCCESS", "model-system.", "tools."):
            assert word in document, word
        shot = tmp_path / "flower.png"
        chromium(page, "/tasks", tmp_path / "browser", f"--screenshot={shot}")
    with Image.open(shot) as image:
        assert image.size == SIZE
        assert len(image.convert("RGB").getcolors(SIZE[0] * SIZE[1]) or ()) > 100, "the page is not blank"
    if request.config.getoption("update_pictures"):
        with Image.open(shot) as image:
            image.convert("RGB").quantize(128).save(PICTURE, optimize=True)
    with Image.open(PICTURE) as image:
        assert image.size == SIZE, "run this test with --update-pictures"
