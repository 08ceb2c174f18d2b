"""One module per platform. Each has ``Credentials``, ``build`` (makes the request for a part), ``classify`` (judges a
response) and ``send``, the exchange of the two; where a platform needs several requests, ``send`` makes them all."""
