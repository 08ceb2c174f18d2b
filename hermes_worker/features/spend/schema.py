"""What runs cost, as the API answers it, the client returns it and commands print it."""

from __future__ import annotations

from hermes_worker.resource import Resource


class SpendObject(Resource):
    """What the runs of one group cost."""

    key: str | None
    """A day in UTC (``2026-11-25``), a model, a tenant, the id of a job or of a session; ``null`` for runs that no job
    began."""
    name: str | None
    """The name of the job; the title of the session, or the name that callers gave it."""
    runs: int
    cost_usd: float | None
    """The known part of the cost; ``null`` when none is known."""
    doubtful_cost_usd: float
    """What may have been billed beside it, at most."""
    unknown_runs: int
    """Runs of which not all is known that they cost: ``cost_usd`` leaves that out."""
    unpriced_calls: int
    """Model calls whose price is not known."""
    input_tokens: int
    """Without those that were read from or written to a cache of the provider."""
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    """Among ``output_tokens``."""
    estimated_tokens: int
    """Among all these, those that the provider did not count."""
    unknown_tokens: int
    """Of requests whose outcome nobody knows, as estimated; not among the others."""
    cache_hit_ratio: float | None
    """Which part of what was sent came from a cache of the provider; ``null`` when nothing was sent."""
