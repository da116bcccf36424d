package objects

import (
	"sync"
	"time"
)

// AnswerMonitor measures for how long requests have had no answer. The zero value is ready for use.
type AnswerMonitor struct {
	mu   sync.Mutex
	open int       // requests without an answer
	at   time.Time // the last answer, or the first open request since
}

// Sent records that a request was sent at now.
func (p *AnswerMonitor) Sent(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open == 0 {
		p.at = now
	}
	p.open++
}

// Answered records that a request was answered, with or without an error, at now.
func (p *AnswerMonitor) Answered(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open--
	p.at = now
}

// Silence returns how long the open requests have waited for any answer, or zero if none is open.
func (p *AnswerMonitor) Silence(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open == 0 {
		return 0
	}
	return now.Sub(p.at)
}
