"""A small EC2 that is meaner than the real one: see `cloud.py`."""
