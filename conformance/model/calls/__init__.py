"""The calls that programs make of a model and of its attention nodes."""
