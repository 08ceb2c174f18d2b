"""Derive the ids of traces and spans from what stands in rows.

So nothing has to be carried from process to process, and nothing is lost with one: every process that works on a run
computes the same trace and the same parent (W3C Trace Context, https://www.w3.org/TR/trace-context/).
"""

from __future__ import annotations

import hashlib


def derive_trace_id(root_id: str) -> int:
    """Derive the trace of a chain of runs from the id of its first run."""
    return int.from_bytes(_compute_digest("trace", root_id)[:16], "big")


def derive_run_span_id(run_id: str) -> int:
    """Derive the span of a run, which is the parent of all that is done for it."""
    return int.from_bytes(_compute_digest("run", run_id)[:8], "big")


def derive_step_span_id(token: str) -> int:
    """Derive the span of a step from the token of its claim, which no other claim has."""
    return int.from_bytes(_compute_digest("step", token)[:8], "big")


def build_traceparent(root_id: str, run_id: str) -> str:
    """Build the trace header for messages about a run."""
    return f"00-{derive_trace_id(root_id):032x}-{derive_run_span_id(run_id):016x}-01"


def _compute_digest(kind: str, name: str) -> bytes:
    return hashlib.sha256(f"{kind}:{name}".encode()).digest()
