"""Files as trees of objects under their hashes, as git keeps them."""
