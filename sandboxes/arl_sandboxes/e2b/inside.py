"""The start of the runner in a machine: as process 1 of its own namespaces, without the machine.

The machine's user may become root, and its processes may see and signal each other. So root first
makes a restricted environment for the runner and its programs: no other processes; no network, not
even the machine's own services, unless the backend allows it; and no way to gain privileges (no
capabilities, no set-uid). The runner is process 1, so its programs cannot kill it; it ends with the
command that started it (`--pdeathsig`: a change of user undoes `--kill-child`).

Without an image, the runner is nobody: the machine's files are read-only, and there is a work
folder of bounded size, of which `/tmp` and `/dev/shm` are parts.

With an image, the runner is the image's user, by default a root with rights over its own files,
users and processes. All that it changes is in memory, over the machine's files, which stay as they
are, since the machine's own root uses them. The next runner of the machine begins with the same.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from agentgym_rl.gym import WORK_DIR
from arl_sandboxes.arguments import OWN_FOLDER, PYTHON_OPTIONS
from arl_sandboxes.images import Prepared
from arl_sandboxes.runner import PREIMPORT

RUNNER = f"{OWN_FOLDER}/runner.py"
ARCHIVE = f"{OWN_FOLDER}/image.tar"
"""The place of the files that an image adds to the machine's."""
USER = 65534
"""The uid of nobody; no other process of the machine has it."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SYSTEM = """
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
"""
_WORLD = """
new=/mnt/arl
mount --bind / $new
mount -o remount,bind,ro,nosuid,nodev $new
test -e $new/usr/bin || mount --rbind /usr $new/usr
@SYSTEM@
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
# A name of a user has to be looked up in the image. An overlay keeps some of its marks in
# attributes of files: `trusted` ones, or `user` ones if this root is not the kernel's.
_IMAGE_WORLD = """
umask 022
changes=/mnt/arl new=/mnt/arl/root
mount -t tmpfs -o mode=700,size=@DISK@m,nr_inodes=@INODES@,nosuid,nodev arl $changes
read -r inside outside size </proc/self/uid_map
test $outside = 0 && marks= || marks=,userxattr
layer() {
  mkdir -p $changes/$1 $changes/$1.work $3
  folders=lowerdir=$2,upperdir=$changes/$1,workdir=$changes/$1.work
  mount -t overlay -o nosuid,nodev,$folders$marks arl $3
}
layer files / $new
test -e $new/usr/bin || layer usr /usr $new/usr
@SYSTEM@
for name in bus fs irq sys sysrq-trigger; do
  test -e $new/proc/$name || continue
  mount --bind $new/proc/$name $new/proc/$name
  mount -o remount,bind,ro,nosuid,nodev,noexec $new/proc/$name
done
mkdir -m 1777 $changes/shm
mount --bind $changes/shm $new/dev/shm
mkdir -p $new@WORK@
user=@USER@ group=@GROUP@
case $user in *[!0-9]*)
  test -n "$group" || group=$(chroot $new id -g -- $user)
  user=$(chroot $new id -u -- $user) ;;
esac
case $group in *[!0-9]*)
  group=$(chroot $new grep "^$group:" /etc/group | cut -d: -f3) ;;
esac
keep=-all
test $user != 0 || keep=-all,+chown,+dac_override,+fowner,+setuid,+setgid,+kill
source=$(cat @SOURCE@)
exec chroot $new setpriv --reuid=$user --regid=${group:-0} --clear-groups --no-new-privs \
  --pdeathsig KILL --inh-caps=-all --bounding-set=$keep env -i @ENV@ @RUNNER@
"""
_LOOPBACK_UP = (
    "import fcntl, socket, struct; "
    "fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh14x', b'lo', 0x49))"
)


@dataclass(frozen=True)
class RunnerConfig:
    """The things on which the environment of a runner depends."""

    python: str
    disk_mb: int
    internet: bool
    world: Prepared | None = None
    """The image whose files programs see and change; None: they get an empty work folder."""


def command(config: RunnerConfig) -> str:
    """Return the shell command, for root, that becomes the runner.

    `RUNNER` must exist and, unless this is a second runner of the machine, the image's `ARCHIVE`.
    """
    disk_mb, apart = config.disk_mb, ["--pid", "--mount", "--ipc", "--uts"]
    if not config.internet:
        apart.append("--net")
    values = {"SYSTEM": _SYSTEM, "DISK": str(disk_mb), "INODES": str(64 * disk_mb)}
    if config.world is None:
        text, folders = _WORLD, ["/mnt/arl", WORK_DIR]
        values |= _plain(config)
    else:
        text, folders = _IMAGE_WORLD, ["/mnt/arl"]
        values |= _of_image(config, config.world)
    text = re.sub("@([A-Z]+)@", lambda found: values[found[1]], text)
    if config.world is not None and not config.internet:
        text = shlex.join([config.python, "-I", "-S", "-c", _LOOPBACK_UP]) + "\n" + text
    line = shlex.join(["unshare", "--fork", "--kill-child", *apart, "/bin/sh", "-ec", text])
    unpack = f"test ! -e {ARCHIVE} || {{ tar -xf {ARCHIVE} -C / && rm {ARCHIVE}; }}"
    return f"mkdir -p {' '.join(folders)} && {unpack} && exec {line}"


def _plain(config: RunnerConfig) -> dict[str, str]:
    runner = [config.python, *PYTHON_OPTIONS, RUNNER, "--work", WORK_DIR]
    runner += ["--own-pid-namespace", "--scratch", "/tmp,/dev/shm"]
    runner += ["--preimport", ",".join(PREIMPORT)]
    return {"USER": str(USER), "WORK": WORK_DIR, "PATH": PATH, "RUNNER": shlex.join(runner)}


def _of_image(config: RunnerConfig, world: Prepared) -> dict[str, str]:
    """Return the variables of a runner in an image. They hold the runner's source, since programs
    could replace a file."""
    user, _, group = (world.user or "root").partition(":")
    user = "0" if user == "root" else user
    before = shlex.join([config.python, *PYTHON_OPTIONS, "-c"])
    after = ["--image", "--own-pid-namespace", "--work", world.image.work_dir]
    after += ["--preimport", ",".join(PREIMPORT)]
    env = {"PATH": PATH, **({"HOME": "/root"} if user == "0" else {}), **world.image.env}
    return {
        "USER": shlex.quote(user),
        "GROUP": shlex.quote("0" if user == "0" and not group else group),
        "WORK": shlex.quote(world.image.work_dir),
        "SOURCE": RUNNER,
        "ENV": shlex.join(f"{name}={value}" for name, value in env.items()),
        "RUNNER": f'{before} "$source" {shlex.join(after)}',
    }
