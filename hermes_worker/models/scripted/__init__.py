"""A stand-in for a language model, for trying the product without a key, for tests and for benchmarks.

It is not a language model and says so. ``procedure`` decides each reply from the transcript alone: a fixed survey of
the user's directory, or the script that the user's message holds. ``server`` serves it over HTTP in OpenAI's format, so
that everything between the loop and the model is the same as with a real one.
"""
