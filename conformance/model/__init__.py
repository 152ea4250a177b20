"""Makes cases from the GroupQueryAttention nodes of an exported model, and an answer from results."""
