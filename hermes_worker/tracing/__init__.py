"""Traces for OpenTelemetry: one for every chain of runs. Off unless the settings name a collector."""
