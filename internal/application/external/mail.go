package external

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net"
	"net/mail"
	"net/smtp"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Mail is an e-mail that a step sends.
type Mail struct {
	From struct {
		Address  string `json:"address"`
		Alias    string `json:"alias,omitempty"`
		Password string `json:"password"`
		Host     string `json:"host"`
		Port     int    `json:"port"`
	} `json:"from"`
	To      []string `json:"to"`
	Content struct {
		Subject string `json:"subject"`
		Body    string `json:"body"`
	} `json:"content"`
}

// recipientsMax bounds the recipients of one e-mail.
const recipientsMax = 100

// NewMail reads an e-mail from a step's parameters and validates it.
func NewMail(params map[string]any) (*Mail, error) {
	data, err := json.Marshal(params)
	if err != nil {
		return nil, err
	}
	m := &Mail{}
	if err := json.Unmarshal(data, m); err != nil {
		return nil, fmt.Errorf("the e-mail: %w", err)
	}
	if len(m.To) == 0 || len(m.To) > recipientsMax {
		return nil, fmt.Errorf("the e-mail has %d recipients; one to %d are possible", len(m.To), recipientsMax)
	}
	for _, address := range append(slices.Clone(m.To), m.From.Address) {
		if _, err := mail.ParseAddress(address); err != nil || strings.ContainsAny(address, "\r\n") {
			return nil, fmt.Errorf("%q is not an address of e-mail", address)
		}
	}
	if m.From.Host == "" || m.From.Port <= 0 || m.From.Port > 65535 {
		return nil, errors.New("the e-mail: from.host and from.port must be given")
	}
	return m, nil
}

// Send sends an e-mail, encrypted if the server supports that. The error contains only the code of
// the server's answer.
func (x *Client) Send(ctx context.Context, m *Mail) error {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	conn, err := x.Guard.DialContext(ctx, "tcp", net.JoinHostPort(m.From.Host, strconv.Itoa(m.From.Port)))
	if err != nil {
		return fmt.Errorf("the mail server: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if err := m.deliver(conn, x.Now()); err != nil {
		var said *textproto.Error
		if errors.As(err, &said) {
			return fmt.Errorf("the mail server answers %d", said.Code)
		}
		return errors.New("the mail server does not take the e-mail: the connection ended, TLS failed, or it does not speak SMTP")
	}
	return nil
}

// deliver hands the e-mail to the server at the other end of conn.
func (m *Mail) deliver(conn net.Conn, now time.Time) error {
	config := &tls.Config{ServerName: m.From.Host, MinVersion: tls.VersionTLS12}
	if m.From.Port == 465 {
		conn = tls.Client(conn, config)
	}
	client, err := smtp.NewClient(conn, m.From.Host)
	if err != nil {
		return err
	}
	if ok, _ := client.Extension("STARTTLS"); ok {
		if err := client.StartTLS(config); err != nil {
			return err
		}
	}
	if ok, _ := client.Extension("AUTH"); ok && m.From.Password != "" {
		if err := client.Auth(smtp.PlainAuth("", m.From.Address, m.From.Password, m.From.Host)); err != nil {
			return err
		}
	}
	if err := client.Mail(m.From.Address); err != nil {
		return err
	}
	for _, to := range m.To {
		if err := client.Rcpt(to); err != nil {
			return err
		}
	}
	w, err := client.Data()
	if err != nil {
		return err
	}
	if _, err := w.Write(m.text(now)); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return client.Quit()
}

func (m *Mail) text(now time.Time) []byte {
	var b bytes.Buffer
	from := mail.Address{Name: m.From.Alias, Address: m.From.Address}
	fmt.Fprintf(&b, "From: %s\r\nTo: %s\r\nSubject: %s\r\nDate: %s\r\nMIME-Version: 1.0\r\nContent-Type: text/html; charset=UTF-8\r\n\r\n%s\r\n",
		from.String(), strings.Join(m.To, ", "), mime.QEncoding.Encode("utf-8", m.Content.Subject), now.Format(time.RFC1123Z), m.Content.Body)
	return b.Bytes()
}
