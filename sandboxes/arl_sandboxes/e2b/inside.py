"""The start of the runner in a machine: as user nobody, as process 1 of its own namespaces.

The machine's user may become root, and its processes may see and signal each other. So root first
makes a restricted environment for the runner and its programs: the machine's files, read-only; a
work folder of bounded size, of which `/tmp` and `/dev/shm` are parts; no other processes; no
network, not even the machine's own services, unless the backend allows it; and no way to gain
privileges (no capabilities, no set-uid). The runner is process 1, so its programs cannot kill it;
it ends with the command that started it (`--pdeathsig`: a change of user undoes `--kill-child`).
"""

from __future__ import annotations

import shlex

from agentgym_rl.gym.sandbox import WORK_DIR
from arl_sandboxes.runner import PREIMPORT

RUNNER = "/opt/arl/runner.py"
USER = 65534
"""The uid of nobody; no other process of the machine has it."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_WORLD = """
new=/mnt/arl
mount --bind / $new
mount -o remount,bind,ro,nosuid,nodev $new
test -e $new/usr/bin || mount --rbind /usr $new/usr
mount -t proc -o nosuid,nodev,noexec proc $new/proc
mount -t tmpfs -o mode=755,size=64k,nosuid arl $new/dev
for name in null zero full random urandom; do
  : >$new/dev/$name
  mount --bind /dev/$name $new/dev/$name
done
ln -s /proc/self/fd $new/dev/fd
ln -s /proc/self/fd/0 $new/dev/stdin
ln -s /proc/self/fd/1 $new/dev/stdout
ln -s /proc/self/fd/2 $new/dev/stderr
mkdir $new/dev/shm
mount -t tmpfs -o mode=711,size=@DISK@m,nr_inodes=@INODES@,nosuid,nodev arl $new/mnt
mkdir -m 700 $new/mnt/box $new/mnt/tmp $new/mnt/shm
chown @USER@:@USER@ $new/mnt/box $new/mnt/tmp $new/mnt/shm
mount --bind $new/mnt/box $new@WORK@
mount --bind $new/mnt/tmp $new/tmp
mount --bind $new/mnt/shm $new/dev/shm
umount -l $new/mnt
exec chroot $new setpriv --reuid=@USER@ --regid=@USER@ --clear-groups --no-new-privs \
  --pdeathsig KILL --inh-caps=-all --bounding-set=-all env -i PATH=@PATH@ @RUNNER@
"""


def command(*, python: str, disk_mb: int, internet: bool) -> str:
    """Return the shell command, for root, that becomes the runner (`RUNNER` must exist)."""
    runner = [python, "-I", "-X", "utf8", RUNNER, "--work", WORK_DIR, "--own-pid-namespace"]
    runner += ["--scratch", "/tmp,/dev/shm"]
    values = {
        "DISK": str(disk_mb),
        "INODES": str(64 * disk_mb),
        "USER": str(USER),
        "WORK": WORK_DIR,
        "PATH": _PATH,
        "RUNNER": shlex.join([*runner, "--preimport", ",".join(PREIMPORT)]),
    }
    world = _WORLD
    for name, value in values.items():
        world = world.replace(f"@{name}@", value)
    apart = ["unshare", "--fork", "--kill-child", "--pid", "--mount", "--ipc", "--uts"]
    if not internet:
        apart.append("--net")
    line = shlex.join([*apart, "/bin/sh", "-ec", world])
    return f"mkdir -p {WORK_DIR} /mnt/arl && exec {line}"
