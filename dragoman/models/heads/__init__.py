"""Output heads: softmax, CTC, length prediction, and a decoder with its own embeddings and output layer."""
