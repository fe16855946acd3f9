"""The tensor-parallel speculative decoding engine. Importing this package imports no torch; `engine.engine` does."""
