"""Networks from ONNX files: `from_onnx.py` reads the file, `from_operators.py` translates, `shapes.py` infers sizes."""
