"""Layer graphs of programs in PyTorch and of ONNX files: read in a process of its own, grouped into layers, timed."""
