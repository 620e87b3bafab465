"""Start-up on one or many processes, and their rendezvous. Importing this does not import jax."""
