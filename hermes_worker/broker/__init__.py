"""The only publisher of hints, and kombu's transport without its waste."""
