"""Hop, pack, group or share: what each costs, and the plan that ends soonest.

workload.py         the profiles of a sweep, as kinds of models
costs.py            what hopping, packs, groups and sharing cost
sizes.py            the best sizes of packs and widths of groups
form_packs.py       which models form packs
groups_or_hops.py   when several workers per model pay
choose.py           every strategy offers its best, and the fastest wins
simulate.py         simulates a strategy with the hop scheduler
plan_tree.py        the plan as a tree that explains itself
what_if.py          the same work on other numbers of workers
"""
