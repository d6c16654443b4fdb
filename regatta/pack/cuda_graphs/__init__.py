"""The graph tier: each member's step is captured, proven exact, and replayed concurrently with the others.

graph_tier.py   captures and replays steps, in waves that fit into memory
capture.py      capture and replay, and the side streams
joint.py        captured steps as branches of one graph
proof.py        a captured step is compared with the same step taken alone
"""
