"""Called by the tests, in workers: good functions and bad ones."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

count = 0
NOTHING = None


def echo(*args):
    return list(args)


def add(a, b):
    return a + b


def pid():
    return os.getpid()


def counted():
    """How often this worker was asked."""
    global count
    count += 1
    return count


def sleep(seconds):
    time.sleep(seconds)
    return "slept"


def meet(folder, name):
    """Wait until two are there."""
    open(os.path.join(folder, name), "w").close()
    while len(os.listdir(folder)) < 2:
        time.sleep(0.01)
    return "met"


def slow_echo(seconds, value):
    time.sleep(seconds)
    return value


def hang():
    while True:
        pass


def hang_with_a_child():
    """The child is of the worker's group."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    return hang()


def hang_the_first_time(path):
    if not os.path.exists(path):
        open(path, "w").close()
        hang()
    return "second"


def crash(number=signal.SIGSEGV):
    os.kill(os.getpid(), number)


def leave(code):
    os._exit(code)


def deep():
    """Overflows the stack of C."""
    ctypes.string_at(0)


def raises(text):
    raise ValueError(text)


def exits():
    sys.exit("I will not")


class Unsayable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def raises_unsayable():
    raise Unsayable


def fill_memory(mb):
    return len(bytearray(mb << 20))


def big(size):
    return "x" * size


def not_json():
    return 1j


def nested(depth):
    found = []
    for _ in range(depth):
        found = [found]
    return found


def prints():
    print("to nobody")
    sys.stderr.write("to nobody")
    return "said"


def leaves_an_alarm():
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    return os.getpid()


def threads():
    """What a thread found."""
    found = []
    thread = threading.Thread(target=lambda: found.append(6 * 7))
    thread.start()
    thread.join()
    return found


def environment():
    return dict(os.environ)


def handles():
    """Open file handles: all that is left of the parent."""
    return sorted(fd for fd in range(256) if _is_open(fd))


def _is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _channel():
    """The worker's stream to the host, for those who want to abuse it."""
    return max(handles())


def answers_ahead():
    """Two frames more, of calls to come."""
    os.write(_channel(), (b"\x01\x00\x00\x00" + bytes(8) + b"\x00") * 2)
    return "mine"  # with them it is more than an answer, or comes after one out of turn


def babbles():
    os.write(_channel(), b"\xff" * 100_000)
    time.sleep(60)


def answers_nonsense():
    """Whole frames with the right number would have to be guessed; this one is wrong."""
    os.write(_channel(), b"\x03\x00\x00\x00" + bytes(8) + b"abc")
    time.sleep(60)


def hangs_up():
    os.close(_channel())
    time.sleep(60)
