"""`python -m benchmarks` is `python -m benchmarks.serving`."""

from benchmarks.serving import main

main()
