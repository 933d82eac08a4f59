"""The coordinator as a process: services, journal, membership. Imports no torch."""
