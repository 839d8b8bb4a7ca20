"""Output layers and their losses."""
