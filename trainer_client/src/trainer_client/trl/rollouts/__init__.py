"""What `RubricGRPOTrainer` does in place of TRL: how responses are sampled, and what their advantages need."""
