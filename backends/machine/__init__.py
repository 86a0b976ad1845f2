"""Facts about this machine: devices, processes, libraries."""
