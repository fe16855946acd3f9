"""A profile as text, Markdown and one HTML page; each reads `Profile` and computes nothing."""
