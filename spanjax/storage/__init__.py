"""Files and folders that commands write: whole or not at all, and never in the place of somebody else's."""
