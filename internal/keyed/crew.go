package keyed

import "sync"

// Crew is Size workers side by side. A turn that waits for something outside of this process can step aside: then another worker
// takes its place until it goes on, so that no more than Size turns are worked on, and none is held up by those that wait.
type Crew[K any] struct {
	Size int
	// Get waits for the key of the next turn; stop says that there will be none.
	Get func() (key K, stop bool)
	// Turn works on a key.
	Turn func(K)

	places  chan struct{} // held by those who work
	running sync.WaitGroup

	mu             sync.Mutex
	workers, aside int
}

// Run works until Get says stop, and returns when all turns are over.
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

// dispensable says that there are more workers than places, those aside included; the one that asks leaves.
func (c *Crew[K]) dispensable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.workers <= c.Size+c.aside {
		return false
	}
	c.workers--
	return true
}

// Aside runs wait while another turn takes the place of the one that calls it.
func (c *Crew[K]) Aside(wait func()) {
	c.mu.Lock()
	c.aside++
	if c.workers < c.Size+c.aside {
		c.hire()
	}
	c.mu.Unlock()
	<-c.places
	defer func() { // whatever wait does: a turn that panics may be recovered from
		c.places <- struct{}{}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.aside--
	}()
	wait()
}
