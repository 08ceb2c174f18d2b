"""Messages of people from chat platforms: the handler of one message, and the role that polls platforms for them."""
