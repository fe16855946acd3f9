"""Tensor-parallel Llama-type models and the EAGLE-3 head: layers, weights, no engine."""
