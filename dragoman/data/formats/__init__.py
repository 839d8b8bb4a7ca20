"""A task's examples to stored rows and back."""
