"""Where rows lie: the memory of the host, a log on disk, the memory of a GPU, all behind one protocol, `tier.Tier`."""
