"""The scripted engine: says what its script says. For tests, and for trying the gateway without a
model.
"""
