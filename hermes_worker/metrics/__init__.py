"""The metrics of a process for Prometheus: one registry, one table of metrics, one small server."""
