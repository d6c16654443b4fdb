"""The fused tier: models of one architecture are stacked and stepped together.

stacked_tier.py   forms stacks, proves that they are exact, measures them
stack.py          one stack: one buffer, one step
tensors.py        tensors that hold one value per member
updates.py        optimizer updates over a stack
"""
