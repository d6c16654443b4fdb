"""Files and values from users become weights, networks, metrics and hyperparameters.

    staging.py         what was added and waits for a commit
    read_file.py       what a file is
    zip_weights.py     weights from npz files and exported programs
    onnx_weights.py    weights from ONNX files
    training_logs.py   metrics and hyperparameters from logs and settings
    metrics.py         metrics from Python values
    git_commit.py      the git commit around a folder

No file is executed or unpickled.
"""
