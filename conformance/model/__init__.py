"""Makes cases from the GroupQueryAttention nodes of a model, and answers from their results."""
