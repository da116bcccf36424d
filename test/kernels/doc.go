// Package kernels runs the agent's tests on real kernels, with cgroups of version 2, in virtual
// machines:
//
//	kernels (vmlinuz) ─┐
//	test binaries ─────┼─▶ qemu, without KVM ──serial console──▶ a result for each package
//	guest (init) ──────┘
//
// The machines have an initramfs and nothing else: guest is their first process, runs the test
// binaries, and ends the machine. Without qemu or kernels the test is skipped. hack/kernels.sh fetches
// kernels of Debian.
package kernels
