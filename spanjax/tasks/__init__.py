"""Fine-tuning: a task reads a user's files, trains through the step of pretraining, predicts, and is scored officially."""
