"""A session and what clients may do to its conversations; several test files share it."""

import asyncio
import copy
import json

from hypothesis import strategies as st

from agentgym_rl.config import GatewayConfig

SYSTEMS = ["Solve.", "You write titles."]
TEXT = st.text(st.sampled_from("az é✓漢\n<"), max_size=6)
REPLIES = ["text", "call", "malformed", "thought", "thoughtful call", "cut", "stop"]
REPLY = st.tuples(st.sampled_from(REPLIES), TEXT)
KINDS = ["go", "go", "go", "again", "edit", "compact", "helper", "samples"]
STEP = st.tuples(st.sampled_from(KINDS), st.integers(0, 99), TEXT)
STOP = "STOP"
"""What clients ask replies to stop at."""


class World:
    """Conversations of one session, and what clients may do to them."""

    def __init__(self, words, chat, speak, replies, *, ends=("<|im_end|>",) * 2, **config):
        """`speak`: text to tokens. `ends`: of turns that call tools, and of others."""
        self.words = words
        self.said = 0
        self.speak = speak
        self.replies = replies
        self.ends = ends
        self.scene = words.Stage(chat, self.reply, config=GatewayConfig(**config))
        self.session = self.scene.open()
        self.session.main_tools = ["calculator"]
        self.talks = []
        self.ask(0, [{"role": "user", "content": "3*4?"}])

    def reply(self, _):
        """Every reply is another one, or rows could not be told apart."""
        kind, text = self.replies[self.said % len(self.replies)]
        self.said += 1
        text = f"{self.said}: {text}"
        if kind == "cut":
            return self.words.Say(self.speak(text), "length")
        if kind == "stop":
            return self.words.Say(self.speak(text + STOP), "stop")
        if kind in ("call", "thoughtful call", "malformed"):
            call = json.dumps({"name": "calculator", "arguments": {"expression": text}})
            text = f"<tool_call>\n{call[:-1] if kind == 'malformed' else call}\n</tool_call>"
        if kind in ("thought", "thoughtful call"):
            text = f"<think>hm {self.said}</think>{text}"
        return self.speak(text + self.ends["call" not in kind])

    def ask(self, helper, messages, **fields):
        """A request, and the conversation with its reply."""
        head = [{"role": "system", "content": SYSTEMS[helper]}]
        tools = {} if helper else {"tools": [self.words.CALCULATOR]}
        fields = {"stop": STOP, **fields}
        body = asyncio.run(
            self.scene.post(self.session, messages=head + messages, **tools, **fields)
        ).body
        chosen = body["choices"][-1]["message"]
        self.talks.append((helper, [*messages, chosen]))

    def step(self, kind, number, text):
        helper, talk = self.talks[number % len(self.talks)]
        talk = copy.deepcopy(talk)
        if kind == "again":
            self.ask(helper, talk[:-1])
        elif kind == "samples":
            self.ask(helper, talk + self.words.observe(talk[-1], text), n=2)
        elif kind == "compact":
            self.ask(helper, [{"role": "user", "content": f"So far: {text}"}, *talk[-1:], _user()])
        elif kind == "helper":
            self.ask(1 - helper, [_user(f"Name this: {text}")])
        else:
            if kind == "edit":
                _edit(talk[number % len(talk)], text)
            self.ask(helper, talk + self.words.observe(talk[-1], text))


def _user(text="And?"):
    return {"role": "user", "content": text}


def _edit(message, text):
    if message.get("tool_calls"):
        arguments = json.dumps({"expression": text})
        message["tool_calls"][0]["function"]["arguments"] = arguments
    else:
        message["content"] = f"{text}!"
