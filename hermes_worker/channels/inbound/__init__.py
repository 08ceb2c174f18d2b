"""How messages of people come in: one module per platform, pure, and the declarations that name them."""
