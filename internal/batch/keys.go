package batch

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"

	"golang.org/x/crypto/ssh"
)

// keyBits are what every ssh that is in use accepts.
const keyBits = 2048

// keysAtOnce is how many pairs are made at a time: it is work for the processor alone.
const keysAtOnce = 2

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
