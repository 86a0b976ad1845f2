"""Engines, and all that runs beside them: in this process, in a worker, on another machine."""
