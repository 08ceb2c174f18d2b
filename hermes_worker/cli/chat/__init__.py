"""``hermes-worker chat``: a conversation with an agent, over the HTTP API and its streams alone.

``blocks`` and ``turn`` decide what is shown of a run, ``line_parser`` parses a person's lines; they do no I/O. ``talk``
calls the API and follows runs, ``painting`` writes, ``prompting`` reads.
"""
