"""``hermes-worker chat``: a conversation with an agent, over the HTTP API and its streams alone.

``blocks`` and ``turn`` decide what is shown of a run, ``sayings`` what a person means by a line; they do no I/O.
``talk`` asks the API and follows runs, ``painting`` writes, ``prompting`` reads.
"""
