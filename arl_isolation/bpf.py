"""System-call filters for x86_64 and aarch64: an assembler of classic BPF, and the calls' numbers.

BPF: https://docs.kernel.org/userspace-api/seccomp_filter.html. Numbers: the kernel's
arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h; the tests compare them
with the headers of the machine.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""The column in NUMBERS, and the audit architecture, by machine type."""

_TABLE = """
_sysctl 156 -, accept 43 202, accept4 288 242, access 21 -, acct 163 89, add_key 248 217,
adjtimex 159 171, alarm 37 -, arch_prctl 158 -, bind 49 200, bpf 321 280, brk 12 214,
cachestat 451 451, chmod 90 -, chown 92 -, chroot 161 51, clock_adjtime 305 266,
clock_getres 229 114, clock_gettime 228 113, clock_nanosleep 230 115, clock_settime 227 112,
clone 56 220, clone3 435 435, close 3 57, connect 42 203, create_module 174 -,
delete_module 176 106, dup 32 23, dup2 33 -, dup3 292 24, epoll_create1 291 20, epoll_ctl 233 21,
epoll_pwait 281 22, epoll_wait 232 -, eventfd2 290 19, execve 59 221, execveat 322 281, exit 60 93,
exit_group 231 94, faccessat 269 48, faccessat2 439 439, fadvise64 221 223, fallocate 285 47,
fanotify_init 300 262, fanotify_mark 301 263, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452,
fchown 93 55, fchownat 260 54, fcntl 72 25, fgetxattr 193 10, finit_module 313 273,
flistxattr 196 13, fork 57 -, fremovexattr 199 16, fsconfig 431 431, fsetxattr 190 7,
fsmount 432 432, fsopen 430 430, fspick 433 433, fstat 5 80, fstatfs 138 44, futex 202 98,
futimesat 261 -, get_kernel_syms 177 -, get_mempolicy 239 236, get_robust_list 274 100,
getcpu 309 168, getcwd 79 17, getdents 78 -, getdents64 217 61, getegid 108 177, geteuid 107 175,
getgid 104 176, getgroups 115 158, getitimer 36 102, getpgid 121 155, getpgrp 111 -, getpid 39 172,
getppid 110 173, getpriority 140 141, getrandom 318 278, getresgid 120 150, getresuid 118 148,
getrlimit 97 163, getrusage 98 165, getsid 124 156, getsockopt 55 209, gettid 186 178,
gettimeofday 96 169, getuid 102 174, getxattr 191 8, init_module 175 105, inotify_add_watch 254 27,
inotify_init 253 -, inotify_init1 294 26, io_setup 206 0, io_uring_enter 426 426,
io_uring_register 427 427, io_uring_setup 425 425, ioctl 16 29, ioperm 173 -, iopl 172 -,
ioprio_set 251 30, kcmp 312 272, kexec_file_load 320 294, kexec_load 246 104, keyctl 250 219,
kill 62 129, landlock_add_rule 445 445, landlock_create_ruleset 444 444,
landlock_restrict_self 446 446, lchown 94 -, lgetxattr 192 9, listen 50 201, listmount 458 458,
listxattr 194 11, llistxattr 195 12, lookup_dcookie 212 18, lremovexattr 198 15, lseek 8 62,
lsetxattr 189 6, lstat 6 -, madvise 28 233, mbind 237 235, membarrier 324 283, memfd_create 319 279,
memfd_secret 447 447, migrate_pages 256 238, mincore 27 232, mlockall 151 230, mmap 9 222,
modify_ldt 154 -, mount 165 40, mount_setattr 442 442, move_mount 429 429, move_pages 279 239,
mprotect 10 226, mq_getsetattr 245 185, mq_notify 244 184, mq_open 240 180, mq_timedreceive 243 183,
mq_timedsend 242 182, mq_unlink 241 181, mremap 25 216, msgctl 71 187, msgget 68 186, msgrcv 70 188,
msgsnd 69 189, munmap 11 215, name_to_handle_at 303 264, nanosleep 35 101, newfstatat 262 79,
nfsservctl 180 42, open 2 -, open_by_handle_at 304 265, open_tree 428 428, openat 257 56,
pause 34 -, perf_event_open 298 241, personality 135 92, pidfd_getfd 438 438, pidfd_open 434 434,
pidfd_send_signal 424 424, pipe 22 -, pipe2 293 59, pivot_root 155 41, poll 7 -, ppoll 271 73,
prctl 157 167, pread64 17 67, preadv2 327 286, prlimit64 302 261, process_madvise 440 440,
process_mrelease 448 448, process_vm_readv 310 270, process_vm_writev 311 271, pselect6 270 72,
ptrace 101 117, pwrite64 18 68, query_module 178 -, quotactl 179 60, quotactl_fd 443 443, read 0 63,
readlink 89 -, readlinkat 267 78, readv 19 65, reboot 169 142, remap_file_pages 216 234,
removexattr 197 14, request_key 249 218, restart_syscall 219 128, rseq 334 293, rt_sigaction 13 134,
rt_sigpending 127 136, rt_sigprocmask 14 135, rt_sigqueueinfo 129 138, rt_sigreturn 15 139,
rt_sigtimedwait 128 137, rt_tgsigqueueinfo 297 240, sched_getaffinity 204 123,
sched_setaffinity 203 122, sched_setattr 314 274, sched_setparam 142 118,
sched_setscheduler 144 119, sched_yield 24 124, select 23 -, semctl 66 191, semget 64 190,
semop 65 193, semtimedop 220 192, set_mempolicy 238 237, set_mempolicy_home_node 450 450,
set_robust_list 273 99, set_tid_address 218 96, setdomainname 171 162, sethostname 170 161,
setitimer 38 103, setns 308 268, setpriority 141 140, setrlimit 160 164, settimeofday 164 170,
setxattr 188 5, shmat 30 196, shmctl 31 195, shmdt 67 197, shmget 29 194, sigaltstack 131 132,
socket 41 198, socketpair 53 199, stat 4 -, statfs 137 43, statmount 457 457, statx 332 291,
swapoff 168 225, swapon 167 224, sync 162 81, syncfs 306 267, sysfs 139 -, sysinfo 99 179,
syslog 103 116, tgkill 234 131, time 201 -, times 100 153, tkill 200 130, umount2 166 39,
uname 63 160, unshare 272 97, uselib 134 -, userfaultfd 323 282, ustat 136 -, utime 132 -,
utimensat 280 88, utimes 235 -, vfork 58 -, vhangup 153 58, vmsplice 278 75, write 1 64,
writev 20 66
"""
NUMBERS: dict[str, tuple[int | None, ...]] = {
    name: tuple(None if word == "-" else int(word) for word in words)
    for name, *words in map(str.split, _TABLE.split(","))
}
"""The number of each system call that a filter names, by column; None: the machine has none."""

EQUAL, AT_LEAST, ABOVE, HAS_BITS = 0x15, 0x35, 0x25, 0x45
"""The tests of the loaded number."""


def do(code: int, k: int, yes: int = 0, no: int = 0) -> bytes:
    """Assemble an instruction; a test skips `yes` instructions if it holds, `no` if not."""
    return struct.pack("HBBI", code, yes, no, k)


def fail(number: int) -> bytes:
    """Return the instruction that refuses the call with this errno."""
    return do(0x06, 0x00050000 | number)


def load(argument: int, offset: int = 0) -> bytes:
    """Return the load of an argument's low half (of the high half: offset 4).

    The kernel itself reads no more than the low half where it takes an int.
    """
    return do(0x20, 16 + 8 * argument + offset)


ALLOW, KILL = do(0x06, 0x7FFF0000), do(0x06, 0x80000000)
LOAD_NUMBER, _LOAD_ARCHITECTURE = do(0x20, 0), do(0x20, 4)


def beginning(machine: str) -> list[bytes]:
    """Return code that ends a process of another architecture, and loads the call's number.

    Raises:
        KeyError: there are no numbers for this machine type.
    """
    return [_LOAD_ARCHITECTURE, do(EQUAL, MACHINES[machine][1], 1, 0), KILL, LOAD_NUMBER]


def when(machine: str, name: str, *body: bytes) -> list[bytes]:
    """Return code that runs `body` for one system call; `body` finds its number and must return."""
    number = NUMBERS[name][MACHINES[machine][0]]
    return [] if number is None else [do(EQUAL, number, 0, len(body)), *body]


def one_of(argument: int, values: Sequence[int], error: int = errno.EPERM) -> list[bytes]:
    """Return a body that allows the call only with one of these values."""
    tests = [do(EQUAL, value, len(values) - i) for i, value in enumerate(values)]
    return [load(argument), *tests, fail(error), ALLOW]


def none_of(argument: int, values: Sequence[int], error: int = errno.EPERM) -> list[bytes]:
    """Return a body that allows the call with any other value."""
    last = len(values) - 1
    tests = [do(EQUAL, value, last - i, i == last) for i, value in enumerate(values)]
    return [load(argument), *tests, fail(error), ALLOW]


def no_bits(argument: int, bits: int, error: int = errno.EPERM) -> list[bytes]:
    """Return a body that allows the call if none of these bits is set."""
    return [load(argument), do(HAS_BITS, bits, 0, 1), fail(error), ALLOW]
