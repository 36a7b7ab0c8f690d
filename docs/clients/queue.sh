#!/bin/sh
# One job from add to finish, with curl and sed. Use a topic of your own: whatever is popped here is finished.
#
#   DELAYTASKS_URL=https://tasks.example.com/api/queue/ DELAYTASKS_TOKEN=... TOPIC=... sh queue.sh
set -eu
: "${DELAYTASKS_URL:?the address of the queue}" "${DELAYTASKS_TOKEN:?a token}" "${TOPIC:?the topic of the jobs}"

# The answer to a command. The token goes through a pipe: arguments of a process can be seen by everybody.
ask() {
    printf 'header = "Authorization: Bearer %s"\n' "$DELAYTASKS_TOKEN" |
        curl --config - --silent --show-error --fail-with-body --max-time 40 \
            --header 'Content-Type: application/json' --data "$1" "$DELAYTASKS_URL"
}

# A field of the answer on stdin. Enough for plain ids and numbers; a real program reads JSON.
field() { sed -n 's/^.*"'"$1"'": *"\{0,1\}\([^",}]*\).*$/\1/p'; }

# Ends with the server's reason unless it says yes.
expect() {
    case $1 in
    *'"success":true'* | *'"success": true'*) ;;
    *) echo "refused: $1" >&2 && exit 1 ;;
    esac
}

id="$TOPIC:$(date +%s)-$$"
answer=$(ask '{"command": "add", "topic": "'"$TOPIC"'", "id": "'"$id"'", "delay": 1, "TTR": 60, "body": null}')
expect "$answer"
echo "added $id, due in 1 s"

# Waits for up to 30 s; an empty queue is a success without an id.
answer=$(ask '{"command": "pop", "topic": "'"$TOPIC"'", "wait": 30}')
expect "$answer"
id=$(printf '%s' "$answer" | field id)
attempt=$(printf '%s' "$answer" | field attempt)
test -n "$id" || { echo "nothing was due" && exit 0; }
echo "popped $id, attempt $attempt"

# The work is done here, within the TTR. The attempt is the fence: a finish that comes too late is refused.
answer=$(ask '{"command": "finish", "id": "'"$id"'", "topic": "'"$TOPIC"'", "attempt": '"$attempt"'}')
expect "$answer"
echo "finished $id"
