"""How programs are started and how they end: tricks with names, and lies about endings."""

import pytest_free as must
from arena import Case, attack, described

from agentgym_rl.gym.sandbox_records import Status


@attack(landlock=True)
async def endings_told_as_they_are(case: Case) -> None:
    for code, status, exit_code, number in (
        ("sys.exit(0)", Status.OK, 0, None),
        ("os._exit(0)", Status.OK, 0, None),
        ("sys.exit(3)", Status.ERROR, 3, None),
        ("os._exit(256 + 7)", Status.ERROR, 7, None),
        ("os.abort()", Status.ERROR, None, 6),
        ("ctypes.string_at(0)", Status.ERROR, None, 11),
        ("os.kill(os.getpid(), 9)", Status.KILLED, None, 9),
        ("os.kill(os.getpid(), 15)", Status.ERROR, None, 15),
        ("raise SystemExit('no')", Status.ERROR, 1, None),
        ("1 / 0", Status.ERROR, 1, None),
        ("syntax error here", Status.ERROR, 1, None),
    ):
        result = await case.run(code)
        got = (result.status, result.exit_code, result.signal)
        assert got == (status, exit_code, number), (code, described(result))


@attack(landlock=True)
async def endings_that_feign_a_limit(case: Case) -> None:
    """To be excused: only a program that used its seconds was stopped for using them."""
    result = await case.run("os.kill(os.getpid(), signal.SIGXCPU)")
    assert result.status is Status.ERROR, described(result)
    result = await case.run("os.kill(os.getpid(), signal.SIGXFSZ)")
    assert result.status in (Status.ERROR, Status.OK), described(result)  # Python ignores that one


# Each thread reserves room for a stack and for an arena; a crowded machine makes them slow.
@attack(memory_mb=768, wall_s=50)
async def exits_while_threads_go_on(case: Case) -> None:
    code = """
import threading
def spin():
    while True: pass
for _ in range(8): threading.Thread(target=spin, daemon=True).start()
print("done")
"""
    result = await case.run(code)
    assert (result.status, result.stdout) == (Status.OK, b"done\n"), described(result)


@attack(landlock=True)
async def the_stack_used_up(case: Case) -> None:
    code = "sys.setrecursionlimit(10 ** 9)\ndef f(): return f()\nf()"
    result = await case.run(code, wall_s=1.0)
    assert result.status in (Status.ERROR, Status.MEMORY_LIMIT, Status.TIMEOUT), described(result)


@attack()
async def program_names_that_are_tricks(case: Case) -> None:
    await case.run("""
os.symlink("/bin/sh", "shell"); open("text", "w").write("no program"); os.chmod("text", 0o755)
open("loop", "w").write("#!/box/loop\\n"); os.chmod("loop", 0o755); os.mkdir("folder")
open("plain", "w").write("x"); os.mkfifo("fifo"); os.chmod("fifo", 0o755)
""")
    for argv, codes in (
        (["nothing-of-that-name"], {127}),
        ([""], {126, 127}),
        (["/"], {126}),
        (["folder"], {126, 127}),
        (["./folder"], {126}),
        (["./plain"], {126}),
        (["./text"], {126, 127}),
        (["./loop"], {126}),
        (["./fifo"], {126}),
        (["../../../../root/x"], {126, 127}),
        (["/proc/1/exe"], {126, 127}),
        (["/proc/self/mem"], {126}),
        (["x" * 5000], {126, 127}),
    ):
        result = await case.sandbox.exec(argv)
        assert (result.status, result.exit_code in codes) == (Status.ERROR, True), (
            argv[0][:40],
            described(result),
        )
    assert (await case.sandbox.exec(["./shell", "-c", "echo in"])).stdout == b"in\n"
    for argv in ([], "ls", ["a\0b"]):
        await must.fail(ValueError, case.sandbox.exec(argv))
    await case.sandbox.exec(["bash", "-c", "rm -rf shell text loop folder plain fifo"])


@attack()
async def work_folders_that_lead_out(case: Case) -> None:
    await case.run("os.symlink('/', 'out'); os.symlink('/boot', 'home'); os.mkdir('d')")
    result = await case.sandbox.exec(["bash", "-c", "pwd -P; ls root work 2>&1; ls"], cwd="out")
    assert b"answers" not in result.stdout
    assert result.stdout.startswith(b"/\n"), described(result)  # its own root, which it may see
    for cwd, code in (("home", {126, 127}), ("nothing", {126, 127}), ("d/../..", None)):
        if code is None:
            await must.fail(ValueError, case.sandbox.exec(["true"], cwd=cwd))
        else:
            assert (await case.sandbox.exec(["true"], cwd=cwd)).exit_code in code
    await case.sandbox.exec(["bash", "-c", "rm -rf out home d"])


@attack()
async def environments_that_are_tricks(case: Case) -> None:
    await case.sandbox.write_files({"lib.so": b"not a library", "start": b"echo STARTED"})
    env = {
        "LD_PRELOAD": "/box/lib.so", "BASH_ENV": "/box/start", "PYTHONPATH": "/box", "PATH": "",
        "PYTHONSTARTUP": "/box/start", "HOME": "/root", "ENV": "/box/start", "IFS": "/",
    }  # fmt: skip
    result = await case.sandbox.exec(["/bin/sh", "-c", "echo $0"], env=env)
    assert result.status in (Status.OK, Status.ERROR), described(result)
    for wrong in ({"A=B": "1"}, {"A": "x\0y"}, {"": "1"}):
        try:
            refused = await case.sandbox.exec(["true"], env=wrong)
        except ValueError:
            continue
        assert refused.status is Status.ERROR, described(refused)
    await case.sandbox.exec(["rm", "-f", "lib.so", "start"])


@attack()
async def arguments_larger_than_the_kernel_takes(case: Case) -> None:
    result = await case.sandbox.exec(["true", "x" * (4 << 20)])
    assert (result.status, result.exit_code) == (Status.ERROR, 126), described(result)


@attack(landlock=True)
async def code_that_is_no_text(case: Case) -> None:
    for code in ("\ud800", "\0", "x = '\0'", "# coding: nonsense\n", "(" * 5000, "\r\n\f\ufeff"):
        result = await case.sandbox.run_python(code)
        assert result.status in (Status.ERROR, Status.OK, Status.MEMORY_LIMIT), described(result)
    deep = "-" * 50000 + "1"
    assert (await case.sandbox.run_python(deep)).status is not Status.OK


@attack()
async def output_after_the_end(case: Case) -> None:
    """What a destructor or a thread writes last is there; what a dead process would, is not."""
    result = await case.run("""
import atexit
atexit.register(print, "at exit")
if os.fork() == 0:
    time.sleep(0.5); print("too late", flush=True); os._exit(0)
print("main")
""")
    assert result.stdout == b"main\nat exit\n", described(result)
    assert result.killed_processes == 1
