"""State in SQL: the only package that opens a database session.

Every write is a compare-and-set that names the state and the lease token it expects (invariant I2). Locks are taken
in one order, tool calls by position and then their run, so that two transactions cannot wait for each other.
"""
