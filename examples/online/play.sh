#!/usr/bin/env bash
# One group of episodes for `arl serve`, with nothing but curl and Python for the JSON.
#
#   arl serve --run runs/mine --rollout.group_size=2 --rollout.groups_per_batch=1 --steps=1 &
#   examples/online/play.sh runs/mine
set -euo pipefail
told="$1/serve.json"

field() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }
base_url=$(field base_url <"$told") admin_url=$(field admin_url <"$told")
admin_key=$(field admin_key <"$told")

admin() { # METHOD PATH BODY; asks again on 429
    curl -sS --fail-with-body --retry 60 --retry-delay 1 -X "$1" "$admin_url/$2" \
        -H "authorization: Bearer $admin_key" -H 'content-type: application/json' -d "$3"
}

for episode in 1 2; do
    session=$(admin POST sessions '{"task": "add-17-25"}')
    id=$(field id <<<"$session") key=$(field api_key <<<"$session")
    reply=$(curl -sS --fail-with-body "$base_url/chat/completions" \
        -H "authorization: Bearer $key" -H 'content-type: application/json' \
        -d '{"model": "bundled", "messages": [{"role": "user", "content": "What is 17 + 25?"}]}')
    reward=$(python3 -c 'import sys; print(float("42" in sys.stdin.read()))' <<<"$reply")
    admin POST "sessions/$id/close" "{\"reward\": $reward}"
    echo "  episode $episode: reward $reward"
done
admin GET status '{}'
echo
