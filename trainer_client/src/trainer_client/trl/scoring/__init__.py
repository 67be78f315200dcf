"""What a call of `RubricReward` does: score this rank's rows, agree between ranks, and wait for the judge."""
