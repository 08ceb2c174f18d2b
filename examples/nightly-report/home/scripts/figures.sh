printf 'orders yesterday: 214 (+12%%)\nrefunds: 3\nslowest page: /search, 1.9 s\n'
