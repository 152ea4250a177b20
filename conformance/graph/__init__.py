"""ONNX graphs: read safely, with the types of their values and their attention nodes."""
