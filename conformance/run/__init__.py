"""The engine: cases × targets → results."""
