"""Networks from ONNX files: `from_onnx.py` reads the file, `operators.py` translates, `shapes.py` infers sizes."""
