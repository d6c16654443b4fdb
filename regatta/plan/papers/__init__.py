"""The papers' own algorithms and experiments, as baselines. Nothing at run time imports them.

fleet_policies.py     the policies of the FLEET paper
fleet_assignment.py   its getGPUAssignment and assignGPUs
flotilla.py           its createFlotilla
fleet_suite.py        its experiment
pack_grouping.py      the packing paper's policies: which configurations to pack together
regimes.py            every strategy by itself on a grid of simulated sweeps
suites.py             experiments by name, for `regatta simulate --suite`
"""
