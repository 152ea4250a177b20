"""The parts of the operator, one module each."""
