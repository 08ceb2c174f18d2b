"""One module per platform. Each has ``Credentials``, ``build`` (a part to its request), ``classify`` (a response to its
meaning) and ``send``, the exchange of the two; where a platform needs several requests, ``send`` is the whole."""
