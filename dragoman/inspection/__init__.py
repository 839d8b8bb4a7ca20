"""What happened inside → numbers."""
