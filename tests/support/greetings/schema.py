from __future__ import annotations

from hermes_worker.resource import Resource


class GreetingObject(Resource):
    """A greeting."""

    text: str
