"""``hermes-worker top``: the fleet at a glance and keys to act on it, over the HTTP API alone.

``fleet`` turns the API's documents into facts, ``view`` lays them out and decides what a key means; they do no I/O.
``watching`` calls the API again and again, ``full_screen`` draws and reads keys.
"""
