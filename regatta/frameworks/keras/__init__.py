"""Keras 3: `framework.py` has the verbs, `steps.py` one step per backend, `state.py` the state."""
