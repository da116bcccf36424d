package ociimage

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// WritePause writes the image of a program that only keeps a pod's namespaces. The kubelet needs
// such an image, and there is no registry to pull it from.
func WritePause(w io.Writer, name string) error {
	program, err := pauseProgram(runtime.GOARCH)
	if err != nil {
		return err
	}
	var layer bytes.Buffer
	out := tar.NewWriter(&layer)
	err = out.WriteHeader(&tar.Header{Name: "pause", Size: int64(len(program)), Mode: 0o755})
	if err == nil {
		_, err = out.Write(program)
	}
	if err := errors.Join(err, out.Close()); err != nil {
		return err
	}
	sum := sha256.New()
	sum.Write(layer.Bytes())
	desc := v1.Descriptor{MediaType: v1.MediaTypeImageLayer, Digest: digestOf(sum), Size: int64(layer.Len())}
	return write(w, Image{Name: name, Command: []string{"/pause"}}, &layer, desc)
}

// pauseCode is the machine code of the program: it ignores SIGCHLD, so that the kernel reaps the
// orphans of pods that share their process namespace, and sleeps for ever. Any language runtime
// would cost each pod more memory than this whole file.
//
//	rt_sigaction(SIGCHLD, &{SIG_IGN}, NULL, 8)
//	for { pause() }
//
// The action, 32 bytes (handler SIG_IGN = 1, the rest 0), follows the code.
var pauseCode = map[string]struct {
	machine elf.Machine
	code    []byte
}{
	"amd64": {elf.EM_X86_64, []byte{
		0xb8, 13, 0, 0, 0, // mov eax, 13 (rt_sigaction)
		0xbf, 17, 0, 0, 0, // mov edi, 17 (SIGCHLD)
		0x48, 0x8d, 0x35, 20, 0, 0, 0, // lea rsi, [rip+20] (the action)
		0x31, 0xd2, // xor edx, edx
		0x41, 0xba, 8, 0, 0, 0, // mov r10d, 8
		0x0f, 0x05, // syscall
		0xb8, 34, 0, 0, 0, // sleep: mov eax, 34 (pause)
		0x0f, 0x05, // syscall
		0xeb, 0xf7, // jmp sleep
		0x90, // nop
	}},
	"arm64": {elf.EM_AARCH64, words(
		0xd28010c8, // mov x8, 134 (rt_sigaction)
		0xd2800220, // mov x0, 17 (SIGCHLD)
		0x10000181, // adr x1, +48 (the action)
		0xd2800002, // mov x2, 0
		0xd2800103, // mov x3, 8
		0xd4000001, // svc 0
		0xd2800928, // sleep: mov x8, 73 (ppoll of no descriptors, without timeout)
		0xd2800000, // mov x0, 0
		0xd2800001, // mov x1, 0
		0xd2800002, // mov x2, 0
		0xd2800003, // mov x3, 0
		0xd4000001, // svc 0
		0x17fffffa, // b sleep
		0xd503201f, // nop
	)},
}

func words(w ...uint32) []byte {
	var out []byte
	for _, x := range w {
		out = binary.LittleEndian.AppendUint32(out, x)
	}
	return out
}

// pauseProgram returns a static ELF executable: one header, one segment with code and data.
func pauseProgram(arch string) ([]byte, error) {
	p, ok := pauseCode[arch]
	if !ok {
		return nil, fmt.Errorf("no pause program for %s", arch)
	}
	const base, headers = 0x400000, 64 + 56
	body := append(bytes.Clone(p.code), make([]byte, 32)...)
	body[len(p.code)] = 1 // SIG_IGN
	total := uint64(headers + len(body))
	file := elf.Header64{
		Type: uint16(elf.ET_EXEC), Machine: uint16(p.machine), Version: uint32(elf.EV_CURRENT), Entry: base + headers,
		Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1,
	}
	copy(file.Ident[:], elf.ELFMAG)
	file.Ident[elf.EI_CLASS], file.Ident[elf.EI_DATA], file.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64),
		byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)
	segment := elf.Prog64{
		Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: base, Paddr: base, Filesz: total, Memsz: total,
		Align: 0x10000,
	}
	var out bytes.Buffer
	for _, part := range []any{file, segment, body} {
		if err := binary.Write(&out, binary.LittleEndian, part); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}
