"""Deliveries, and the routes of inbound events."""
