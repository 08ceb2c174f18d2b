"""Recovery: what follows a request that failed or a reply that cannot be used. Pure."""
