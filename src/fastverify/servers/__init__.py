"""One interface to inference servers: launch, wait for health, load, metrics, profile, stop. Imports no torch."""
