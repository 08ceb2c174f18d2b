"""What Prometheus reads of a process: one registry, one table of metrics, one small server."""
