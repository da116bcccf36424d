package place

// Place places one gang on the snapshot, or leaves the snapshot unchanged.
func Place(s *Snapshot, g Gang, o Options) Decision { return NewPlacer(s, o).Place(g) }
