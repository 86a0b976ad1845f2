"""The scripted engine: generates the answers of its script. For tests, and for trying the gateway
without a model.
"""
