"""File → examples → tokens → batch: readers, tokenizers, token store and batch plan."""
