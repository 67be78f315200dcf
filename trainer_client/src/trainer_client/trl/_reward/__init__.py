"""How `RubricReward` turns the rows of a call into rewards: read them, judge them, and agree between ranks."""
