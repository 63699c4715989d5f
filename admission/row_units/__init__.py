"""Rows of a call as nodes see them: which axis holds them, and which nodes must be run together to be run a row at a
time.
"""
