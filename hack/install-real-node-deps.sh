#!/usr/bin/env bash
# What real nodes need, from the distribution (Debian, Ubuntu): see docs/real-nodes.md. Does nothing where all of it is
# there, and says what it does not do where there is no apt or no root.
set -euo pipefail
packages=(containerd runc containernetworking-plugins busybox-static iptables nftables iproute2)

missing=()
for p in "${packages[@]}"; do
	dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null | grep -qx installed || missing+=("$p")
done
[ ${#missing[@]} -gt 0 ] || exit 0
if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
	echo "real nodes: not installed, for lack of apt-get or root: ${missing[*]}" >&2
	exit 1
fi
export DEBIAN_FRONTEND=noninteractive
# No service starts on a machine that only wants the programs: real nodes run containerd with a configuration of their own.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod +x "$policy"
	trap 'rm -f "$policy"' EXIT
fi
options=(-qq -o=Dpkg::Use-Pty=0 -o=Acquire::Retries=3 -o=DPkg::Lock::Timeout=120)
log=$(mktemp)
install() { apt-get "${options[@]}" install -y --no-install-recommends "${missing[@]}"; }
# The package lists of a fresh image are missing or too old to fetch from.
if ! { apt-get "${options[@]}" update && install; } >"$log" 2>&1; then
	cat "$log" >&2
	rm -f "$log"
	exit 1
fi
rm -f "$log"
echo "real nodes: installed ${missing[*]}" >&2
