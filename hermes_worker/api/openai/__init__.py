"""OpenAI's API as a dialect: a request becomes a submission, and rows become OpenAI's objects and streams.

It stores nothing. Its ids are made of ours: ``chatcmpl-`` and ``resp_`` of a run's, ``conv_`` of a session's, so that
every replica reads them alike.
"""
