#!/bin/busybox sh
# First process of the bench's virtual machine. It makes the host's root visible (read-only by 9p, a tmpfs overlay
# above it takes what is written), starts the script that vm.py has left in the control share, reports its exit status
# there and powers off. It touches nothing but the guest; the network is fabric.sh's business.
/bin/busybox mkdir -p /proc /sys /dev /lower /upper /root
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
hostname bench  # the kernel's own is "(none)", and messages name the host of a rank

while read -r module; do
    insmod "/modules/$module" || echo "bench: insmod $module failed"
done < /modules/order

# cache=loose: the host's tree does not change under a running guest as far as the guest needs to know.
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=524288,cache=loose root /lower
mount -t tmpfs -o size=90% upper /upper
mkdir /upper/data /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/data,workdir=/upper/work overlay /root
for fs in proc sys dev; do mount --move /$fs /root/$fs; done
# Not over /tmp: the repository may lie there. What is temporary goes to /dev/shm (TMPDIR), the overlay takes the rest.
mount -t tmpfs run /root/run
mkdir -p /root/dev/pts /root/dev/shm /root/run/bench
mount -t devpts devpts /root/dev/pts
mount -t tmpfs shm /root/dev/shm
ln -sf /proc/self/fd /root/dev/fd
# cache=none: the host reads these files while the guest runs.
mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=none control /root/run/bench

# A session of its own with the second serial port as terminal: kernel messages stay on the first.
chroot /root /usr/bin/setsid -cw /bin/bash /run/bench/start.sh < /root/dev/ttyS1 > /root/dev/ttyS1 2>&1
echo $? > /root/run/bench/status
sync
poweroff -f
