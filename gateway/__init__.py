"""The gateway (floors 2 to 7): from an HTTP request to a lease, a prompt, a generation, events and
a reply.
"""
