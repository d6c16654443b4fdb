"""Sound bounds on what a network computes when its weights are known to some digits.

    balls.py         centres and radii, and what rounding adds to them
    traces.py        what a layer leaves behind: its ball, and the way back through it
    affine.py        full connections and convolutions;  windows.py  what each output of these sees
    activations.py   functions of one number;  pools.py, norms.py, arithmetic.py, shapes.py  other layers
    bounded.py       BoundedNetwork: forward to balls, back to margins

NumPy alone; knows neither frameworks nor where weights come from.
"""

from regatta.network.bounds.balls import Ball, between, exactly
from regatta.network.bounds.bounded import BoundedNetwork, Margins, Passed
from regatta.network.bounds.traces import NotBounded

__all__ = ["Ball", "BoundedNetwork", "Margins", "NotBounded", "Passed", "between", "exactly"]
