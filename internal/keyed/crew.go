package keyed

import "sync"

// Crew runs Size workers side by side. A turn that waits for something outside this process can
// step aside: another worker takes its place until the turn continues. So at most Size turns run,
// and turns that wait delay no others.
type Crew[K any] struct {
	Size int
	// Get waits for the key of the next turn; stop means that there are no more.
	Get func() (key K, stop bool)
	// Turn works on a key.
	Turn func(K)

	places  chan struct{} // held by running turns
	running sync.WaitGroup

	mu             sync.Mutex
	workers, aside int
}

// Run works until Get returns stop, and returns when all turns are over.
func (c *Crew[K]) Run() {
	c.mu.Lock()
	c.places = make(chan struct{}, c.Size)
	for range c.Size {
		c.hire()
	}
	c.mu.Unlock()
	c.running.Wait()
}

// hire starts a worker. The caller holds mu.
func (c *Crew[K]) hire() {
	c.workers++
	c.running.Go(func() {
		for {
			key, stop := c.Get()
			if stop {
				return
			}
			c.places <- struct{}{}
			c.Turn(key)
			<-c.places
			if c.dispensable() {
				return
			}
		}
	})
}

// dispensable reports whether there are more workers than Size plus those aside. If so, the calling
// worker must end.
func (c *Crew[K]) dispensable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.workers <= c.Size+c.aside {
		return false
	}
	c.workers--
	return true
}

// Aside runs wait while another turn takes the place of the calling turn.
func (c *Crew[K]) Aside(wait func()) {
	c.mu.Lock()
	c.aside++
	if c.workers < c.Size+c.aside {
		c.hire()
	}
	c.mu.Unlock()
	<-c.places
	defer func() { // also if wait panics, since the panic may be recovered from
		c.places <- struct{}{}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.aside--
	}()
	wait()
}
