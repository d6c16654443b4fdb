"""Files and values from users become weights, networks, metrics and hyperparameters.

No file is executed or unpickled.
"""
