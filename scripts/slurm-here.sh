#!/bin/bash
# A Slurm of one node on this machine, for trying `arl train --cluster slurm` and for its test.
#
#   apt-get install slurm-wlm munge
#   scripts/slurm-here.sh start [CPUS]     as root; CPUS (8) may be more than there are
#   scripts/slurm-here.sh stop
set -euo pipefail
folder=/tmp/slurm-here
name=$(hostname -s)

start() {
    if [ -e /etc/slurm/slurm.conf ] && ! grep -qx "ClusterName=here" /etc/slurm/slurm.conf; then
        echo "/etc/slurm/slurm.conf is there: this machine belongs to another Slurm" >&2
        exit 1
    fi
    mkdir -p "$folder/state" "$folder/spool" /run/munge
    chown munge: /run/munge
    cat >"$folder/slurm.conf" <<CONF
ClusterName=here
SlurmctldHost=$name(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
NodeName=$name NodeAddr=127.0.0.1 CPUs=$1 State=UNKNOWN
PartitionName=all Nodes=$name Default=YES MaxTime=INFINITE State=UP
CONF
    install -D "$folder/slurm.conf" /etc/slurm/slurm.conf
    pgrep -x munged >/dev/null || runuser -u munge -- munged
    slurmctld
    slurmd
    for _ in $(seq 60); do
        sinfo --noheader --format=%t | grep -q idle && exit 0
        sleep 0.5
    done
    tail -n 20 "$folder"/*.log >&2
    exit 1
}

stop() {
    for daemon in slurmctld slurmd; do
        [ -f "$folder/$daemon.pid" ] && kill "$(cat "$folder/$daemon.pid")" || true
    done
}

case "${1:-}" in
start) start "${2:-8}" ;;
stop) stop ;;
*) sed -n '2,6p' "$0" >&2 && exit 2 ;;
esac
