"""Judgements about what may be run, sent and shown: commands, threats, text of strangers, secrets. Pure."""
