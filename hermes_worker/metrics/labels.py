"""The values that a label may have in this process; every other value becomes ``other``."""

from __future__ import annotations

from collections.abc import Mapping

from hermes_worker import installed
from hermes_worker.core.pricing import own_price
from hermes_worker.settings import Settings
from hermes_worker.settings.kinds import named_model

OTHER = "other"
_FROM_OUTSIDE = frozenset({"model", "platform"})
"""Labels whose values come from callers; the values of the others come from closed lists of the product."""


class LabelValues:
    """The known models and platforms."""

    def __init__(self, settings: Settings) -> None:
        self._known: Mapping[str, frozenset[str]] = {
            "model": frozenset(_models(settings)),
            "platform": frozenset(
                {
                    "local",
                    "origin",
                    "all",
                    "webhook",
                    "apprise",
                    *(name.lower() for name in installed.current().channels),
                }
            ),
        }

    def known(self, label: str) -> tuple[str, ...]:
        """The values of ``model`` or ``platform`` beside ``other``, in order."""
        return tuple(sorted(self._known[label]))

    def bounded(self, label: str, value: str) -> str:
        """``value``, or ``other`` when it is not known to the settings or the extensions in force."""
        return value if label not in _FROM_OUTSIDE or value in self._known[label] else OTHER


def _models(settings: Settings) -> set[str]:
    model = settings.model
    chains = (
        model.fallbacks,
        model.compression_providers,
        model.title_providers,
        model.approval_providers,
        model.vision_providers,
        model.web_extract_providers,
    )
    named = {named_model(text).model for chain in chains for text in chain}
    priced = {own_price(text)[0][1] for text in model.prices}
    return {name for name in (model.name, settings.delegation.model, *named, *priced) if name}
