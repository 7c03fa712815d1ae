"""The outer process of a slot: it only lowers the slot's priority, and waits for process 1."""

import os
import time
from collections.abc import Callable

NICE = 5
"""The priority below the machine's other work, so that 16 programs at once do not hold up the event
loop that waits for them."""
GIVE_WAY_TRIES = 100
PROMPT_S = 0.5
"""The time in which process 1 of an image's slot, for which a caller waits, is ready at the full
priority of the machine's other work."""


def give_way() -> Callable[[], bool]:
    """Return a function that tries to lower the priority of this process's group below the
    machine's other work, and returns False if that has to wait.

    If each session is a group for the scheduler, nice counts within the group only. The nice value
    of the group (https://man7.org/linux/man-pages/man7/sched.7.html, "The autogroup feature") can
    be changed by a user ten times per second, for all slots together.
    """
    try:
        file = os.open("/proc/self/autogroup", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return lambda: True  # a kernel without autogroups

    def lower_group() -> bool:
        try:
            os.write(file, str(NICE).encode())
        except BlockingIOError:
            return False
        return True

    return lower_group


def watch(first: int, lower_group: Callable[[], bool], not_before: float) -> None:
    """Lower the priority of the group, not before a time, and wait for the end of process 1."""
    for _ in range(GIVE_WAY_TRIES):
        if os.waitpid(first, os.WNOHANG)[0]:
            return
        if time.monotonic() >= not_before and lower_group():
            break
        time.sleep(0.1)
    os.waitpid(first, 0)
