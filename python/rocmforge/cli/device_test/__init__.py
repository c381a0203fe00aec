"""`rocmforge doctor --test`: whether a device computes rightly, and how fast, in a report for an issue.

Each part runs in a separate process (`process`, `child`), so that one that crashes takes nothing with it: the driver
of an AMD GPU ends the whole process when a kernel uses memory that it may not.
"""
