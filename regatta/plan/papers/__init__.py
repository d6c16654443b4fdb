"""The papers' own algorithms and experiments, as baselines. Nothing imports them at run time.

fleet_policies.py     the policies of the FLEET paper
fleet_assignment.py   getGPUAssignment and assignGPUs
flotilla.py           createFlotilla
fleet_suite.py        the FLEET paper's experiment
pack_grouping.py      the packing paper's policies: which configurations to pack together
regimes.py            every strategy by itself on a grid of simulated sweeps
suites.py             experiments by name, for `regatta simulate --suite`
"""
