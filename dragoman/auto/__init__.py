"""Look at the data, then choose a configuration."""
