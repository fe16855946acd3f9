"""Readers: one small file per kind of text that a user can paste; each turns a Document into a Reading."""
