"""Collectives between the ranks of one host: backends, the chooser among them, and their benchmark."""
