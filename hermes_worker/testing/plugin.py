"""The fixtures for pytest, which finds this module by itself. It imports nothing of the product before one is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from hermes_worker.testing.stack import AgentStack


@pytest.fixture
def hermes_stack(tmp_path: Path) -> Iterator[Callable[..., AgentStack]]:
    """Make an ``AgentStack`` in this test's temporary directory: ``hermes_stack(model, tools=[...])``. It is closed
    after the test."""
    with ExitStack() as stacks:

        def make_stack(model: Any, **options: Any) -> AgentStack:
            from hermes_worker.testing.stack import AgentStack

            return stacks.enter_context(AgentStack(tmp_path / "hermes", model, **options))

        yield make_stack
