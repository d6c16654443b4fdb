"""Allocation of devices: how many devices each of many unlike models gets, and when that changes.

nodes.py           devices in nodes; a group is inside one node where it fits
rates.py           rows per second by width: Equation 5, and our model of communication inside and across nodes
convergence.py     when a model has converged, and how many epochs may be left until then
fluid_bound.py     a bound that no allocation can beat, and the widths of that ideal
policies.py        what a policy sees, and what it answers
water_filling.py   our default policy
simulate.py        any policy on a simulated clock

The policies of the FLEET paper and its experiment are in `plan/papers`: Guan et al., "FLEET: Flexible Efficient
Ensemble Training for Heterogeneous Deep Neural Networks" (MLSys 2020). Pure, as all of `plan`. A policy does not know
how many epochs a model needs until the model has converged.
"""
