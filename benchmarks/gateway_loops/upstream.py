"""A model with an immediate, constant reply: as an engine, and as an OpenAI endpoint.

    python -m benchmarks.gateway_loops.upstream SAMPLED_TOKENS

It prints its URL. `/inference/v1/generate` streams one event, as an engine does whose reply fits
one `stream_interval`; `/v1/chat/completions` returns a complete reply.
"""

from __future__ import annotations

import asyncio
import json
import sys

import msgspec
import uvloop

from agentgym_rl.core import version_label
from agentgym_rl.runtime import Receive, Scope, Send, read_body, serving
from agentgym_rl.runtime.http_server import reply

from .texts import ids_of, text_of, tokenizer

_LIMIT_BYTES = 1 << 24


def _generated(num_tokens: int) -> bytes:
    end = tokenizer().token_to_id("<|im_end|>")
    ids = [*ids_of(num_tokens - 1), end]
    choice = {
        "index": 0,
        "token_ids": ids,
        "logprobs": {"content": [{"token_id": id, "logprob": -0.25} for id in ids]},
        "finish_reason": "stop",
        "weight_versions": [{"version": version_label(0), "start": 0, "end": len(ids)}],
        "decode_times": [float(number) for number in range(len(ids))],
    }
    event = msgspec.json.encode({"request_id": "r", "choices": [choice]})
    return b"data: " + event + b"\n\ndata: [DONE]\n\n"


def _completed(num_tokens: int) -> bytes:
    message = {"role": "assistant", "content": text_of(num_tokens - 1)}
    usage = {"prompt_tokens": 1, "completion_tokens": num_tokens, "total_tokens": num_tokens + 1}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    body = {"id": "c", "object": "chat.completion", "created": 0, "model": "m"}
    return msgspec.json.encode({**body, "choices": [choice], "usage": usage})


async def main(num_tokens: int) -> None:
    """Serve until standard input ends."""
    generated, completed = _generated(num_tokens), _completed(num_tokens)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive, limit_bytes=_LIMIT_BYTES)
        if scope["path"] == "/inference/v1/generate":
            await reply(send, 200, generated, content_type="text/event-stream")
        else:
            await reply(send, 200, completed)

    async with serving(app, host="127.0.0.1", port=0) as url:
        print(json.dumps({"url": url}), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))  # as vLLM does
