"""Messages from people: one pure module per platform, and the declarations that name them."""
