package controlloop

import "sync"

// WorkerPool runs Size workers side by side. A turn that waits for something outside this process
// can yield: another worker takes its place until the turn continues. So at most Size turns run, and
// turns that wait delay no others.
type WorkerPool[K any] struct {
	Size int
	// Get waits for the key of the next turn; stop means that there are no more.
	Get func() (key K, stop bool)
	// Turn works on a key.
	Turn func(K)

	places  chan struct{} // held by running turns
	running sync.WaitGroup

	mu                sync.Mutex
	workers, yielding int
}

// Run works until Get returns stop, and returns when all turns are over.
func (p *WorkerPool[K]) Run() {
	p.mu.Lock()
	p.places = make(chan struct{}, p.Size)
	for range p.Size {
		p.startWorker()
	}
	p.mu.Unlock()
	p.running.Wait()
}

// startWorker starts a worker. The caller holds mu.
func (p *WorkerPool[K]) startWorker() {
	p.workers++
	p.running.Go(func() {
		for {
			key, stop := p.Get()
			if stop {
				return
			}
			p.places <- struct{}{}
			p.Turn(key)
			<-p.places
			if p.surplus() {
				return
			}
		}
	})
}

// surplus reports whether there are more workers than Size plus those that yield. If so, the calling
// worker must end.
func (p *WorkerPool[K]) surplus() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.workers <= p.Size+p.yielding {
		return false
	}
	p.workers--
	return true
}

// Yield runs wait while another turn takes the place of the calling turn.
func (p *WorkerPool[K]) Yield(wait func()) {
	p.mu.Lock()
	p.yielding++
	if p.workers < p.Size+p.yielding {
		p.startWorker()
	}
	p.mu.Unlock()
	<-p.places
	defer func() { // also if wait panics, since the panic may be recovered from
		p.places <- struct{}{}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.yielding--
	}()
	wait()
}
