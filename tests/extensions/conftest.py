from __future__ import annotations

from collections.abc import Iterator

import pytest

from hermes_worker import installed, plugins


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """What one test puts in force is gone in the next."""
    yield
    installed.put_in_force(None)
    plugins._Begun.key = plugins._Begun.installed = None
