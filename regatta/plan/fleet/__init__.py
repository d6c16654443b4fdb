"""Device groups: how many devices each of many unlike models gets, and when that changes.

    machines.py      devices in nodes; a group lies inside one node where it can
    rates.py         rows per second by width: Equation 5, and our model with terms inside and across nodes
    convergence.py   when a model has had enough, and how many epochs may be left until then
    fluid.py         what no allocation can beat, and the widths of that ideal
    flotilla.py      createFlotilla of the FLEET paper; assignment.py has its getGPUAssignment
    policies.py      the words of an allocation; papers.py the papers' policies; water.py our default
    simulate.py      any policy on a simulated clock; suites.py the papers' experiments by name

The FLEET paper is Guan et al., "FLEET: Flexible Efficient Ensemble Training for Heterogeneous Deep Neural
Networks" (MLSys 2020).
Pure, as all of `plan`. A policy never learns how many epochs a model needs until the model has converged.
"""
