"""The configuration in force, and what changes it while the server runs."""
