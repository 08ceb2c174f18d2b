"""The values that a label may have in this process; every other value becomes ``other``."""

from __future__ import annotations

from collections.abc import Mapping

from hermes_worker import installed
from hermes_worker.core.pricing import parse_own_price
from hermes_worker.settings import Settings
from hermes_worker.settings.kinds import parse_named_model

OTHER = "other"
_FROM_OUTSIDE = frozenset({"model", "platform"})
"""Labels whose values come from callers; the values of the others come from closed lists of the product."""


class LabelValues:
    """The known models and platforms."""

    def __init__(self, settings: Settings) -> None:
        self._known: Mapping[str, frozenset[str]] = {
            "model": frozenset(_find_models(settings)),
            "platform": frozenset(
                {
                    "local",
                    "origin",
                    "all",
                    "webhook",
                    "apprise",
                    *(name.lower() for name in installed.get_installed().channels),
                }
            ),
        }

    def list_known(self, label: str) -> tuple[str, ...]:
        """The values of ``model`` or ``platform`` beside ``other``, in order."""
        return tuple(sorted(self._known[label]))

    def restrict_value(self, label: str, value: str) -> str:
        """``value``, or ``other`` when it is not known to the settings or the extensions in force."""
        return value if label not in _FROM_OUTSIDE or value in self._known[label] else OTHER


def _find_models(settings: Settings) -> set[str]:
    model = settings.model
    chains = (
        model.fallbacks,
        model.compression_providers,
        model.title_providers,
        model.approval_providers,
        model.vision_providers,
        model.web_extract_providers,
    )
    named = {parse_named_model(text).model for chain in chains for text in chain}
    priced = {parse_own_price(text)[0][1] for text in model.prices}
    return {name for name in (model.name, settings.delegation.model, *named, *priced) if name}
