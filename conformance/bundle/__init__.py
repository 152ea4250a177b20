"""A case as a directory: model, inputs, expected outputs, laid out as an ONNX backend test."""
