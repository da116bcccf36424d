package batch

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"sync"

	"golang.org/x/crypto/ssh"
)

// keyBits is the size of RSA keys. All ssh implementations in use accept it.
const keyBits = 2048

// keysAtOnce is the number of key pairs generated at the same time. The work is pure computation.
const keysAtOnce = 2

// sshKeys generates key pairs, a bounded number at a time, without blocking the caller.
type sshKeys struct {
	lock    sync.Mutex
	makers  int
	waiting []func(private, public []byte, err error)
}

// ask requests a key pair. made is called later, from another goroutine.
func (k *sshKeys) ask(made func(private, public []byte, err error)) {
	k.lock.Lock()
	defer k.lock.Unlock()
	k.waiting = append(k.waiting, made)
	if k.makers < keysAtOnce {
		k.makers++
		go k.work()
	}
}

// work generates keys until no request waits.
func (k *sshKeys) work() {
	for {
		k.lock.Lock()
		if len(k.waiting) == 0 {
			k.makers--
			k.lock.Unlock()
			return
		}
		made := k.waiting[0]
		k.waiting[0] = nil
		k.waiting = k.waiting[1:]
		k.lock.Unlock()
		made(newKeys())
	}
}

// newKeys generates a key pair for ssh, in ssh's file format. It takes a good part of a second.
func newKeys() (private, public []byte, err error) {
	key, err := rsa.GenerateKey(rand.Reader, keyBits)
	if err != nil {
		return nil, nil, err
	}
	k, err := ssh.NewPublicKey(&key.PublicKey)
	if err != nil {
		return nil, nil, err
	}
	private = pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	return private, ssh.MarshalAuthorizedKey(k), nil
}
