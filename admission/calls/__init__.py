"""What a graph does in calls of known size: every shape, and the values of what depends on sizes and masks only."""
