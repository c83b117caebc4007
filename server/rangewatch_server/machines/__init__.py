"""What machines and processes are like, from samples and events: cards, environments, deaths of ranks."""
