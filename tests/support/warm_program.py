"""``hermes-worker`` for a shell that plays commands: it asks the warm server beside it for one, passes signals on, and
ends as the command ends. When it is killed, the command is killed."""

import json
import os
import signal
import socket
import sys

PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    request = {"arguments": sys.argv[1:], "environ": dict(os.environ), "cwd": os.getcwd()}  # noqa: PTH109
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.connect(os.path.join(os.path.dirname(__file__), "socket"))  # noqa: PTH118, PTH120
    ended, status_writer = os.pipe()
    socket.send_fds(line, [json.dumps(request).encode()], [0, 1, 2, status_writer])
    os.close(status_writer)
    pid = int(line.recv(64))
    for number in PASSED_ON:
        signal.signal(number, lambda number, frame: os.kill(pid, number))
    status = int(os.read(ended, 64) or b"70")
    if status < 0:
        if -status in PASSED_ON:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


main()
