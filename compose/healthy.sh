#!/usr/bin/env bash
# Whether the first process of this container does its work, by its role: the health check of the image. It starts no
# Python, so it costs milliseconds.
#
#   API        it can accept runs: the database answers (GET /health/detailed, with its key)
#   Flower     it serves
#   worker     it renewed its row in the database within a minute (--alive-file)
#   scheduler  it looked for due jobs within a minute (--alive-file)
set -euo pipefail

# answers PORT PATH [HEADER]: whether this container answers a GET with 200.
answers() {
    local status
    exec 3<>"/dev/tcp/127.0.0.1/$1"
    printf 'GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s\r\n' "$2" "${3:+$3$'\r\n'}" >&3
    read -r _ status _ <&3
    [ "$status" = 200 ]
}

server_key() {
    cat "${HERMES_SERVER_KEY_FILE:-${HERMES_HOME:-$HOME/.hermes-worker}/api.key}"
}

command=$(tr '\0' ' ' < /proc/1/cmdline)
case $command in
    *flower*) answers 5555 /healthcheck ;;
    *hermes-worker*\ api\ *) answers "${HERMES_SERVER_PORT:-8642}" /health/detailed \
        "Authorization: Bearer ${HERMES_SERVER_KEY:-$(server_key)}" ;;
    *) [ -n "$(find "${HEALTHY_FILE:-/tmp/alive}" -mmin -1)" ] ;;
esac
