"""The gateway's ends of models: in this process, in workers, on nodes, at other servers."""
