"""The terms of every part of the gateway: errors, events, requests."""
