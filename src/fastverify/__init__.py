"""fastverify finds out why speculative decoding is slow on a multi-GPU machine, and makes it fast.

Importing the package imports neither torch nor any server: a laptop can read evidence and write a plan.
"""

__version__ = "0.1.0"
__all__ = ["__version__"]
