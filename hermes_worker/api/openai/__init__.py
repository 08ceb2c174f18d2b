"""OpenAI's API as a dialect: a request becomes a submission; what the rows say becomes OpenAI's objects and streams.

It keeps nothing. Ids are made of ours: ``chatcmpl-`` and ``resp_`` of a run's, ``conv_`` of a session's, so that every
replica reads them alike.
"""
