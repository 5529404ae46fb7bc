"""What one client sends: one checked file, its signature, and which files take part."""
