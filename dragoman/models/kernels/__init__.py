"""Code that exists only for speed, behind plain functions; tests hold each kernel against plain torch."""
