#!/bin/bash
# The first program of the booted root: sets the machine up as its administrator would, runs the checks as root and as
# a plain user, and switches off. The results go to the second serial line.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8

main() {
    mount -t tmpfs -o mode=755 run /run
    mount -t tmpfs tmp /tmp
    mkdir -p /dev/pts /dev/shm
    mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
    mount -t tmpfs shm /dev/shm
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mount -t securityfs security /sys/kernel/security
    ip link set lo up
    hostname kernels
    echo "127.0.0.1 localhost" >/etc/hosts
    ulimit -n 65536
    set_up
    make_root_group
    for part in $(word parts | tr , ' '); do
        run_checks "$part" root
        make_user_group "$part"
        run_checks "$part" cove
    done
    sync
    sleep 1 # until the serial line has sent what it has
    busybox poweroff -f
}

# word NAME    prints what the kernel's command line says of it
word() {
    tr ' ' '\n' </proc/cmdline | sed -n "s/^cove\.$1=//p"
}

set_up() {
    local setting
    for setting in $(word sysctl); do
        sysctl -q -w "$setting"
    done
    if [ -n "$(word profile)" ]; then
        apparmor_parser --replace "/opt/kernels/$(word profile).apparmor"
    fi
}

# As systemd leaves it: memory and pids for all, no processes in inner groups.
make_root_group() {
    root_group=/sys/fs/cgroup/system.slice/checks.service
    echo "+memory +pids" >/sys/fs/cgroup/cgroup.subtree_control
    mkdir -p "$root_group"
}

# make_user_group NAME    makes a group for one program, as `systemd-run --user --scope -p Delegate=yes` does
make_user_group() {
    local slice=/sys/fs/cgroup/user.slice/user-1000.slice
    local manager=$slice/user@1000.service
    user_group=$manager/app.slice/$1.scope
    mkdir -p "$user_group"
    local group
    for group in /sys/fs/cgroup /sys/fs/cgroup/user.slice "$slice" "$manager" "$manager/app.slice"; do
        echo "+memory +pids +cpu" >"$group/cgroup.subtree_control"
    done
    for group in "$manager" "$manager/app.slice" "$user_group"; do
        chown cove:cove "$group" "$group"/cgroup.{procs,subtree_control,threads}
    done
    python3 -c 'import os, sys; os.setxattr(sys.argv[1], "user.delegate", b"1")' "$user_group"
}

# run_checks PART USER    in that user's group
run_checks() {
    local part=$1 user=$2 group=$root_group enter=() home=/root state=/var/lib/cove
    if [ "$user" != root ]; then
        group=$user_group home=/home/$user state=/home/$user/.cove
        enter=(setpriv "--reuid=$user" "--regid=$user" --init-groups --)
    fi
    chmod 666 /dev/ttyS1
    (
        echo "$BASHPID" >"$group/cgroup.procs"
        export HOME=$home COVE_HOME=$state COVE_PYTHON=/opt/code USER=$user PATH="/opt/cove/bin:$PATH"
        cd /
        exec "${enter[@]}" /opt/cove/bin/python3 /opt/kernels/checks.py "$user" /dev/ttyS1 "$part"
    )
}

main
