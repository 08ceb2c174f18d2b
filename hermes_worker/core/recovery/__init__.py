"""What becomes of a request that failed and of a reply that cannot be used. Pure."""
