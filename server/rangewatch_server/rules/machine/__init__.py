"""Rules on machines and ranks: GPU health, stragglers, hangs, deaths, memory, data loading."""
