"""People's messages from platforms: what becomes of one, and the role that asks platforms for them."""
