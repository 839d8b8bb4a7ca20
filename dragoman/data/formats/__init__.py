"""Example formats: how a task's files become examples, and examples rows of a store."""
