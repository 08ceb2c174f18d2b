"""The crash lab: run a fleet, break it on purpose, and check that nothing was lost, repeated or miscounted.

``plan`` turns a seed into a schedule of faults, ``fleet`` and ``stack`` are what is broken, ``sink`` are tools that
write down every effect outside the database, ``audit`` compares database and sink afterwards, ``report`` prints.
"""
