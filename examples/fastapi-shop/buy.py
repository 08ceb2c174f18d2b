"""Order something, and wait until it is packed."""

import json
import sys
import time
import urllib.error
import urllib.request

SHOP = "http://127.0.0.1:8960"


def ask(path: str, method: str = "GET") -> dict:
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(f"{SHOP}{path}", method=method)) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            sys.exit(json.load(refused)["detail"])
        except urllib.error.URLError:
            time.sleep(0.5)  # the shop is still starting


order = ask(f"/orders?item={sys.argv[1]}", "POST")
while (shown := ask(f"/orders/{order['number']}"))["status"] != "packed":
    time.sleep(0.5)
print(f"order {shown['number']}, a {shown['item']}, is {shown['status']} by {order['run_id']}")
