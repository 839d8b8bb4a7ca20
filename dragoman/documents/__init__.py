"""Documents: readers and writers of whole files, and their translation with all that is not text kept."""
