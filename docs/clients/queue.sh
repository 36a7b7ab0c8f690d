#!/bin/sh
# One job from add to finish, with curl and sed. Use a topic of your own: the script finishes any job that it pops.
#
#   DELAYTASKS_URL=https://tasks.example.com/api/queue/ DELAYTASKS_TOKEN=... TOPIC=... sh queue.sh
set -eu
: "${DELAYTASKS_URL:?the URL of the queue}" "${DELAYTASKS_TOKEN:?a token}" "${TOPIC:?the topic of the jobs}"

# Send a command and print the answer. The token goes through a pipe: all users can see the arguments of a process.
send() {
    printf 'header = "Authorization: Bearer %s"\n' "$DELAYTASKS_TOKEN" |
        curl --config - --silent --show-error --fail-with-body --max-time 40 \
            --header 'Content-Type: application/json' --data "$1" "$DELAYTASKS_URL"
}

# Print the id or the attempt of the answer on stdin. The job's body stands between them and may have fields of these
# names. Enough for simple ids; use a JSON parser in a real program.
id_of() { sed -n 's/^{[^{]*"id": *"\([^"]*\)".*$/\1/p'; }
attempt_of() { sed -n 's/^.*"attempt": *\([0-9]*\).*$/\1/p'; }

# Exit with the answer unless the command succeeded.
expect() {
    case $1 in
    *'"success":true'* | *'"success": true'*) ;;
    *) echo "refused: $1" >&2 && exit 1 ;;
    esac
}

id="$TOPIC:$(date +%s)-$$"
answer=$(send '{"command": "add", "topic": "'"$TOPIC"'", "id": "'"$id"'", "delay": 1, "TTR": 60, "body": null}')
expect "$answer"
echo "added $id, due in 1 s"

# Wait for up to 30 s. The answer of an empty queue is a success without an id.
answer=$(send '{"command": "pop", "topic": "'"$TOPIC"'", "wait": 30}')
expect "$answer"
id=$(printf '%s' "$answer" | id_of)
attempt=$(printf '%s' "$answer" | attempt_of)
test -n "$id" || { echo "nothing was due" && exit 0; }
echo "popped $id, attempt $attempt"

# Do the work here, within the TTR. The attempt is the fencing token: a late finish is refused.
answer=$(send '{"command": "finish", "id": "'"$id"'", "topic": "'"$TOPIC"'", "attempt": '"$attempt"'}')
expect "$answer"
echo "finished $id"
