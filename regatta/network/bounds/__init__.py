"""Sound bounds on the outputs of a network whose weights are known only to some digits.

    balls.py         centres and radii, and the rounding errors that enlarge them
    traces.py        the result of a layer: its ball, and the step back through it
    affine.py        full connections and convolutions;  windows.py  the inputs of each output of these
    activations.py   functions of one number;  pools.py, norms.py, arithmetic.py, shapes.py  other layers
    bounded.py       BoundedNetwork: forward to balls, back to margins

It uses only NumPy, and knows neither frameworks nor where weights come from.
"""

from regatta.network.bounds.balls import Ball, between, exactly
from regatta.network.bounds.bounded import BoundedNetwork, ForwardPass, Margins
from regatta.network.bounds.traces import NotBounded

__all__ = ["Ball", "BoundedNetwork", "ForwardPass", "Margins", "NotBounded", "between", "exactly"]
