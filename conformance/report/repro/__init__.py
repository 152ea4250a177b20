"""One result as a program that reproduces it without this suite."""
