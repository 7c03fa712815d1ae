"""The system calls that programs are refused, by name; `arl_isolation.bpf` has the numbers."""

HIGHEST = 462
"""The number of the last reviewed call (mseal); newer calls answer ENOSYS until their review."""

DENIED = [
    # other namespaces, mounts, roots
    "unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount",
    "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "statmount", "listmount",
    "name_to_handle_at", "open_by_handle_at",
    # other processes
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "process_mrelease",
    "pidfd_open", "pidfd_getfd", "pidfd_send_signal", "kcmp",
    # memory that outlives its process, or hides from the limits
    "memfd_create", "memfd_secret", "shmget", "shmctl", "shmat", "shmdt", "semget", "semctl",
    "semop", "semtimedop", "msgget", "msgctl", "msgrcv", "msgsnd", "mq_open", "mq_unlink",
    "mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr", "mbind", "set_mempolicy",
    "get_mempolicy", "migrate_pages", "move_pages", "set_mempolicy_home_node", "mlockall",
    # broad or old parts of the kernel
    "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter",
    "io_uring_register", "io_setup", "vmsplice", "remap_file_pages", "keyctl", "add_key",
    "request_key", "fanotify_init", "fanotify_mark", "landlock_create_ruleset", "landlock_add_rule",
    "landlock_restrict_self", "personality", "lookup_dcookie", "nfsservctl", "modify_ldt", "uselib",
    "ustat", "sysfs", "_sysctl", "create_module", "get_kernel_syms", "query_module", "vhangup",
    # the machine
    "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "reboot",
    "swapon", "swapoff", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "acct",
    "quotactl", "quotactl_fd", "syslog", "sethostname", "setdomainname", "iopl", "ioperm",
]  # fmt: skip

DENIED_WITHOUT_NAMESPACES = [
    # attributes of files
    "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "utime",
    "utimes", "futimesat", "utimensat", "setxattr", "lsetxattr", "fsetxattr", "getxattr",
    "lgetxattr", "fgetxattr", "listxattr", "llistxattr", "flistxattr", "removexattr",
    "lremovexattr", "fremovexattr",
    # observing and flushing them
    "inotify_init", "inotify_init1", "inotify_add_watch", "sync", "syncfs",
    # addresses for the socket of a session
    "bind", "listen", "accept", "accept4", "connect",
]  # fmt: skip
"""The additional calls that are denied to a program without namespaces (see
`landlock_seccomp`)."""

STARTS = ("fork", "vfork", "execve", "execveat")
"""The calls, besides clone, that start a process or a program; denied to such a program, too."""

SIGNALS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
"""The calls whose first argument is a process or thread."""

# preadv2: with RWF_NOWAIT; without a flag libraries use another call
PAGE_CACHE = ("preadv2", "fadvise64", "mincore", "cachestat")
"""The calls that query which pages of a file are in memory, or drop one. All programs of the
machine share the pages of `/usr`: with both, a program could leave data for every later program."""

OWN_ONLY = ("sched_setaffinity", "sched_setparam", "sched_setscheduler", "sched_setattr")
"""The calls whose first argument is a pid: only 0, the caller, is allowed (not even the parent)."""

OWN_ONLY_SECOND = {"setpriority": 0, "ioprio_set": 1}
"""The calls whose second argument is a pid. The first must be the value here, "one process": "all
of the same uid" would include the child that waits for the next program."""
