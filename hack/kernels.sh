#!/usr/bin/env bash
# What make test-kernels needs, from Debian or Ubuntu: qemu, and the kernels on which the agent's tests run, into bin/kernels. The
# kernels are not installed. Does nothing where all of it is there.
set -euo pipefail
cd "$(dirname "$0")/.."
# Meta-packages, of Debian and Ubuntu; those that the release does not have are left out.
packages=(linux-image-cloud-amd64 linux-image-6.12-cloud-amd64 linux-image-virtual)

if command -v qemu-system-x86_64 >/dev/null && compgen -G 'bin/kernels/vmlinuz-*' >/dev/null; then
	exit 0
fi
sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo -n)
if ! command -v apt-get >/dev/null || ! "${sudo[@]}" true 2>/dev/null; then
	echo "kernels: not fetched, for lack of apt-get or root: the test is skipped if qemu or the kernels are missing" >&2
	exit 0
fi
export DEBIAN_FRONTEND=noninteractive
options=(-qq -o=Dpkg::Use-Pty=0 -o=Acquire::Retries=3 -o=DPkg::Lock::Timeout=120)
"${sudo[@]}" apt-get "${options[@]}" update
command -v qemu-system-x86_64 >/dev/null || "${sudo[@]}" apt-get "${options[@]}" install -y --no-install-recommends qemu-system-x86 >/dev/null
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p bin/kernels
for meta in "${packages[@]}"; do
	image=$(apt-cache depends "$meta" 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p' | head -1)
	[ -n "$image" ] || continue
	(cd "$work" && apt-get "${options[@]}" download "$image" && dpkg-deb -x "$image"_*.deb "$image")
	cp "$work/$image"/boot/vmlinuz-* bin/kernels/
done
ls bin/kernels >&2
