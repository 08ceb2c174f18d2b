"""What a tool may ask of models beside the conversation, paid for with its call."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.messages import ModelRequest, user_body
from hermes_worker.tasks.auxiliary import Auxiliary, AuxTask
from hermes_worker.tasks.metering import Bill
from hermes_worker.tools.base import Purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolModels:
    """``tools.base.Models`` for one call."""

    auxiliary: Auxiliary
    model: str
    """Of the run."""
    call_key: str
    bill: Bill
    abort: AbortSignal
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def ask(self, purpose: Purpose, content: object) -> str:
        """Raises ``ModelCallError``."""
        request = ModelRequest(model=self.model, messages=(user_body(content),))
        ticket = f"{self.call_key}:{next(self._numbers)}"
        asked = self.auxiliary.ask(AuxTask(purpose), request, self.abort, ticket=ticket, bill=self.bill)
        return asked.text
