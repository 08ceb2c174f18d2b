"""``hermes-worker top``: the fleet at a glance and what can be done about it, over the HTTP API alone.

``fleet`` makes of the API's documents what is shown, ``view`` lays it out and decides what a key means; they do no I/O.
``watching`` asks the API again and again, ``full_screen`` draws and reads keys.
"""
