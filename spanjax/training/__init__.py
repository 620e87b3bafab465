"""The trunk: state, optimizer, step, checkpoints, loop. It knows objectives only by their interface."""
