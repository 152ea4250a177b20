"""A case as a directory (model, inputs, expected outputs) in the ONNX backend test layout."""
