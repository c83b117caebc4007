"""What must hold along the axes of a mesh: where ranks stand, and how their updates are set."""
