"""From measured numbers to a verdict: evidence, cost of one cycle per arm, findings."""
