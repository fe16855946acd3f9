"""Ways to guess the next tokens, behind one contract: `drafter.py`."""
