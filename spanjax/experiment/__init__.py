"""From a Run to something that trains: sessions, initial weights, what is shown of a run."""
