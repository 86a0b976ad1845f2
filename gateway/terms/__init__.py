"""What every part of the gateway speaks of: errors, events, requests."""
