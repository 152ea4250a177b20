"""From an exported model to cases of its GroupQueryAttention nodes, and to an answer for them."""
