"""The gateway: from an HTTP request to a lease, a prompt, a generation, events and a reply."""
