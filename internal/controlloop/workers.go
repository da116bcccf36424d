package controlloop

import "sync"

// workerPool runs size workers side by side. A turn that waits for something outside this process
// can yield: another worker takes its place until the turn continues. So at most size turns run,
// and turns that wait delay no others.
type workerPool[K any] struct {
	size int
	// get waits for the key of the next turn; stop means that there are no more keys.
	get func() (key K, stop bool)
	// turn works on a key.
	turn func(K)

	places  chan struct{} // has one element per running turn
	running sync.WaitGroup

	mu                sync.Mutex
	workers, yielding int
}

// run works until get returns stop, and returns when all turns are over.
func (p *workerPool[K]) run() {
	p.mu.Lock()
	p.places = make(chan struct{}, p.size)
	for range p.size {
		p.startWorker()
	}
	p.mu.Unlock()
	p.running.Wait()
}

// startWorker starts a worker. The caller holds mu.
func (p *workerPool[K]) startWorker() {
	p.workers++
	p.running.Go(func() {
		for {
			key, stop := p.get()
			if stop {
				return
			}
			p.places <- struct{}{}
			p.turn(key)
			<-p.places
			if p.surplus() {
				return
			}
		}
	})
}

// surplus reports whether there are more workers than size plus those that yield. If so, the
// calling worker must end.
func (p *workerPool[K]) surplus() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.workers <= p.size+p.yielding {
		return false
	}
	p.workers--
	return true
}

// yield runs wait while another turn takes the place of the calling turn.
func (p *workerPool[K]) yield(wait func()) {
	p.mu.Lock()
	p.yielding++
	if p.workers < p.size+p.yielding {
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
