"""An engine in a process of its own: `process` is that process, `port` the gateway's end of it, and
`framing` what goes between them. The registry sees a container like any other.
"""
