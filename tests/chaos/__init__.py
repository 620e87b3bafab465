"""Runs through faults, one after another, that end in the state of a run that nobody disturbed."""
