"""What the files beside a model say about it."""
