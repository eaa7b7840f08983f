#!/bin/sh
# fabric.sh WORKERS: the rack in one network namespace, made the same way natively and in the VM.
#
#   rxe0 - w0 ==veth== b0 --+
#   rxe1 - w1 ==veth== b1 --+-- br0 (the switch) --+-- bapp ==veth== app0 - DPDK net_af_packet
#                                                  +-- bapp6 ==veth== app6 - an appliance with an IPv6 address
#
# `fabric.sh wire` adds a second port for an appliance, whose wire is open for a bump in it; `fabric.sh unwire` undoes it:
#
#   br0 --+-- bwire ==veth== wire0 - whoever carries frames - wire1 ==veth== app2 - DPDK net_af_packet
#
# Worker k is 10.77.0.(10+k)/24 and fd00:77::(10+k)/64. app0 and app6 have no address in the kernel: an appliance
# answers for 10.77.0.1 or fd00:77::1 itself. It touches only interfaces that it makes and the address settings of its
# namespace; `fabric.sh down WORKERS` undoes them.
set -eu
mtu=9000 # rxe's path MTU is (mtu - 80) rounded down to a power of two: 4096

if [ "$1" = down ]; then
    for k in $(seq 0 $(($2 - 1))); do
        ip rule del pref $((100 + k)) 2>/dev/null || true
        ip -6 rule del pref $((100 + k)) 2>/dev/null || true
        ip link del "w$k" 2>/dev/null || true # takes rxe<k> and b<k> along
    done
    ip link del app0 2>/dev/null || true
    ip link del app6 2>/dev/null || true
    ip link del wire0 2>/dev/null || true
    ip link del wire1 2>/dev/null || true
    ip link del br0 2>/dev/null || true
    exit 0
fi

set_sysctl() { echo "$2" > "/proc/sys/net/$1"; }

pair() { # pair INTERFACE INTERFACE
    ip link add "$1" mtu $mtu type veth peer name "$2" mtu $mtu
    # No router solicitations, no link-local GIDs: every frame on the wire is one that somebody meant.
    set_sysctl "ipv6/conf/$1/disable_ipv6" 1
    set_sysctl "ipv6/conf/$2/disable_ipv6" 1
}

plug() { # plug INTERFACE SWITCH_PORT
    pair "$1" "$2"
    ip link set "$2" master br0 up
}

case $1 in
wire)
    plug wire0 bwire
    pair wire1 app2
    for port in wire0 wire1; do set_sysctl "ipv4/conf/$port/arp_ignore" 8; done # the kernel answers nothing here
    for port in wire0 wire1 app2; do ip link set "$port" up; done
    exit 0
    ;;
unwire)
    ip link del wire0
    ip link del wire1
    exit 0
    ;;
esac
workers=$1

ip link set lo up
ip link add br0 mtu $mtu type bridge stp_state 0 forward_delay 0 mcast_snooping 0
set_sysctl ipv6/conf/br0/disable_ipv6 1
ip link set br0 up

# The workers share a namespace, so the kernel knows each one's address as local and would carry their packets over lo,
# where rxe has no device. Local delivery moves behind rules that say: what leaves by w<k> goes out of w<k>.
ip rule show pref 200 | grep -q local || ip rule add pref 200 lookup local
ip rule del pref 0 2>/dev/null || true

# Addresses that are there at once, and nothing that the kernel would do by itself: no search for duplicates or routers.
# Of the link-local address the kernel asks for neighbours when a queue pair, and no packet, wants to know.
give_ipv6() { # give_ipv6 INTERFACE HOST TABLE
    set_sysctl "ipv6/conf/$1/addr_gen_mode" 1
    set_sysctl "ipv6/conf/$1/accept_dad" 0
    set_sysctl "ipv6/conf/$1/accept_ra" 0
    set_sysctl "ipv6/conf/$1/router_solicitations" 0
    set_sysctl "ipv6/conf/$1/keep_addr_on_down" 1 # tests take interfaces down; IPv4 addresses stay by themselves
    set_sysctl "ipv6/conf/$1/disable_ipv6" 0
    ip -6 addr add "fe80::$2/64" dev "$1" nodad
    ip -6 addr add "fd00:77::$2/64" dev "$1" nodad
    ip -6 route add fd00:77::/64 dev "$1" src "fd00:77::$2" table "$3"
    ip -6 rule add pref "$3" oif "$1" lookup "$3"
}

for k in $(seq 0 $((workers - 1))); do
    address=10.77.0.$((10 + k))
    plug "w$k" "b$k"
    set_sysctl "ipv4/conf/w$k/arp_ignore" 1   # answer on the interface that has the address, and only there
    set_sysctl "ipv4/conf/w$k/arp_announce" 2 # and ask in its own name
    set_sysctl "ipv4/conf/w$k/rp_filter" 0
    set_sysctl "ipv4/conf/w$k/accept_local" 1 # another worker's address is one of ours too
    ip addr add "$address/24" dev "w$k"
    ip link set "w$k" up
    ip route add 10.77.0.0/24 dev "w$k" src "$address" table $((100 + k))
    ip rule add pref $((100 + k)) oif "w$k" lookup $((100 + k))
    give_ipv6 "w$k" "$(printf %x $((10 + k)))" $((100 + k))
    rdma link add "rxe$k" type rxe netdev "w$k"
done
set_sysctl ipv4/conf/all/rp_filter 0 # the maximum of `all` and the interface counts

plug app0 bapp
ip link set app0 up
plug app6 bapp6
ip link set app6 up
