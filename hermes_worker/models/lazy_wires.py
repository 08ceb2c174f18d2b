"""Import the implementation of a catalogue row when it is first needed: an SDK takes half a second to import, and no
process needs all of them; a scheduler needs none.
"""

from __future__ import annotations

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.extension import load_reference
from hermes_worker.models.base import Provider
from hermes_worker.models.catalog import list_wire_rows
from hermes_worker.models.endpoint import Endpoint


def load_provider(wire: str, endpoint: Endpoint) -> Provider:
    """Build the provider that speaks ``wire`` to ``endpoint``. Raises ``ConfigurationError`` when an optional
    dependency is missing.
    """
    row = list_wire_rows()[wire]
    try:
        implementation = load_reference(row.implementation)
    except ConfigurationError as error:
        missing = error.__cause__
        if not row.extra or not isinstance(missing, ModuleNotFoundError):
            raise
        raise ConfigurationError(
            f"the wire {row.name!r} needs {missing.name!r}: pip install 'hermes-worker[{row.extra}]'"
        ) from error
    built: Provider = implementation(endpoint)
    return built
