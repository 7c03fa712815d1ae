"""Reward functions and processors of all kinds, imported by name as a user's are."""

import asyncio
import signal
import threading
import time


def length(completion, row):
    return len(completion) - row["least"]


async def slow_length(completion, row):
    await asyncio.sleep(0.001)
    return length(completion, row)


def parts(completion, row):
    row["least"] = 99  # its own copy: nobody else sees it
    return {"reward": 2.5, "style": 1, "right": True}


def thread_name(completion, row):
    return {"reward": threading.current_thread() is not threading.main_thread()}


def broken(completion, row):
    return row["nothing"]


def exhausted(completion, row):
    return next(iter(()))


def partly(completion, row):
    return {"reward": None, "style": 1, "right": None, "short": 0.5}


def apart(completion, row):
    return {"reward": 2.0, "style": None}


def nothing_applies(completion, row):
    return {"reward": None, "right": None}


def no_number(completion, row):
    return "good"


def no_reward(completion, row):
    return {"right": 1.0}


def infinite(completion, row):
    return float("inf")


async def hanging(completion, row):
    await asyncio.sleep(60)


def hanging_on_request(completion, row):
    if completion == "hang":
        HELD.wait(60)
    return 1.0


HELD = threading.Event()


def hungry(completion, row):
    return len(bytearray(1 << 40))


def looping(completion, row):
    while True:
        time.sleep(1)


def dying(completion, row):
    signal.raise_signal(signal.SIGKILL)


def one_argument(completion):
    return 0.0


def of_a_column(completion, answer):
    return float(completion == answer)


def of_two_columns(text, key):
    return float(text == key)


def swapped(row, completion):
    return float(len(completion) == 5)


def typed(c, r: str) -> float:
    return float(c == r)


def batched(completions, prompts, **columns):
    return [0.0 for _ in completions]


def of_three(completion, row, answer):
    return 0.0


def of_labels(queries, labels):
    return [0.0 for _ in queries]


def with_a_default(completion, row, answer=None):
    return float(completion == answer)


def with_columns(completion, row, **columns):
    return float(completion == columns.get("answer"))


def thinks_by_name(completion, row, *, reasoning=""):
    return float(len(reasoning))


def thinks(completion, row, reasoning):
    return float(len(reasoning))


def never_thinks(completion, row):
    return 0.0


NUMBER = 7


def halves(row):
    """Two tasks of a row, none of one that says so."""
    if row.get("skip"):
        return None
    return [{"prompt": f"{row['prompt']} ({part})", "least": part} for part in (1, 2)]


def heavy(row):
    return row | {"weight": 3.0}


def no_row(row):
    return "a row"


def by_other_names(said, wanted):
    return float(said == wanted)


class Unmade:
    async def __call__(self, completion, row):
        return 1.0


unmade = Unmade()


def leaving(completion, row):
    raise SystemExit(3)
