"""What jobs collect and keep."""
