package batch

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"sync"

	"golang.org/x/crypto/ssh"
)

// keyBits are what every ssh that is in use accepts.
const keyBits = 2048

// keysAtOnce is how many pairs are made at a time: it is work for the processor alone.
const keysAtOnce = 2

// keyring makes pairs of keys, a bounded number at a time; who asks does not wait.
type keyring struct {
	lock    sync.Mutex
	makers  int
	waiting []func(private, public []byte, err error)
}

// ask calls made with a pair of keys, later and from elsewhere.
func (k *keyring) ask(made func(private, public []byte, err error)) {
	k.lock.Lock()
	defer k.lock.Unlock()
	k.waiting = append(k.waiting, made)
	if k.makers < keysAtOnce {
		k.makers++
		go k.work()
	}
}

// work makes keys until nobody waits.
func (k *keyring) work() {
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

// newKeys is a pair of keys for ssh, in the format of its files. It takes a good part of a second.
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
