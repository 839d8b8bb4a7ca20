"""Published models of Hugging Face as runs, and runs as folders that transformers opens."""
