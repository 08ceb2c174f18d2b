"""A program that answers one question when it is told, at the same moment as others. Standard library only.

Each line of its input is a JSON object with ``host``, ``port``, ``path``, ``key`` and ``at`` (epoch seconds to wait
for); each gets one line: the status, or 0 when the connection broke.
"""

import http.client
import json
import sys
import time

for line in sys.stdin:
    told = json.loads(line)
    connection = http.client.HTTPConnection(told["host"], told["port"], timeout=120)
    try:
        connection.connect()
        time.sleep(max(0.0, told["at"] - time.time()))
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {told['key']}"}
        connection.request("POST", told["path"], json.dumps(told["body"]), headers)
        status = connection.getresponse().status
    except OSError:
        status = 0
    except http.client.HTTPException:
        status = 0
    connection.close()
    print(status, flush=True)
