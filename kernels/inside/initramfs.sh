#!/bin/busybox sh
# shellcheck shell=dash
# The first program of a booted kernel: loads its modules, mounts the root and goes on there.
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
while read -r module; do
    /bin/busybox insmod "/modules/$module" || echo "module $module was not loaded"
done </order
until [ -b /dev/vda ]; do
    /bin/busybox sleep 0.1
done
/bin/busybox mount -t ext4 /dev/vda /root || exec /bin/busybox poweroff -f
for point in proc sys dev; do
    /bin/busybox mount --move "/$point" "/root/$point"
done
exec /bin/busybox switch_root /root /bin/bash /opt/kernels/init.bash
